"""The loss on the straight line through two models, and the barrier between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import InvalidInput, require
from ..tasks import Loss
from ..vectors import Layout, Vector
from .mean_loss import Data, MeanLoss, Subject
from .results import Interrupted, Progress


@dataclass(frozen=True)
class Interpolation:
    """Means at ``(1 - c) * first + c * second`` for each coefficient c: 0 is the first model, 1 the second.

    ``curves`` holds the loss and each metric.
    """

    coefficients: tuple[float, ...]
    curves: Mapping[str, tuple[float, ...]]
    subject: Subject

    def __post_init__(self) -> None:
        fits = all(len(curve) == len(self.coefficients) for curve in self.curves.values())
        require(fits, "curves", f"must be of the {len(self.coefficients)} coefficients")

    @property
    def loss(self) -> tuple[float, ...]:
        return self.curves["loss"]

    @property
    def barrier(self) -> float:
        """How far, between the models, the loss rises above the straight line between their losses; at least 0.

        NaN where an end was not measured, infinity where the loss goes beyond all numbers on the way.
        """
        between = {c: loss for c, loss in zip(self.coefficients, self.loss, strict=True) if 0 <= c <= 1}
        if not {0.0, 1.0} <= set(between):
            return math.nan
        if not all(map(math.isfinite, between.values())):
            return math.inf
        return max(loss - ((1 - c) * between[0.0] + c * between[1.0]) for c, loss in between.items())


def interpolate(
    first: nn.Module,
    second: nn.Module,
    loss: Loss,
    data: Data,
    *,
    points: int = 31,
    start: float = -1.0,
    stop: float = 2.0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Interpolation:
    """The loss on the line through two plain networks of one architecture, and a little beyond them.

    >>> import torch
    >>> one, other, inputs = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False), torch.eye(2)
    >>> _ = one.weight.data.fill_(1.0), other.weight.data.fill_(-1.0)
    >>> def bowl(outputs, targets):  # lowest at +1 and -1, with a hill between
    ...     return (1 - outputs**2).square().mean()
    >>> found = interpolate(one, other, bowl, (inputs, torch.zeros(2)), points=5, start=0, stop=1)
    >>> found.coefficients, found.loss
    ((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5625, 1.0, 0.5625, 0.0))
    >>> found.barrier
    1.0
    """
    layout, other = Layout.of(first), Layout.of(second)
    if layout.fingerprint != other.fingerprint:
        raise InvalidInput("second: its parameters differ from the first model's in name, shape or type")
    if (name := _differs(first, second)) is not None:
        raise InvalidInput(
            f"second: {name!r} is not trained, and differs from the first model's: no mix of trained parameters "
            "leads from one to the other; make it equal, or set requires_grad where it is a parameter"
        )
    mean_loss = MeanLoss(first, loss, data, workers=workers)
    return interpolation(
        mean_loss,
        mean_loss.params,
        other.flatten(second).cpu(),
        points=points,
        start=start,
        stop=stop,
        progress=progress,
    )


def interpolation(
    loss: MeanLoss,
    first: Vector,
    second: Vector,
    *,
    points: int = 31,
    start: float = -1.0,
    stop: float = 2.0,
    weights: str = "models",
    known: Interpolation | None = None,
    progress: Progress | None = None,
) -> Interpolation:
    """The means at ``points`` evenly spaced places; the two models' own places, 0 and 1, are always among them.

    Places that ``known``, an earlier result of the same models and data, holds already are not computed again.
    """
    require(points >= 2, "points", f"must be at least 2, got {points}")
    require(math.isfinite(start) and math.isfinite(stop) and start < stop, "start", f"{start} must be below {stop}")
    first, second = first.cpu(), second.cpu()  # not every device has float64
    loss.check(first, "first weights")
    loss.check(second, "second weights")
    even = {round(start + (stop - start) * i / (points - 1), 12) for i in range(points)}
    coefficients = sorted(even | {end for end in (0.0, 1.0) if start <= end <= stop})
    found: list[dict[str, float]] = []
    before = {} if known is None else _by_place(known)

    def result() -> Interpolation:
        curves = {name: tuple(means[name] for means in found) for name in found[0]}
        return Interpolation(tuple(coefficients[: len(found)]), curves, loss.subject(weights))

    try:
        for c in coefficients:
            mixed = (1 - c) * first.double() + c * second.double()
            found.append(before.get(c) or loss.evaluate(mixed.to(first.dtype)))
            if progress is not None:
                progress(len(found), len(coefficients))
    except KeyboardInterrupt:
        raise Interrupted(result() if found else None) from None
    return result()


def _differs(first: nn.Module, second: nn.Module) -> str | None:
    """The name of a buffer or frozen parameter that the two do not share."""
    one, other = _untrained(first), _untrained(second)
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or not torch.equal(one[name], other[name]):
            return name
    return None


def _untrained(module: nn.Module) -> dict[str, Tensor]:
    named = (*module.named_buffers(), *module.named_parameters())
    return {name: tensor.cpu() for name, tensor in named if not tensor.requires_grad}


def _by_place(known: Interpolation) -> dict[float, dict[str, float]]:
    return {
        place: {name: curve[index] for name, curve in known.curves.items()}
        for index, place in enumerate(known.coefficients)
    }
