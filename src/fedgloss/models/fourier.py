"""Convolution with a large kernel through the discrete Fourier transform, written as matrix products.

A 5 x 5 convolution of a small picture takes 25 products for each output; in the frequency domain it takes about 3.
The transforms are products with fixed matrices, so all of it runs at the speed of matrix products, forwards and
backwards, and can be differentiated as often as one likes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from .products import product

LARGEST = 32
"""Longer sides are convolved directly: transforms by matrices grow with the third power of the side."""


class FourierConv2d(nn.Conv2d):
    """``Conv2d`` without padding or stride: the same weights, and the same function but for rounding.

    On other devices than the CPU, for large pictures and in lower precision it is torch's own convolution.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel)

    def forward(self, pictures: Tensor) -> Tensor:
        if pictures.device.type != "cpu" or max(pictures.shape[2:]) > LARGEST or torch.is_autocast_enabled("cpu"):
            return super().forward(pictures)
        assert self.bias is not None
        return convolved(pictures, self.weight) + self.bias.view(-1, 1, 1)


def convolved(pictures: Tensor, weight: Tensor) -> Tensor:
    """``conv2d(pictures, weight)``, channels-last in memory."""
    count, inputs, height, width = pictures.shape
    outputs, _, kernel, _ = weight.shape
    tall, wide = height - kernel + 1, width - kernel + 1
    by = _transforms(height, width, kernel, pictures.dtype)
    half = height // 2 + 1
    # frequencies, then pictures, then channels: every product finds its factors as the one before it left them
    rows = product(by.rows, pictures.permute(2, 3, 0, 1).reshape(height, -1))
    spectrum = product(by.columns, rows.view(half, 2 * width, -1)).view(-1, count, inputs)
    kernels = product(by.kernel, weight.permute(2, 3, 1, 0).reshape(kernel**2, -1)).view(-1, inputs, outputs)
    products = product(spectrum, kernels)
    columns = product(by.back_columns, products.view(half, 3 * width, -1))
    found = product(by.back_rows, columns.view(2 * half, -1)).view(tall, wide, count, outputs)
    return found.permute(2, 0, 1, 3).contiguous().permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _Transforms:
    """There and back for one size, each the matrix that its name says.

    A complex product (a + ib)(c + id) is made of ac, bd and (a + b)(c + d): so spectra hold the real part, the
    imaginary part and their sum, and the way back puts the three products together.
    """

    rows: Tensor
    """Down the rows: the half of a real transform that says it all, real and imaginary part of each frequency."""
    columns: Tensor
    """Along the columns, of complex numbers, to the three parts."""
    kernel: Tensor
    """Of kernels, in both directions at once and conjugated: networks correlate where mathematics convolves."""
    back_columns: Tensor
    """From the three products to complex numbers, only where the kernel does not reach over the edge."""
    back_rows: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for training, whoever asks first
def _transforms(height: int, width: int, kernel: int, dtype: torch.dtype) -> _Transforms:
    def angles(frequencies: int, side: int) -> Tensor:
        return (
            2 * math.pi / side * torch.outer(*(torch.arange(n, dtype=torch.float64) for n in (frequencies, side)))
        )

    half, tall, wide = height // 2 + 1, height - kernel + 1, width - kernel + 1
    down, along = angles(half, height), angles(width, width)
    cos, sin = along.cos(), along.sin()
    real, imaginary = torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)
    taps = torch.einsum("fh,gw->fghw", *(torch.exp(1j * a[:, :kernel]) for a in (down, along))).flatten(2)
    # of the frequencies left out, each is the mirror of one that is there
    twice = [1.0 if 2 * frequency in (0, height) else 2.0 for frequency in range(half)]
    mirrored = torch.tensor(twice, dtype=torch.float64, device="cpu")
    back = torch.stack([down.cos(), -down.sin()], 1) * mirrored[:, None, None] / (height * width)
    cos, sin = cos[:wide], sin[:wide]
    made = (
        torch.stack([down.cos(), -down.sin()], 1).flatten(0, 1),
        torch.cat([real, imaginary, real + imaginary]),
        torch.stack([taps.real, taps.imag, taps.real + taps.imag], 1).flatten(0, 2),
        torch.cat([torch.cat([cos + sin, sin - cos, -sin], 1), torch.cat([sin - cos, -cos - sin, cos], 1)]),
        back.flatten(0, 1).T[:tall],
    )
    return _Transforms(*(matrix.to(dtype).contiguous() for matrix in made))
