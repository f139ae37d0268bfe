"""From raw uint8 pictures to a network's input, a whole batch at a time.

Raw pictures lie as (batch, height, width, channels); what comes out is float32 of shape (batch, channels, height,
width) in channels-last memory, the order the fast convolutions read. All randomness comes from the generator handed
in, and how much is drawn depends on the number of pictures alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InvalidInput, require
from .federation import sent

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

CROP_AREA = (0.08, 1.0)  # share of the picture, and aspect, of a random resized crop: torchvision's defaults
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10


@dataclass(frozen=True)
class PictureTransform:
    """Random crop out of a zero-padded picture, random mirror image, normalisation: the CIFAR recipe.

    Zeros are padded *before* normalisation, so the border is black and not the mean colour. ``draw="batch"`` takes
    one crop and one mirror decision for the whole batch, a weaker augmentation that some published runs used.

    >>> transform = PictureTransform(mean=(0.5,), std=(0.5,), padding=1)
    >>> pictures = torch.full((2, 4, 4, 1), 255, dtype=torch.uint8)
    >>> transform.test(pictures).unique().round(decimals=6).tolist()
    [1.0]
    >>> transform.train(pictures, np.random.default_rng(0)).shape
    torch.Size([2, 1, 4, 4])
    """

    mean: Sequence[float]
    std: Sequence[float]
    padding: int = 4
    flip: bool = True
    draw: Literal["image", "batch"] = "image"

    def __post_init__(self) -> None:
        _check_constants(self.mean, self.std)
        require(self.padding >= 0, "padding", f"must be 0 or more, got {self.padding}")
        require(self.draw in ("image", "batch"), "draw", f"must be 'image' or 'batch', got {self.draw!r}")

    def train(self, inputs: Tensor, generator: np.random.Generator) -> Tensor:
        _check_pictures(inputs, len(self.mean))
        count, height, width, channels = inputs.shape
        draws = count if self.draw == "image" else 1
        corner = np.broadcast_to(generator.integers(2 * self.padding + 1, size=(draws, 2)), (count, 2))
        mirror = np.broadcast_to(generator.random(draws) < 0.5, count) if self.flip else np.zeros(count, bool)

        # Mirrored pictures are put behind the others: a few large copies instead of one for every picture.
        order = np.argsort(mirror, kind="stable")
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        plain = count - np.count_nonzero(mirror)
        sorted_inputs = inputs.index_select(0, _index(order, inputs))
        edge = self.padding
        padded = inputs.new_zeros(count, height + 2 * edge, width + 2 * edge, channels)
        inner = padded[:, edge : edge + height, edge : edge + width]
        inner[:plain] = sorted_inputs[:plain]
        # In this order of dimensions torch has a fast kernel for the mirror image of interleaved channels.
        inner[plain:] = sorted_inputs[plain:].permute(0, 3, 1, 2).flip(3).permute(0, 2, 3, 1)

        # Every crop of every padded picture as one overlapping view, so that a crop is one copied row of it.
        pixels = padded.shape[1] * padded.shape[2]
        first = place * pixels + corner[:, 0] * padded.shape[2] + corner[:, 1]
        windows = count * pixels - (height - 1) * padded.shape[2] - (width - 1)
        crops = padded.as_strided(
            (windows, height, width * channels), (channels, padded.shape[2] * channels, 1)
        ).index_select(0, _index(first, inputs))
        return _normalised(crops.view(inputs.shape), self.mean, self.std)

    def test(self, inputs: Tensor) -> Tensor:
        _check_pictures(inputs, len(self.mean))
        return _normalised(inputs, self.mean, self.std)


@dataclass(frozen=True)
class LandmarksTransform:
    """Random resized crop and mirror image for training, centre crop for test, both brought to ``size``.

    Crops are drawn as torchvision draws them (8 % to 100 % of the area, aspect 3:4 to 4:3, at most ten tries, then
    the largest centred crop). The centre crop is 7/8 of the shorter side: 224 of 256. Resampling is linear with a
    filter as wide as the reduction (antialiased, as Pillow does it), written as two matrix products a picture.
    """

    size: int = 224
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD

    def __post_init__(self) -> None:
        _check_constants(self.mean, self.std)
        require(self.size >= 1, "size", f"must be at least 1, got {self.size}")

    def train(self, inputs: Tensor, generator: np.random.Generator) -> Tensor:
        _check_pictures(inputs, len(self.mean))
        count, height, width, _ = inputs.shape
        boxes = random_crops(count, height, width, generator)
        return self._resampled(inputs, boxes, generator.random(count) < 0.5)

    def test(self, inputs: Tensor) -> Tensor:
        _check_pictures(inputs, len(self.mean))
        count, height, width, _ = inputs.shape
        side = max(1, round(min(height, width) * 7 / 8))
        top, left = (height - side) // 2, (width - side) // 2
        if side == self.size:
            return _normalised(inputs[:, top : top + side, left : left + side], self.mean, self.std)
        box = np.array([top, left, side, side])
        return self._resampled(inputs, np.tile(box, (count, 1)), np.zeros(count, bool))

    def _resampled(self, pictures: Tensor, boxes: npt.NDArray[np.int64], mirror: npt.NDArray[np.bool_]) -> Tensor:
        _, height, width, _ = pictures.shape
        top, left, rows, columns = _index(boxes, pictures).unbind(1)
        down = _resampling(top, rows, height, self.size)
        across = _resampling(left, columns, width, self.size)
        across = torch.where(_index(mirror, across)[:, None, None], across.flip(1), across)
        planes = pictures.permute(0, 3, 1, 2).contiguous().float()
        planes = down[:, None] @ planes @ across[:, None].mT
        scale, shift = _scale_and_shift(tuple(self.mean), tuple(self.std), 1, planes.device)
        planes.mul_(scale[:, None, None]).add_(shift[:, None, None])
        return planes.contiguous(memory_format=torch.channels_last)


def random_crops(count: int, height: int, width: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Boxes (top, left, height, width), one a picture, as torchvision's RandomResizedCrop draws them."""
    narrowest, widest = CROP_ASPECT
    surface = height * width * generator.uniform(*CROP_AREA, size=(count, CROP_TRIES))
    aspect = np.exp(generator.uniform(math.log(narrowest), math.log(widest), size=(count, CROP_TRIES)))
    columns = np.rint(np.sqrt(surface * aspect)).astype(np.int64)
    rows = np.rint(np.sqrt(surface / aspect)).astype(np.int64)
    fits = (columns >= 1) & (columns <= width) & (rows >= 1) & (rows <= height)
    chosen = np.arange(count), fits.argmax(1)
    found = fits.any(1)
    # No try fitted: the largest crop of an allowed aspect, in the middle.
    most_columns = min(width, max(1, round(height * widest)))
    most_rows = min(height, max(1, round(width / narrowest)))
    rows = np.where(found, rows[chosen], most_rows)
    columns = np.where(found, columns[chosen], most_columns)
    corner = generator.random((count, 2))
    top = np.where(found, corner[:, 0] * (height - rows + 1), (height - rows) // 2).astype(np.int64)
    left = np.where(found, corner[:, 1] * (width - columns + 1), (width - columns) // 2).astype(np.int64)
    return np.stack([top, left, rows, columns], axis=1)


def _resampling(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    """Matrices (count, size, source) that bring source[start : start + length] to ``size`` points, linearly.

    >>> _resampling(torch.tensor([1]), torch.tensor([2]), source=4, size=4)[0, 1].tolist()
    [0.0, 0.75, 0.25, 0.0]
    """
    start, length = start[:, None, None], length[:, None, None]
    step = length / size
    reach = step.clamp(min=1)  # a reduction averages over all it skips: no aliasing
    centre = start + (torch.arange(size, device=start.device)[:, None] + 0.5) * step
    position = torch.arange(source, device=start.device)
    weights = (position + 0.5 - centre).abs_().div_(-reach).add_(1).clamp_(min=0)
    weights.mul_((position >= start) & (position < start + length))
    return weights.div_(weights.sum(2, keepdim=True))


def _normalised(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    count, height, width, channels = pictures.shape
    # One constant per value of a picture, not per channel: the loop is then long and runs at full speed.
    scale, shift = _scale_and_shift(tuple(mean), tuple(std), height * width, pictures.device)
    flat = pictures.reshape(count, -1).float()
    torch.addcmul(shift, flat, scale, out=flat)
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)


@lru_cache(maxsize=16)  # made once a transform, not once a batch; nobody writes into it
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], times: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """``x * scale + shift`` is ``(x / 255 - mean) / std``; a value per channel, the row repeated so many times."""
    deviation = np.asarray(std)
    rows = np.tile([1 / (255 * deviation), -np.asarray(mean) / deviation], times).astype(np.float32)
    scale, shift = torch.from_numpy(rows).to(device)
    return scale, shift


def _index(indices: npt.NDArray[np.int64] | npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    return sent(torch.from_numpy(indices), like.device)


def _check_constants(mean: Sequence[float], std: Sequence[float]) -> None:
    require(len(mean) == len(std) > 0, "std", f"needs one value per channel, as mean: {len(mean)}, got {len(std)}")
    require(all(math.isfinite(m) for m in mean), "mean", f"must be finite, got {tuple(mean)}")
    require(all(s > 0 and math.isfinite(s) for s in std), "std", f"must be positive, got {tuple(std)}")


def _check_pictures(inputs: Tensor, channels: int) -> None:
    if inputs.dtype != torch.uint8 or inputs.ndim != 4 or inputs.shape[3] != channels:
        raise InvalidInput(
            f"pictures: must be uint8 of shape (batch, height, width, {channels}), "
            f"got {str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
        )
