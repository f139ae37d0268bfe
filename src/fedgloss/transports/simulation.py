"""Where all clients run: in this process, in a pool of workers, or on a Ray cluster, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Literal, Protocol, TypeAlias

from ..algorithm import Algorithm, UnreliableTransport
from ..compute import USUALLY_KEPT, available_cores, compute_threads, freed_memory_kept
from ..data import Federation
from ..errors import InvalidInput
from ..precision import try_bfloat16
from ..tasks import Metric, Objective, Problem, SampleSet, client_tasks, evaluate, samples_of
from ..vectors import Vector
from .client_store import ClientStore
from .pool import PoolTransport
from .schedule import OnFailure
from .serial import SerialTransport

Workers: TypeAlias = int | Literal["auto"]
"""How many processes train clients; ``auto`` is one per physical core that this process may use."""


TransportName: TypeAlias = Literal["local", "ray"]
"""Where these processes are: all on this machine, or on a Ray cluster."""


class Evaluate(Protocol):
    def __call__(self, params: Vector, sets: Sequence[SampleSet]) -> list[dict[str, float]]:
        """The means of loss and metrics over each of the sets."""


@dataclass(frozen=True)
class Simulation:
    """Where clients train and models are evaluated."""

    transport: UnreliableTransport
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
    transport: TransportName = "local",
    address: str = "auto",
    on_failure: OnFailure = "redo",
) -> Iterator[Simulation]:
    """Open what carries broadcasts to clients. One local worker is this process; more are processes of their own.
    On Ray every worker is an actor, ``auto`` as many as the cluster at ``address`` has room for.

    The bits depend on ``threads``, the compute threads of a client, but not on where the clients run. A client
    whose worker died is trained again, unless ``on_failure`` says otherwise. bfloat16 on a CPU is left to workers
    in any case: they can be told which instructions to use, and the run survives them.
    """
    count = usable_workers(workers, problem.device)
    apart = problem.precision == "bfloat16" and problem.device == "cpu"
    environment = try_bfloat16().environment if apart else None
    elsewhere = transport == "ray" or count > 1 or apart
    kept = freed_memory_kept(up_to=USUALLY_KEPT) if elsewhere else freed_memory_kept()
    with compute_threads(threads), kept:
        if transport == "ray":
            actors = None if workers == "auto" else count
            with _ray().RayTransport(
                algorithm,
                problem,
                objective,
                store,
                seed=seed,
                workers=actors,
                address=address,
                on_failure=on_failure,
                environment=environment,
            ) as cluster:
                yield Simulation(cluster, cluster.evaluate, cluster.actors)
        elif elsewhere:
            with PoolTransport(
                algorithm,
                problem,
                objective,
                store,
                seed=seed,
                workers=count,
                on_failure=on_failure,
                environment=environment,
            ) as pool:
                yield Simulation(pool, pool.evaluate, count)
        else:
            federation = problem.federation.to(objective.device)
            serial = SerialTransport(algorithm, client_tasks(objective, federation, seed, problem.precision), store)
            yield Simulation(serial, partial(_evaluate_here, objective, federation, problem.metrics), 1)


def _ray() -> ModuleType:
    try:
        from . import ray
    except ImportError as error:
        raise InvalidInput(
            f"run.transport: ray needs other packages ({error}); pip install 'fedgloss[ray]'"
        ) from None
    return ray


def _evaluate_here(
    objective: Objective,
    federation: Federation,
    metrics: Mapping[str, Metric],
    params: Vector,
    sets: Sequence[SampleSet],
) -> list[dict[str, float]]:
    return [evaluate(objective, params, samples_of(federation, which), federation, metrics) for which in sets]
