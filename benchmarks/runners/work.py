"""The unit of work: CIFAR-sized random pictures, clients of 500, batches of 64, one epoch, crop, mirror, normalise.

Imports nothing of fedgloss: all runners, ours and others', read the same pictures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PER_CLIENT, BATCH, CLASSES = 500, 64, 10
LR, WEIGHT_DECAY, RHO = 0.01, 4e-4, 0.05
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2434, 0.2616)

CNN_FLOPS = 80.6e6
"""Forward and backward of one picture through the paper's CNN: two a multiply-add, no gradient of the pictures."""

RESNET18_FLOPS = 3.34e9


def pictures(clients: int, seed: int = 0) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    count = clients * PER_CLIENT
    return (
        generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        generator.integers(0, CLASSES, count, dtype=np.int64),
    )
