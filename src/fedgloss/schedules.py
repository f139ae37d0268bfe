"""Numbers that depend on the round: a schedule is any function of the 0-based round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .errors import require

Schedule: TypeAlias = Callable[[int], float]
Scheduled: TypeAlias = float | Schedule
"""A hyper-parameter: a number, or a schedule of numbers."""


@dataclass(frozen=True)
class Constant:
    value: float

    def __call__(self, round: int) -> float:
        return self.value


@dataclass(frozen=True)
class WarmUp:
    """Linear from ``start`` in round 0 to ``value`` in round ``rounds``, constant from there on.

    The paper's schedule of the local rho (``start`` 0.001, ``rounds`` T_s); ``rounds=0`` is constant.

    >>> [round(WarmUp(0.2, rounds=4, start=0.0)(t), 3) for t in range(6)]
    [0.0, 0.05, 0.1, 0.15, 0.2, 0.2]
    """

    value: float
    rounds: int
    start: float = 0.001

    def __post_init__(self) -> None:
        require(self.rounds >= 0, "rounds", f"a warm-up lasts 0 or more rounds, got {self.rounds}")

    def __call__(self, round: int) -> float:
        if round >= self.rounds:
            return self.value
        return self.start + (self.value - self.start) * round / self.rounds


@dataclass(frozen=True)
class ReleasedServerRho:
    """The server rho that the authors' released code really uses (spec D3).

    Round 0 gets ``start``; rounds 1 to ``rounds`` get the *local* rho plus one increment of the
    intended ramp; only then does ``value`` begin.
    """

    value: float
    local: float
    rounds: int
    start: float = 0.001

    def __call__(self, round: int) -> float:
        if round > self.rounds or self.rounds == 0:
            return self.value
        if round == 0:
            return self.start
        return self.local + (self.value - self.start) / self.rounds


@dataclass(frozen=True)
class Cycle:
    """SWA's client learning rate: ``value`` before ``start``, then saw-teeth from it down to ``low``."""

    value: float
    low: float
    start: int
    length: int

    def __post_init__(self) -> None:
        require(self.length >= 1, "length", f"a cycle has at least one round, got {self.length}")

    def __call__(self, round: int) -> float:
        if round < self.start or self.length == 1:
            return self.value
        done = (round % self.length + 1) / self.length
        return (1 - done) * self.value + done * self.low


def at(value: Scheduled, round: int) -> float:
    """The value in a round of what is either a number or a schedule."""
    return value(round) if callable(value) else value


def check_scheduled(value: Scheduled, name: str, *, zero: bool = True) -> None:
    """Refuse, by name, what could not even start: a first value that is negative or not a number."""
    first = at(value, 0)
    least = "0 or more" if zero else "positive"
    ok = math.isfinite(first) and (first >= 0 if zero else first > 0)
    require(ok, name, f"must be {least}, got {first:g}")
