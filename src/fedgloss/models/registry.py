"""Networks by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import InvalidInput
from ..plugins import find
from .cnn import Cnn
from .mobilenet import MobileNetV2
from .resnet import ResNet18
from .shapes import Shape
from .simple import logistic, mlp


@dataclass(frozen=True)
class Model:
    """A network that can be asked for by name; ``make`` takes the input's shape, the number of classes, options."""

    make: Callable[..., nn.Module]
    summary: str


MODELS: Mapping[str, Model] = {
    "cnn": Model(Cnn, "the paper's CNN for CIFAR: two 5 x 5 convolutions, three linear layers"),
    "resnet18-gn": Model(ResNet18, "ResNet18 with GroupNorm; stem=cifar or imagenet, groups=2"),
    "mobilenetv2-gn": Model(MobileNetV2, "MobileNetV2 with GroupNorm; groups=8, width=1.0, dropout=0.0"),
    "mlp": Model(mlp, "linear layers with ReLU; hidden=200, or a list of widths"),
    "logistic": Model(logistic, "multinomial logistic regression, a convex problem"),
}


def build(name: str, input_shape: Shape, classes: int, **options: Any) -> nn.Module:
    """A network for inputs of this shape (without the batch) and so many classes, its weights drawn anew.

    ``name`` is one of ``MODELS``, or ``my_package:make_model``, a function that is called with the same arguments.

    >>> sum(p.numel() for p in build("cnn", (3, 32, 32), 10).parameters())
    797962
    """
    if name in MODELS:
        make = MODELS[name].make
        _check_options(name, make, options)
        return make(tuple(input_shape), classes, **options)
    if ":" not in name:
        near = difflib.get_close_matches(name, MODELS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(MODELS)}, and package:function"
        raise InvalidInput(f"model {name!r}: unknown; {hint}")
    module = _made(name, find(name, "model"), tuple(input_shape), classes, options)
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model {name!r}: made a {type(module).__name__}, must make a torch.nn.Module")
    return module


def _made(
    name: str, make: Callable[..., Any], input_shape: Shape, classes: int, options: Mapping[str, Any]
) -> object:
    try:
        inspect.signature(make).bind(input_shape, classes, **options)
    except TypeError as error:
        raise InvalidInput(
            f"model {name!r}: is called as {make.__name__}(input_shape, classes{', **options' * bool(options)}), "
            f"which it does not take ({error})"
        ) from error
    return make(input_shape, classes, **options)


def _check_options(name: str, make: Callable[..., nn.Module], options: Mapping[str, Any]) -> None:
    known = [p for p in inspect.signature(make).parameters if p not in ("input_shape", "classes")]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise InvalidInput(f"model {name}: unknown option {option!r}; {hint}")
