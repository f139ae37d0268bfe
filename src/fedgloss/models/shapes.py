"""Checks that the networks share: does a picture of this size, with so many classes, make sense?"""

from __future__ import annotations

from ..errors import InvalidInput, require

Shape = tuple[int, ...]


def picture(model: str, input_shape: Shape, classes: int, least: int, why: str) -> tuple[int, int, int]:
    """(channels, height, width), or an error that says what would work."""
    check_classes(model, classes)
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise InvalidInput(
            f"model {model}: takes pictures, an input of (channels, height, width), got {tuple(input_shape)}; "
            "mlp and logistic take any shape"
        )
    channels, height, width = input_shape
    if min(height, width) < least:
        raise InvalidInput(
            f"model {model}: pictures of {height} x {width} are too small ({why}): it takes {least} x {least} "
            "and larger; mlp and logistic take any size"
        )
    return channels, height, width


def check_classes(model: str, classes: int) -> None:
    fits = isinstance(classes, int) and classes >= 2
    require(fits, f"model {model}", f"needs at least 2 classes to tell apart, got {classes!r}")


def check_groups(model: str, groups: int, channels: int) -> None:
    """Every norm layer's channels, whose greatest common divisor is ``channels``, must fall into equal groups."""
    possible = [g for g in range(1, channels + 1) if channels % g == 0]
    if groups not in possible or isinstance(groups, bool):
        raise InvalidInput(
            f"model {model}: groups: must divide the channels of every norm layer: "
            f"{', '.join(map(str, possible))}; got {groups!r}"
        )
