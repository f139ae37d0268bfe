"""Differential privacy of whole sites, off by default: clipped at the site, noised at the server, accounted for.

A site clips its delta as soon as training ends, so that its dual is moved by the very vector that it sends. The
noise is the server's own: it makes the server's dual differ from the mean of the sites' duals, by design.

What the accountant counts on: who takes part is drawn in secret, each site by itself, an empty draw being a draw
like any other; and nothing but noised sums leaves, not even the number of sites in them.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..algorithm import Algorithm, ClientTask, Dropped, UnreliableTransport, run_round
from ..errors import InvalidInput, require
from ..gradients import GradientRule
from ..local import Correction, LocalResult, LocalTraining
from ..messages import Broadcast, ServerState, Update
from ..sampling import IndependentCohort
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

    def spent(self, probability: float, releases: Iterable[int]) -> float:
        """The epsilon of draws that each led to so many noised sums; a site is in a draw with this probability.

        The sums of one draw have the same sites in them, so sampling protects them together, once: k sums are one
        with a noise smaller by the root of k.
        """
        try:
            from absl import logging as absl_logging
            from dp_accounting import dp_event
            from dp_accounting.rdp import RdpAccountant
        except ImportError as error:
            raise InvalidInput(
                f"privacy: needs other packages ({error}); pip install 'fedgloss[privacy]'"
            ) from None
        absl_logging.set_verbosity(absl_logging.ERROR)  # it warns of every order that it leaves out
        accountant: Any = RdpAccountant()
        for sums, draws in Counter(releases).items():
            sampled = dp_event.GaussianDpEvent(self.noise / math.sqrt(sums))
            accountant.compose(dp_event.PoissonSampledDpEvent(probability, sampled), draws)
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


def check_private(algorithm: Algorithm, state: ServerState, update: Update) -> None:
    """Refuse a method whose sites send more than what is clipped, or whose server needs what they no longer say."""
    others = sorted(set(update.vectors) - {"delta"})
    if others:
        raise InvalidInput(f"privacy: this method sends {', '.join(others)} too, which is not clipped")
    following = run_round(algorithm, state, [0], lambda broadcast, cohort: [anonymous(update)])
    if not all(vector.isfinite().all() for vector in following.vectors.values()):
        raise InvalidInput("privacy: this method divides by the sites' steps, which are not sent")


def anonymous(update: Update) -> Update:
    """An update that tells neither how much data a site has nor how well the model fits it."""
    return replace(update, size=1, scalars=dict.fromkeys(update.scalars, 0.0))


class SecretCohort:
    """Each site by itself with ``probability``, drawn from the system's own entropy, which no seed gives away.

    Every round asked for is a new draw, also one that is done again; ``draws`` counts them.
    """

    def __init__(self, probability: float) -> None:
        self.probability = probability
        self.draws = 0

    def check(self, population: int) -> None:
        IndependentCohort(self.probability).check(population)

    def expected(self, population: int) -> int:
        """How many sites a round has in the mean, rounded: fixed beforehand, so that it tells nothing."""
        return max(1, round(self.probability * population))

    def cohort(self, population: int, seed: int, round: int) -> Sequence[int]:
        self.draws += 1
        entropy = secrets.SystemRandom()
        return [site for site in range(population) if entropy.random() < self.probability]


class Noised:
    """A transport out of which comes one thing, the noised sum of the updates, as ``count`` updates of equal parts.

    ``count`` is fixed, however many sites answered: a mean over those who did would give their number away.
    ``released`` is called before a sum leaves. The noise is drawn from the system's own entropy.
    """

    def __init__(
        self, transport: UnreliableTransport, privacy: Privacy, count: int, released: Callable[[int], None]
    ) -> None:
        self._transport = transport
        self._deviation = privacy.noise * privacy.clip
        self._count = count
        self._released = released
        self._generator = np.random.Generator(np.random.PCG64(secrets.randbits(256)))

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update | Dropped]:
        params = broadcast["params"]
        total = torch.from_numpy(self._generator.normal(0.0, self._deviation, params.numel()))
        for update in self._transport(broadcast, cohort):
            if isinstance(update, Dropped):
                yield update
            else:
                total += update["delta"].double()
        self._released(broadcast.round)
        part = Update({"delta": (total / self._count).to(params.dtype)}, 1, {"loss": 0.0})
        for _ in range(self._count):
            yield part
