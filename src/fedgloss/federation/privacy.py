"""Differential privacy of whole sites, off by default: clipped at the site, noised at the server, accounted for.

A site clips its delta as soon as training ends, so that its dual is moved by the very vector that it sends. The
noise is the server's own: it makes the server's dual differ from the mean of the sites' duals, by design.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..algorithm import ClientTask, Dropped, UnreliableTransport
from ..errors import InvalidInput, require
from ..gradients import GradientRule
from ..local import Correction, LocalResult, LocalTraining
from ..messages import Broadcast, Update
from ..vectors import Vector


@dataclass(frozen=True)
class Privacy:
    """``clip`` bounds what one site can add to a sum; the noise on the sum has the deviation ``noise * clip``."""

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"privacy.{name}", f"must be positive, got {value}")
        require(0 < self.delta < 1, "privacy.delta", f"must lie in (0, 1), got {self.delta}")

    def clipped(self, local: LocalTraining) -> ClippedTraining:
        return ClippedTraining(**{name: getattr(local, name) for name in _FIELDS}, bound=self.clip)

    def spent(self, probability: float, releases: int) -> float:
        """The epsilon of so many noised sums, each site having been drawn on its own with this probability."""
        try:
            from dp_accounting import dp_event
            from dp_accounting.rdp import RdpAccountant
        except ImportError as error:
            raise InvalidInput(
                f"privacy: needs other packages ({error}); pip install 'fedgloss[privacy]'"
            ) from None
        accountant: Any = RdpAccountant()
        event = dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(self.noise))
        accountant.compose(event, releases)
        return float(accountant.get_epsilon(self.delta))


@dataclass(frozen=True)
class ClippedTraining(LocalTraining):
    """Local training whose delta is no longer than ``bound``: what a site sends, and what it moves its dual by."""

    bound: float = 1.0

    def run(
        self,
        start: Vector,
        task: ClientTask,
        round: int,
        gradient: GradientRule,
        correction: Correction = Correction(),
        momentum: Vector | None = None,
    ) -> LocalResult:
        result = super().run(start, task, round, gradient, correction, momentum)
        length = torch.linalg.vector_norm(result.delta)
        return replace(result, delta=result.delta * torch.clamp(self.bound / (length + 1e-12), max=1.0))


_FIELDS = ("lr", "epochs", "batch_size", "weight_decay", "momentum", "clip")


def check_private(update: Update) -> None:
    """Only what is clipped may leave a site."""
    others = sorted(set(update.vectors) - {"delta"})
    if others:
        raise InvalidInput(f"privacy: this method sends {', '.join(others)} too, which is not clipped")


def anonymous(update: Update) -> Update:
    """An update that tells neither how much data a site has nor how well the model fits it."""
    check_private(update)
    return replace(update, size=1, scalars=dict.fromkeys(update.scalars, 0.0))


class Noised:
    """A transport whose updates' sum carries the noise, drawn from the system's own entropy."""

    def __init__(self, transport: UnreliableTransport, privacy: Privacy) -> None:
        self._transport = transport
        self._deviation = privacy.noise * privacy.clip
        self._generator = np.random.Generator(np.random.PCG64(secrets.randbits(256)))

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update | Dropped]:
        noised = False
        for update in self._transport(broadcast, cohort):
            if isinstance(update, Update) and not noised:
                noised = True
                delta = update["delta"]
                noise = torch.from_numpy(self._generator.normal(0.0, self._deviation, delta.numel()))
                yield replace(update, vectors={"delta": (delta.double() + noise).to(delta.dtype)})
            else:
                yield update
