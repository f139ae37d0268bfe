"""scikit-learn's handwritten digits: in every installation, so the first run needs no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ..errors import InvalidInput
from .datasets import DataSet, held_out
from .federation import ArraySamples
from .transforms import PictureTransform

TEST_SHARE = 0.2
TEST_SEED = 0
MEAN, STD = (0.3053,), (0.3759,)  # measured on the 1,438 training pictures


def where(name: str) -> str:
    return "scikit-learn"


def digits() -> DataSet:
    """1,438 training and 359 test pictures of 32 x 32 grey pixels.

    scikit-learn's 8 x 8 pictures with values 0-16 are scaled to 0-255 and every pixel becomes a block of 4 x 4. A
    fifth of each class, drawn with seed 0, is the test set. A mirrored digit is no digit, so none is flipped.
    """
    table = np.loadtxt(_file(), dtype=np.int64, delimiter=",")
    small = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    pictures = torch.from_numpy(small.repeat(4, axis=1).repeat(4, axis=2)[..., None])
    labels = np.ascontiguousarray(table[:, -1])
    test = held_out(labels, TEST_SHARE, TEST_SEED)
    train = np.setdiff1d(np.arange(len(labels)), test)
    return DataSet(
        name="digits",
        train=ArraySamples(pictures[train], torch.from_numpy(labels[train])),
        test=ArraySamples(pictures[test], torch.from_numpy(labels[test])),
        train_labels=labels[train],
        test_labels=labels[test],
        classes=tuple("0123456789"),
        transform=PictureTransform(MEAN, STD, flip=False),
        notes={"source": "scikit-learn", "test": f"{TEST_SHARE} of each class, seed {TEST_SEED}"},
    )


def _file() -> Path:
    """scikit-learn's own file: importing all of scikit-learn for it would take two seconds of every run."""
    found = find_spec("sklearn")
    places = list(found.submodule_search_locations or ()) if found else []
    path = Path(*places[:1], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise InvalidInput(f"{path}: not there; digits come with scikit-learn: pip install scikit-learn")
    return path
