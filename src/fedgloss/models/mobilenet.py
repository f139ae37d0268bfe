"""MobileNetV2 with GroupNorm, which keeps no running statistics that clients would have to share."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import require
from .shapes import Shape, check_groups, picture

NAME = "mobilenetv2-gn"
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first block: table 2 of the MobileNetV2 paper."""


class MobileNetV2(nn.Module):
    """Inverted residual blocks; layers and their names are torchvision's, and weights start as torchvision's do.

    ``width`` scales the number of channels, ``dropout`` acts before the last layer.
    """

    HEAD = "classifier."

    def __init__(
        self, input_shape: Shape, classes: int, *, groups: int = 8, width: float = 1.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        channels, _, _ = picture(NAME, input_shape, classes, 17, "it halves them 5 times")
        check_groups(NAME, groups, 8)  # all layers have a multiple of 8 channels
        require(width > 0, f"model {NAME}", f"width: must be positive, got {width!r}")
        require(0 <= dropout < 1, f"model {NAME}", f"dropout: must lie in [0, 1), got {dropout!r}")
        before = _multiple_of_8(32 * width)
        layers: list[nn.Module] = [_convolution(channels, before, 3, stride=2, groups=groups)]
        for expansion, base, blocks, stride in STAGES:
            after = _multiple_of_8(base * width)
            for block in range(blocks):
                layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1, groups))
                before = after
        last = _multiple_of_8(1280 * max(1.0, width))
        layers.append(_convolution(before, last, 1, groups=groups))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, pictures: Tensor) -> Tensor:
        outputs: Tensor = self.classifier(self.features(pictures).mean((2, 3)))
        return outputs


class InvertedResidual(nn.Module):
    """Expand by a 1 x 1 convolution, filter each channel by 3 x 3, project back; added to the input if it fits."""

    def __init__(self, before: int, after: int, expansion: int, stride: int, groups: int) -> None:
        super().__init__()
        self.adds = stride == 1 and before == after
        hidden = before * expansion
        layers = [] if expansion == 1 else [_convolution(before, hidden, 1, groups=groups)]
        layers += [
            _convolution(hidden, hidden, 3, stride=stride, groups=groups, depthwise=True),
            nn.Conv2d(hidden, after, 1, bias=False),
            nn.GroupNorm(groups, after),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.adds else outputs


def _convolution(
    before: int, after: int, size: int, *, groups: int, stride: int = 1, depthwise: bool = False
) -> nn.Module:
    convolution = nn.Conv2d(
        before, after, size, stride=stride, padding=size // 2, groups=before if depthwise else 1, bias=False
    )
    return nn.Sequential(convolution, nn.GroupNorm(groups, after), nn.ReLU6(inplace=True))


def _multiple_of_8(channels: float) -> int:
    """The nearest multiple of 8, but not more than a tenth below."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
