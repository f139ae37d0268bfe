"""Your own pictures in one NumPy archive, with whose each one is.

python examples/own_npz.py
fedgloss data show npz --path shapes.npz
"""

from pathlib import Path

import numpy as np

from fedgloss.data.datasets import load


def make_archive(path: Path) -> None:
    """Bright bars, upright or lying: 200 training pictures of five people and 50 test pictures."""
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 60, (250, 16, 16, 1), dtype=np.uint8)
    labels = draw.integers(0, 2, 250)
    for picture, label, place in zip(pictures, labels, draw.integers(2, 14, 250), strict=True):
        picture[(slice(None), place) if label == 0 else (place, slice(None))] = 250
    np.savez_compressed(
        path,
        train_images=pictures[:200],
        train_labels=labels[:200],
        test_images=pictures[200:],
        test_labels=labels[200:],
        train_clients=np.array([f"person {number % 5}" for number in range(200)]),
        classes=np.array(["upright", "lying"]),
    )


if __name__ == "__main__":
    make_archive(Path("shapes.npz"))
    data = load("npz", path="shapes.npz")
    print(f"{len(data.train)} training and {len(data.test)} test pictures of {', '.join(data.classes)}")
