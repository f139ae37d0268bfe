"""Transforms against a picture-by-picture transcription, and against Pillow for resampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedgloss import InvalidInput
from fedgloss.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LandmarksTransform,
    PictureTransform,
    random_crops,
)

CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2434, 0.2616)}


def pictures(count, height, width, channels, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    )


def normalised(picture, mean, std):
    """(height, width, channels) uint8 -> (channels, height, width), as the formula reads."""
    values = (picture.astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    return torch.from_numpy(values.transpose(2, 0, 1))


def one_by_one(inputs, transform, generator):
    """What PictureTransform does, written for one picture after the other."""
    count, height, width, _ = inputs.shape
    draws = count if transform.draw == "image" else 1
    corners = generator.integers(2 * transform.padding + 1, size=(draws, 2))
    mirrors = generator.random(draws) < 0.5 if transform.flip else [False] * draws
    out = []
    for number, picture in enumerate(inputs.numpy()):
        (top, left), mirror = corners[number % draws], mirrors[number % draws]
        picture = picture[:, ::-1] if mirror else picture
        edge = transform.padding
        padded = np.pad(picture, ((edge, edge), (edge, edge), (0, 0)))
        crop = padded[top : top + height, left : left + width]
        out.append(normalised(crop, transform.mean, transform.std))
    return torch.stack(out)


@settings(deadline=None)
@given(
    count=st.integers(1, 9),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    channels=st.integers(1, 4),
    padding=st.integers(0, 5),
    flip=st.booleans(),
    draw=st.sampled_from(["image", "batch"]),
    seed=st.integers(0, 99),
)
def test_the_batch_is_what_the_pictures_are_one_by_one(count, height, width, channels, padding, flip, draw, seed):
    mean, std = [0.1 * (c + 1) for c in range(channels)], [0.2 + 0.1 * c for c in range(channels)]
    transform = PictureTransform(mean, std, padding=padding, flip=flip, draw=draw)
    inputs = pictures(count, height, width, channels, seed)
    kept = inputs.clone()
    out = transform.train(inputs, np.random.default_rng(seed))
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        out.double(), one_by_one(inputs, transform, np.random.default_rng(seed)), rtol=1e-6, atol=1e-6
    )
    expected = torch.stack([normalised(p, mean, std) for p in inputs.numpy()])
    torch.testing.assert_close(transform.test(inputs).double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(inputs, kept)


def test_padding_is_black_and_not_the_mean_colour():
    transform = PictureTransform(**CIFAR10, padding=4, flip=False)
    white = torch.full((64, 32, 32, 3), 255, dtype=torch.uint8)
    out = transform.train(white, np.random.default_rng(0))
    black = torch.tensor([-m / s for m, s in zip(CIFAR10["mean"], CIFAR10["std"], strict=True)])
    torch.testing.assert_close(out.amin((0, 2, 3)), black)


def test_draws_are_uniform_over_crops_and_mirrors():
    """A single bright pixel in the middle tells where the crop was and whether it was mirrored."""
    transform = PictureTransform((0.0,), (1.0,), padding=2)
    inputs = torch.zeros(20_000, 6, 6, 1, dtype=torch.uint8)
    inputs[:, 2, 2] = 255
    out = transform.train(inputs, np.random.default_rng(3))
    where = out.flatten(1).argmax(1).numpy()
    # Corner c moves row 2 to 4 - c, column 2 (or 3 when mirrored) to 4 - c (or 5 - c).
    rows, columns = where // 6, where % 6
    assert np.bincount(rows, minlength=6)[:5] / 20_000 == pytest.approx(np.full(5, 0.2), abs=0.015)
    assert np.bincount(columns, minlength=6) / 20_000 == pytest.approx(
        np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.1]), abs=0.015
    )


def test_one_draw_for_the_whole_batch():
    inputs = pictures(1, 8, 8, 3).expand(16, -1, -1, -1)
    per_batch = PictureTransform(**CIFAR10, draw="batch").train(inputs, np.random.default_rng(0))
    per_image = PictureTransform(**CIFAR10).train(inputs, np.random.default_rng(0))
    assert all(torch.equal(per_batch[0], other) for other in per_batch)
    assert not all(torch.equal(per_image[0], other) for other in per_image)


def test_the_same_generator_gives_the_same_bits_and_the_pictures_do_not_move_the_draws():
    transform = PictureTransform(**CIFAR10)
    first = transform.train(pictures(5, 32, 32, 3), np.random.default_rng(7))
    assert torch.equal(first, transform.train(pictures(5, 32, 32, 3), np.random.default_rng(7)))
    for transform in (PictureTransform(**CIFAR10), LandmarksTransform(size=8)):
        states = []
        for seed, side in ((1, 9), (2, 32)):
            generator = np.random.default_rng(0)
            transform.train(pictures(5, side, side, 3, seed), generator)
            states.append(generator.bit_generator.state)
        assert states[0] == states[1]


@pytest.mark.parametrize("bad", [pictures(2, 4, 4, 1), pictures(2, 4, 4, 3).float(), pictures(2, 4, 4, 3)[0]])
def test_what_is_no_picture_of_these_channels_is_refused(bad):
    for transform in (PictureTransform(**CIFAR10), LandmarksTransform()):
        for call in (transform.test, lambda x, t=transform: t.train(x, np.random.default_rng(0))):
            with pytest.raises(InvalidInput, match=r"pictures: must be uint8 of shape \(batch, height, width, 3\)"):
                call(bad)


def test_bad_constants_are_refused():
    with pytest.raises(InvalidInput, match="std: must be positive"):
        PictureTransform((0.5,), (0.0,))
    with pytest.raises(InvalidInput, match="std: needs one value per channel"):
        PictureTransform((0.5, 0.5), (1.0,))
    with pytest.raises(InvalidInput, match="draw"):
        PictureTransform((0.5,), (1.0,), draw="picture")
    with pytest.raises(InvalidInput, match="padding"):
        PictureTransform((0.5,), (1.0,), padding=-1)


# ------------------------------------------------------------------------------------------------ Landmarks


def pillow(picture, box, size, mirror):
    top, left, rows, columns = (int(b) for b in box)
    crop = Image.fromarray(picture[top : top + rows, left : left + columns])
    resized = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
    return resized[:, ::-1] if mirror else resized


@pytest.mark.parametrize(("height", "width", "size"), [(256, 256, 224), (50, 80, 64), (40, 33, 16)])
def test_resampling_agrees_with_pillow(height, width, size):
    """Pillow rounds to whole grey levels twice, so one level apart is the same."""
    transform = LandmarksTransform(size=size)
    inputs = pictures(8, height, width, 3)
    out = transform.train(inputs, np.random.default_rng(5))
    assert out.shape == (8, 3, size, size)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    generator = np.random.default_rng(5)
    boxes = random_crops(8, height, width, generator)
    mirrors = generator.random(8) < 0.5
    assert mirrors.any()
    assert not mirrors.all()
    grey = (out.permute(0, 2, 3, 1) * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)) * 255
    for picture, box, mirror, mine in zip(inputs.numpy(), boxes, mirrors, grey.numpy(), strict=True):
        assert np.abs(mine - pillow(picture, box, size, mirror)).max() < 1.01


def test_the_centre_crop_is_the_middle_of_the_picture():
    inputs = pictures(3, 256, 300, 3)
    out = LandmarksTransform().test(inputs)
    middle = inputs[:, 16:240, 38:262].numpy()
    expected = torch.stack([normalised(p, IMAGENET_MEAN, IMAGENET_STD) for p in middle])
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-5)
    smaller = LandmarksTransform(size=32).test(inputs)
    grey = (smaller.permute(0, 2, 3, 1) * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)) * 255
    for picture, mine in zip(inputs.numpy(), grey.numpy(), strict=True):
        assert np.abs(mine - pillow(picture, (16, 38, 224, 224), 32, False)).max() < 1.01


@settings(deadline=None)
@given(height=st.integers(1, 300), width=st.integers(1, 300), seed=st.integers(0, 9))
def test_random_crops_lie_inside_and_keep_their_aspect(height, width, seed):
    top, left, rows, columns = random_crops(50, height, width, np.random.default_rng(seed)).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (rows >= 1).all()
    assert (columns >= 1).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()
    if min(height, width) > 100:  # rounding to whole pixels hides the aspect of small crops
        assert (columns / rows > 0.75 * 0.95).all()
        assert (columns / rows < 4 / 3 * 1.05).all()


def test_random_crops_have_torchvision_s_distribution():
    """Area uniform in [0.08, 1] given that it fits, aspect symmetric in the logarithm, corner uniform."""
    top, left, rows, columns = random_crops(40_000, 200, 200, np.random.default_rng(0)).T
    share = rows * columns / 200**2
    generator, accepted = np.random.default_rng(1), []
    while len(accepted) < 40_000:  # torchvision's loop, one crop at a time
        surface, aspect = generator.uniform(0.08, 1.0), np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3)))
        if max(surface * aspect, surface / aspect) <= 1:
            accepted.append(surface)
    assert np.quantile(share, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(accepted, [0.1, 0.5, 0.9]), abs=0.01)
    assert np.log(columns / rows).mean() == pytest.approx(0, abs=0.005)
    free = rows < 150
    assert (top[free] / (200 - rows[free])).mean() == pytest.approx(0.5, abs=0.01)
    assert (left[free] / (200 - columns[free])).mean() == pytest.approx(0.5, abs=0.02)


def test_a_long_strip_falls_back_to_its_middle():
    boxes = random_crops(4, 10, 1000, np.random.default_rng(0))
    assert boxes.tolist() == [[0, 493, 10, 13]] * 4
