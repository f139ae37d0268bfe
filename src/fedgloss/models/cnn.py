"""The paper's convolutional network for CIFAR."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .fourier import FourierConv2d
from .shapes import Shape, picture

LEAST = 16
"""Two valid 5 x 5 convolutions, each halved: 16 -> 12 -> 6 -> 2 -> 1."""


class Cnn(nn.Module):
    """Twice convolution (5 x 5, 64, no padding), ReLU, 2 x 2 max-pool; then linear layers of 384, 192 and classes.

    On 3 x 32 x 32 it has 797,962 weights for 10 classes and 815,332 for 100. Weights start as torch's own defaults.
    The pool comes before the ReLU: the same function, a quarter of the work.
    """

    def __init__(self, input_shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = picture("cnn", input_shape, classes, LEAST, "two 5 x 5 convolutions, each halved")
        self.conv1 = nn.Conv2d(channels, 64, 5)
        self.conv2 = FourierConv2d(64, 64, 5)
        self.fc1 = PictureLinear((64, _halved_twice(height), _halved_twice(width)), 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = F.relu(F.max_pool2d(self.conv1(pictures), 2))
        hidden = F.relu(F.max_pool2d(self.conv2(hidden), 2))
        hidden = F.relu(self.fc1(hidden))
        hidden = F.relu(self.fc2(hidden))
        outputs: Tensor = self.fc3(hidden)
        return outputs


def _halved_twice(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


class PictureLinear(nn.Module):
    """``Linear(Flatten(pictures))`` for pictures that lie channels-last in memory.

    The weight is kept as (outputs, channels, height, width). A ``Layout`` stores four-dimensional weights
    channels-last, so the weight's columns lie in the very order of the picture's values and neither is ever copied.
    Everywhere outside it is torch's own: drawn as ``Linear`` draws, and in a state dict, coming or going, of shape
    (outputs, channels * height * width).
    """

    def __init__(self, shape: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        drawn = nn.Linear(math.prod(shape), outputs)
        self.weight = nn.Parameter(drawn.weight.detach().view(outputs, *shape))
        self.bias = drawn.bias
        self.register_state_dict_post_hook(_to_torch)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_torch)  # type: ignore[no-untyped-call]

    def forward(self, pictures: Tensor) -> Tensor:
        rows = self.weight.permute(0, 2, 3, 1).flatten(1)
        return F.linear(pictures.permute(0, 2, 3, 1).flatten(1), rows, self.bias)


def _to_torch(module: nn.Module, state: MutableMapping[str, Any], prefix: str, _: Any) -> None:
    state[prefix + "weight"] = state[prefix + "weight"].flatten(1)


def _from_torch(module: nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any) -> None:
    assert isinstance(module, PictureLinear)
    weight = state.get(prefix + "weight")
    if weight is not None and weight.shape == module.weight.flatten(1).shape:
        state[prefix + "weight"] = weight.view(module.weight.shape)
