"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .errors import InvalidInput, require
from .randomness import stream


class Sampling(Protocol):
    def check(self, population: int) -> None:
        """Refuse, before anything runs, a population this cannot sample from."""

    def cohort(self, population: int, seed: int, round: int) -> Sequence[int]: ...


@dataclass(frozen=True)
class ExactCohort:
    """Exactly ``size`` clients, uniformly without replacement (the paper's).

    >>> ExactCohort(3).cohort(population=10, seed=0, round=0)
    [6, 4, 7]
    """

    size: int

    def check(self, population: int) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise InvalidInput(f"cohort: must be a whole number of at least 1, got {self.size!r}")
        require(
            self.size <= population,
            "cohort",
            f"{self.size} clients a round asked of a federation of {population}",
        )

    def cohort(self, population: int, seed: int, round: int) -> Sequence[int]:
        chosen = stream(seed, "cohort", round).choice(population, self.size, replace=False)
        return [int(client) for client in chosen]


@dataclass(frozen=True)
class IndependentCohort:
    """Each client on its own with ``probability`` (FedDyn's and FL-Simulator's way); an empty draw is redrawn."""

    probability: float

    def check(self, population: int) -> None:
        ok = 0 < self.probability <= 1
        require(ok, "probability", f"must lie in (0, 1], got {self.probability}")

    def cohort(self, population: int, seed: int, round: int) -> Sequence[int]:
        generator = stream(seed, "cohort", round)
        while True:
            count = int(generator.binomial(population, self.probability))
            if count:
                chosen = generator.choice(population, count, replace=False)
                return [int(client) for client in np.sort(chosen)]
