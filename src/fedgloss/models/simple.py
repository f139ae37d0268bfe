"""Two networks for quick work, on inputs of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from ..errors import require
from .shapes import Shape, check_classes


def mlp(input_shape: Shape, classes: int, hidden: int | Sequence[int] = 200) -> nn.Module:
    """Linear layers with ReLU between: ``hidden`` is one width, or one for each hidden layer."""
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    whole = all(isinstance(w, int) and not isinstance(w, bool) and w >= 1 for w in widths)
    require(whole, "model mlp", f"hidden: must be widths of at least 1, got {hidden!r}")
    layers: list[nn.Module] = []
    inputs = _inputs("mlp", input_shape, classes)
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(inputs, classes))


def logistic(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: a convex problem."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_inputs("logistic", input_shape, classes), classes))


def _inputs(model: str, input_shape: Shape, classes: int) -> int:
    check_classes(model, classes)
    fits = len(input_shape) > 0 and min(input_shape) >= 1
    require(fits, f"model {model}", f"the input's shape must be of positive sizes, got {tuple(input_shape)}")
    return math.prod(input_shape)
