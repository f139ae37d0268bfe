"""All clients on this machine: in this process, or in a pool of workers, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias

from ..algorithm import Algorithm, Transport
from ..compute import available_cores, compute_threads, freed_memory_kept
from ..data import Federation
from ..errors import InvalidInput
from ..tasks import Metric, Objective, Problem, SampleSet, client_tasks, evaluate, samples_of
from ..vectors import Vector
from .client_store import ClientStore
from .pool import PoolTransport
from .serial import SerialTransport

Workers: TypeAlias = int | Literal["auto"]
"""How many processes train clients; ``auto`` is one per physical core that this process may use."""


class Evaluate(Protocol):
    def __call__(self, params: Vector, sets: Sequence[SampleSet]) -> list[dict[str, float]]:
        """The means of loss and metrics over each of the sets."""


@dataclass(frozen=True)
class Simulation:
    """Where clients train and models are evaluated."""

    transport: Transport
    evaluate: Evaluate
    workers: int


def usable_workers(workers: Workers, device: str = "cpu") -> int:
    """The number of workers meant; an accelerator is kept busy by one."""
    if workers == "auto":
        return available_cores() if device == "cpu" else 1
    if not isinstance(workers, int) or workers < 1:
        raise InvalidInput(f"workers: must be 'auto' or a whole number of at least 1, got {workers!r}")
    return workers


@contextmanager
def open_simulation(
    algorithm: Algorithm,
    problem: Problem,
    objective: Objective,
    store: ClientStore,
    *,
    seed: int,
    workers: Workers = 1,
    threads: int = 1,
) -> Iterator[Simulation]:
    """Open what carries broadcasts to clients. One worker is this process; more are processes of their own.

    The bits depend on ``threads``, the compute threads of a client, but not on ``workers``.
    """
    count = usable_workers(workers, problem.device)
    with compute_threads(threads), freed_memory_kept():
        if count > 1:
            with PoolTransport(algorithm, problem, objective, store, seed=seed, workers=count) as pool:
                yield Simulation(pool, pool.evaluate, count)
        else:
            federation = problem.federation.to(objective.device)
            serial = SerialTransport(algorithm, client_tasks(objective, federation, seed), store)
            yield Simulation(serial, partial(_evaluate_here, objective, federation, problem.metrics), 1)


def _evaluate_here(
    objective: Objective,
    federation: Federation,
    metrics: Mapping[str, Metric],
    params: Vector,
    sets: Sequence[SampleSet],
) -> list[dict[str, float]]:
    return [evaluate(objective, params, samples_of(federation, which), federation, metrics) for which in sets]
