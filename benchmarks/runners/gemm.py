"""What the cores can do at best: large matrix products, on so many threads of one process."""

from __future__ import annotations

import sys
import time

import torch
from serving import serve

SIZES, SECONDS = (1024, 1536, 2048), 0.25


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    factors = [(torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)) for n in SIZES]

    def once() -> dict[str, float]:
        best = total = 0.0
        for left, right, out in factors:
            done, began = 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                torch.mm(left, right, out=out)
                done += 1
            best = max(best, 2 * len(left) ** 3 * done / (time.perf_counter() - began))
            total += 2 * len(left) ** 3 * done
        return {"flops": best, "done": total}

    serve(once)


if __name__ == "__main__":
    main(int(sys.argv[1]))
