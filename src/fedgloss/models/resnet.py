"""ResNet18 with GroupNorm, which keeps no running statistics that clients would have to share."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import require
from .shapes import Shape, check_groups, picture

NAME = "resnet18-gn"


class ResNet18(nn.Module):
    """Eight residual blocks of two 3 x 3 convolutions, in four stages of 64 to 512 channels.

    ``stem="cifar"`` begins with one 3 x 3 convolution at full size, without a pool (11,173,962 weights for 3
    channels and 10 classes); ``stem="imagenet"`` with 7 x 7 at half size and a pool, which is what ImageNet weights
    fit. Names are torchvision's with ``norm`` for ``bn``; weights start as torchvision's do.
    """

    HEAD = "fc."

    def __init__(
        self,
        input_shape: Shape,
        classes: int,
        *,
        stem: Literal["cifar", "imagenet"] = "cifar",
        groups: int = 2,
    ) -> None:
        super().__init__()
        require(stem in ("cifar", "imagenet"), f"model {NAME}", f"stem: must be cifar or imagenet, got {stem!r}")
        halvings = 3 if stem == "cifar" else 5
        least = 2 ** (halvings - 1) + 1
        channels, _, _ = picture(NAME, input_shape, classes, least, f"stem={stem} halves them {halvings} times")
        check_groups(NAME, groups, 64)
        self.stem = stem
        size, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.conv1 = nn.Conv2d(channels, 64, size, stride=stride, padding=size // 2, bias=False)
        self.norm1 = nn.GroupNorm(groups, 64)
        self.layer1 = _stage(64, 64, stride=1, groups=groups)
        self.layer2 = _stage(64, 128, stride=2, groups=groups)
        self.layer3 = _stage(128, 256, stride=2, groups=groups)
        self.layer4 = _stage(256, 512, stride=2, groups=groups)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(pictures)), inplace=True)
        if self.stem == "imagenet":
            hidden = F.max_pool2d(hidden, 3, stride=2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            hidden = layer(hidden)
        outputs: Tensor = self.fc(hidden.mean((2, 3)))
        return outputs


def _stage(before: int, width: int, *, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        Block(before, width, stride=stride, groups=groups), Block(width, width, stride=1, groups=groups)
    )


class Block(nn.Module):
    """Two convolutions and a way around them, which a 1 x 1 convolution adapts where sizes change."""

    def __init__(self, before: int, width: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            around = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(around, nn.GroupNorm(groups, width))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)), inplace=True)
        hidden = self.norm2(self.conv2(hidden))
        around = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(hidden + around, inplace=True)
