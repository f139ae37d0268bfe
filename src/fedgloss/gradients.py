"""Gradient rules: which direction a local step starts from, before decay and corrections.

A rule is a value handed to an algorithm. It sees the loss alone: neither weight decay nor a dual enters
an ascent (spec 0.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .algorithm import ClientTask
from .errors import require
from .schedules import Scheduled, at, check_scheduled
from .vectors import Vector, unit


class GradientRule(Protocol):
    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        """A new vector, the caller's to change."""


@dataclass(frozen=True)
class Plain:
    """The gradient itself: SGD."""

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        return task.gradient(params, batch)


@dataclass(frozen=True)
class Sam:
    """Sharpness-aware: the gradient at the top of a small climb, ``g(w + rho unit(g(w)))``."""

    rho: Scheduled

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        ascent = at(self.rho, round) * unit(task.gradient(params, batch))
        return task.gradient(params + ascent, batch)


@dataclass(frozen=True)
class Asam:
    """Adaptive SAM: the climb is measured relative to each weight's size; biases count plainly.

    Defaults from the FedASAM scripts for CIFAR-10.
    """

    rho: Scheduled = 0.7
    offset: float = 0.2

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        require(self.offset >= 0, "offset", f"must be 0 or more, got {self.offset}")

    def ascent(self, params: Vector, gradient: Vector, task: ClientTask, round: int) -> Vector:
        scale = torch.where(task.layout.weight_mask(params.device), params.abs() + self.offset, 1.0).to(
            params.dtype
        )
        return at(self.rho, round) * scale * unit(scale * gradient)

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        gradient = task.gradient(params, batch)
        return task.gradient(params + self.ascent(params, gradient, task, round), batch)


@dataclass(frozen=True)
class Mixed:
    """FedSpeed's blend ``(1 - mix) g(w) + mix g(w + ascent)``.

    ``normalise=False`` climbs by ``rho * g`` itself, as FedSpeed's own Algorithm 1 writes it.
    """

    rho: Scheduled
    mix: float = 0.95
    normalise: bool = True

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        require(0 <= self.mix <= 1, "mix", f"must lie in [0, 1], got {self.mix}")

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        plain = task.gradient(params, batch)
        ascent = at(self.rho, round) * (unit(plain) if self.normalise else plain)
        return plain.mul_(1 - self.mix).add_(task.gradient(params + ascent, batch), alpha=self.mix)


@dataclass(frozen=True)
class Ahead:
    """The gradient at a fixed offset from the current point: FedLESAM's climb, set once a round."""

    offset: Vector

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        return task.gradient(params + self.offset, batch)


@dataclass
class PreviousGradientSam:
    """SAM~: climbs along the *previous* step's gradient, so one evaluation a step. Lives for one exchange."""

    rho: Scheduled
    previous: Vector = field(repr=False)

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        ascent = at(self.rho, round) * unit(self.previous)
        self.previous = task.gradient(params + ascent, batch)
        return self.previous.clone()
