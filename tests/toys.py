"""Small problems the tests share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from fedgloss import Federation, Problem
from fedgloss.algorithm import Algorithm, ClientTask
from fedgloss.gradients import GradientRule
from fedgloss.local import Correction, LocalResult
from fedgloss.messages import ServerState
from fedgloss.sampling import ExactCohort
from fedgloss.testing import Quadratics
from fedgloss.transports import MemoryStore
from fedgloss.vectors import Entry, Layout, Vector


def path(
    toy: Quadratics,
    algorithm: Algorithm,
    rounds: int,
    *,
    cohort: int | None = None,
    store: MemoryStore | None = None,
) -> list[ServerState]:
    """The server's states of so many rounds, the initial one first."""
    sampling = ExactCohort(cohort or toy.population)
    return list(islice(toy.rounds(algorithm, sampling=sampling, store=store), rounds + 1))


def same_path(one: Sequence[ServerState], other: Sequence[ServerState], *names: str) -> bool:
    """Equal to 1e-12 relative in every round, for the named vectors."""
    return all(close(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in names)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-12) -> bool:
    scale = max(float(one.norm()), float(other.norm()), 1e-300)
    return float((one - other).norm()) <= tolerance * scale


@dataclass(frozen=True)
class ExactLocal:
    """Solves a quadratic client's corrected problem exactly, where ``LocalTraining`` would walk."""

    def run(
        self,
        start: Vector,
        task: ClientTask,
        round: int,
        gradient: GradientRule,
        correction: Correction = Correction(),
    ) -> LocalResult:
        identity = torch.eye(len(start), dtype=start.dtype)
        shift = torch.zeros_like(start) if correction.shift is None else correction.shift
        curvature = task.hessian + correction.pull * identity
        end = torch.linalg.solve(curvature, task.hessian @ task.centre - shift)
        return LocalResult(end - start, {"steps": 1.0, "lr_sum": 1.0, "loss": 0.0})


@dataclass(frozen=True)
class LinearTask:
    """A constant gradient: every client pulls the same way, for ever."""

    slope: Vector
    size: int = 1
    name: str = "weight"

    @property
    def layout(self) -> Layout:
        return Layout((Entry(self.name, (len(self.slope),), 0),), self.slope.dtype)

    def batches(self, batch_size: int, epochs: int) -> Iterator[None]:
        yield from [None] * epochs

    def gradient(self, params: Vector, batch: None) -> Vector:
        return self.slope.clone()

    def mean_loss(self) -> float:
        return 0.0


def blobs(
    *, clients: int = 6, per_client: int = 20, classes: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Federation:
    """Gaussian blobs in the plane-and-a-bit, one or two classes per client, with a balanced test set."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, 5)) * 2
    labels = np.concatenate([np.full(per_client, k % classes) for k in range(clients)])
    inputs = centres[labels] + generator.normal(size=(len(labels), 5))
    test_labels = np.arange(60) % classes
    test_inputs = centres[test_labels] + generator.normal(size=(60, 5))
    parts = [list(range(k * per_client, (k + 1) * per_client)) for k in range(clients)]
    return Federation.from_arrays(
        torch.from_numpy(inputs).to(dtype),
        labels,
        clients=parts,
        test=(torch.from_numpy(test_inputs).to(dtype), test_labels),
    )


def small_network(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def blob_problem(**kwargs: object) -> Problem:
    return Problem(blobs(**kwargs), small_network)  # type: ignore[arg-type]
