from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fedgloss.data.datasets import channel_statistics
from fedgloss.data.transforms import PictureTransform


def test_every_digit_is_there_once(loaded, stored) -> None:
    digits = loaded("digits")
    assert (len(digits.train), len(digits.test)) == (1438, 359)
    assert stored() == [], "nothing to prepare, nothing to write"
    pictures = np.concatenate([digits.train.inputs.numpy(), digits.test.inputs.numpy()])
    assert pictures.shape == (1797, 32, 32, 1)
    small = pictures[:, ::4, ::4, 0]
    assert (small.repeat(4, 1).repeat(4, 2) == pictures[..., 0]).all(), "each pixel is a block of 4 x 4"
    assert sorted({0, 255} | set(np.unique(small))) == [round(value * 255 / 16) for value in range(17)]
    original = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, small)) == sorted(map(bytes, original))


def test_the_split_is_the_same_every_time_and_fair(loaded) -> None:
    first, second = loaded("digits"), loaded("digits")
    assert (first.test_labels == second.test_labels).all()
    assert (first.train.inputs == second.train.inputs).all()
    share = np.bincount(first.test_labels) / np.bincount(np.concatenate([first.train_labels, first.test_labels]))
    assert abs(share - 0.2).max() < 0.005
    assert (first.train_labels == first.train.targets.numpy()).all()


def test_digits_are_never_mirrored_and_normalised_by_what_they_are(loaded) -> None:
    digits = loaded("digits")
    assert isinstance(digits.transform, PictureTransform)
    assert not digits.transform.flip
    assert (digits.transform.mean, digits.transform.std) == channel_statistics(digits.train)
