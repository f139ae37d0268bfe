"""What the cores can do at best: large matrix products, on so many threads of one process.

The faster of torch's two libraries counts: MKL, which multiplies matrices, and oneDNN, which computes convolutions,
those of 1 x 1 being products of matrices too. On AMD's processors the first leaves half of AVX-512 unused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from serving import serve
from torch import Tensor

SIZES, SECONDS = (1024, 2048), 0.25
PICTURES, CHANNELS, SIDE = 64, 256, 16

Work = tuple[Callable[[], Tensor], int]
"""What to do, and its operations."""


def product(size: int) -> Work:
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(left, right, out=out), 2 * size**3


def convolution() -> Work:
    last = torch.channels_last
    pictures = torch.randn(PICTURES, CHANNELS, SIDE, SIDE).contiguous(memory_format=last)
    weight = torch.randn(CHANNELS, CHANNELS, 1, 1).contiguous(memory_format=last)
    return lambda: F.conv2d(pictures, weight), 2 * PICTURES * SIDE**2 * CHANNELS**2


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    kinds = [*map(product, SIZES), convolution()]

    def once() -> dict[str, float]:
        """The best rate, and that of processor time."""
        best = best_of_core = 0.0
        for work, operations in kinds:
            done, began, spent = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() - began < SECONDS:
                work()
                done += operations
            best = max(best, done / (time.perf_counter() - began))
            best_of_core = max(best_of_core, done / (time.process_time() - spent))
        return {"flops": best, "flops_of_core": best_of_core}

    serve(once)


if __name__ == "__main__":
    main(int(sys.argv[1]))
