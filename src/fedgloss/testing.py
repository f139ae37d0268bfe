"""For whoever writes an algorithm: a toy problem with a known answer, and the laws every method must obey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .algorithm import Algorithm, run_round
from .messages import Purpose, ServerState
from .sampling import ExactCohort, Sampling
from .transports import ClientStore, MemoryStore, SerialTransport
from .vectors import Entry, Layout, Vector


@dataclass(frozen=True)
class QuadraticTask:
    """``f(w) = (w - centre)' hessian (w - centre) / 2``: one full batch an epoch, so epochs are steps."""

    hessian: Vector
    centre: Vector
    size: int

    @property
    def layout(self) -> Layout:
        return Layout((Entry("weight", (len(self.centre),), 0),), self.centre.dtype)

    def batches(self, batch_size: int, epochs: int) -> Iterator[None]:
        yield from [None] * epochs

    def gradient(self, params: Vector, batch: None) -> Vector:
        return self.hessian @ (params - self.centre)

    def mean_loss(self) -> float:
        return 0.0


class Quadratics:
    """A federation of heterogeneous quadratics in float64, whose global minimiser is known exactly.

    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> sum(t.gradient(toy.optimum, None) for t in map(toy.task, range(4))).norm() < 1e-12
    tensor(True)
    """

    def __init__(
        self,
        clients: int,
        dimension: int,
        seed: int,
        *,
        sizes: Sequence[int] | None = None,
        spread: float = 1.0,
    ) -> None:
        generator = np.random.default_rng(seed)
        roots = generator.normal(size=(clients, dimension, dimension)) / np.sqrt(dimension)
        hessians = roots @ roots.transpose(0, 2, 1) + 0.2 * np.eye(dimension)
        self.hessians = torch.from_numpy(hessians)
        self.centres = torch.from_numpy(spread * generator.normal(size=(clients, dimension)))
        self.sizes = list(sizes or [1] * clients)
        self.start = torch.zeros(dimension, dtype=torch.float64)

    @property
    def population(self) -> int:
        return len(self.sizes)

    @property
    def optimum(self) -> Vector:
        """The minimiser of the uniform mean of the clients' losses."""
        pulls = torch.einsum("kij,kj->i", self.hessians, self.centres)
        optimum: Vector = torch.linalg.solve(self.hessians.sum(0), pulls)
        return optimum

    def task(self, client: int, round: int = 0, purpose: Purpose = "train") -> QuadraticTask:
        return QuadraticTask(self.hessians[client], self.centres[client], self.sizes[client])

    def rounds(
        self,
        algorithm: Algorithm,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        store: ClientStore | None = None,
        state: ServerState | None = None,
    ) -> Iterator[ServerState]:
        """The server's states, without end: the initial one first."""
        sampling = sampling or ExactCohort(self.population)
        transport = SerialTransport(algorithm, self.task, MemoryStore() if store is None else store)
        state = state or algorithm.init_server(self.start, self.population)
        while True:
            yield state
            cohort = sampling.cohort(self.population, seed, state.round)
            state = run_round(algorithm, state, cohort, transport)

    def run(
        self,
        algorithm: Algorithm,
        rounds: int,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        store: ClientStore | None = None,
    ) -> ServerState:
        """The server's state after so many rounds."""
        states = self.rounds(algorithm, sampling=sampling, seed=seed, store=store)
        return next(state for state in states if state.round == rounds)

    def distance(self, state: ServerState) -> float:
        """How far the evaluated model is from the global minimiser."""
        return float(torch.linalg.vector_norm(state.evaluated - self.optimum))
