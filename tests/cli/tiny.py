"""Every preset's data set in its true format, a few hundred random pictures large."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from fedgloss.data.synthetic_landmarks import make_landmarks

RANDOM = np.random.default_rng(0)


def cifar10(folder: Path) -> Path:
    labels = np.arange(200) % 10
    rows = np.concatenate(
        [labels[:, None].astype(np.uint8), RANDOM.integers(0, 256, (200, 3072), np.uint8)], axis=1
    )
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(rows[40 * number : 40 * (number + 1)].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[:30].tobytes())
    return folder


def cifar100(folder: Path) -> Path:
    fine = np.arange(200) % 100
    labels = np.stack([fine // 5, fine], axis=1).astype(np.uint8)
    rows = np.concatenate([labels, RANDOM.integers(0, 256, (200, 3072), np.uint8)], axis=1)
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(rows.tobytes())
    (folder / "test.bin").write_bytes(rows[:100].tobytes())
    return folder


def fashion_mnist(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part, count in (("train", 200), ("t10k", 50)):
        pictures = RANDOM.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, magic, array in (("images-idx3", 0x803, pictures), ("labels-idx1", 0x801, labels)):
            head = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), 1))
    return folder


def landmarks(folder: Path) -> Path:
    make_landmarks(folder, users=60, classes=7, pictures=64, test_pictures=8)
    return folder


MAKERS = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "landmarks-user-160k": landmarks,
}
