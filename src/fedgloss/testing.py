"""For whoever writes an algorithm: a toy problem with a known answer, and the laws every method must obey."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice

import numpy as np
import torch

from .algorithm import Aggregate, Algorithm, run_round
from .codec import M, decode, encode
from .errors import InvalidInput
from .messages import Broadcast, Purpose, ServerState, Update
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
        hessians = 0.25 * roots @ roots.transpose(0, 2, 1) + np.eye(dimension)
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


@dataclass(frozen=True)
class Wire:
    """What an algorithm was measured to send and keep, per client and round, in vectors; and what it computes."""

    down: int
    up: int
    memory: int
    exchanges: int
    gradients_per_step: int

    @property
    def factor(self) -> float:
        """Communication in units of FedAvg's one down and one up."""
        return (self.down + self.up) / 2


@dataclass
class _Counted:
    """A task that counts its gradients, shared by every exchange of a round."""

    task: QuadraticTask
    counts: dict[str, int]

    @property
    def size(self) -> int:
        return self.task.size

    @property
    def layout(self) -> Layout:
        return self.task.layout

    def batches(self, batch_size: int, epochs: int) -> Iterator[None]:
        for batch in self.task.batches(batch_size, epochs):
            self.counts["steps"] += 1
            yield batch

    def gradient(self, params: Vector, batch: None) -> Vector:
        self.counts["gradients"] += 1
        return self.task.gradient(params, batch)

    def mean_loss(self) -> float:
        return self.task.mean_loss()


def check_algorithm(algorithm: Algorithm, *, down: int | None = None, up: int | None = None) -> Wire:
    """Hold an algorithm against the laws every method must obey; raises ``AssertionError`` at the first broken one.

    The laws: it pickles; rounds and client updates are pure (same input, same bits, inputs untouched); every
    message and memory survives the codec; a run cut in the middle and loaded goes on to the same bits; clients
    that were not sampled keep their memory; a cohort of one and a client without gradient work; updates carry a
    ``delta``, their size and the ``loss``; the vectors sent are the ``down`` and ``up`` declared, if declared.

    >>> from fedgloss import FedAvg, Scaffold
    >>> check_algorithm(FedAvg()).factor, check_algorithm(Scaffold(), down=2, up=2).factor
    (1.0, 2.0)
    """
    population = 1 if _needs_one_client(algorithm) else 5
    toy = Quadratics(clients=population, dimension=4, seed=1, sizes=list(range(3, 3 + population)))
    sampling = ExactCohort(min(2, population))
    _law(_equal(algorithm, pickle.loads(pickle.dumps(algorithm))), "it must survive pickling unchanged")
    _check_purity(algorithm, toy)
    _check_resume(algorithm, toy, sampling)
    _check_unsampled(algorithm, toy)
    for rounds in (toy.rounds(algorithm, sampling=ExactCohort(1)), _without_gradient(toy).rounds(algorithm)):
        last = list(islice(rounds, 4))[-1]
        finite = all(bool(torch.isfinite(v).all()) for v in last.vectors.values())
        _law(finite, "a cohort of one and clients without gradient must stay finite")
    wire = _measure(algorithm, toy)
    for name, declared in (("down", down), ("up", up)):
        measured = getattr(wire, name)
        _law(declared in (None, measured), f"declares {declared} vectors {name}, sends {measured}")
    return wire


def _law(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(f"algorithm contract: {law}")


def _needs_one_client(algorithm: Algorithm) -> bool:
    try:
        algorithm.init_server(torch.zeros(4, dtype=torch.float64), 5)
    except InvalidInput:
        return True
    return False


def _equal(one: object, other: object) -> bool:
    """Bitwise equality of messages and of values made of plain numbers."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.equal(other)
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(_equal(one[key], other[key]) for key in one)
        )
    if is_dataclass(one):
        same = type(one) is type(other)
        return same and all(_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return one == other


def _copy(message: M) -> M:
    return decode(type(message), encode(message))


def _check_purity(algorithm: Algorithm, toy: Quadratics) -> None:
    store = MemoryStore()
    state = list(islice(toy.rounds(algorithm, store=store), 3))[-1]
    _law(_equal(state, _copy(state)), "the server's state must survive the codec")
    before, replies = _copy(state), []
    steps = algorithm.server_round(state)
    broadcast = next(steps)
    for client in range(toy.population):
        memory = store.get(client) or algorithm.init_client(state["params"])
        sent, kept = _copy(broadcast), _copy(memory)
        update, moved = algorithm.client_update(broadcast, memory, toy.task(client))
        again, moved_again = algorithm.client_update(sent, kept, toy.task(client))
        _law(_equal(update, again) and _equal(moved, moved_again), "client_update must be a pure function")
        _law(_equal(broadcast, sent) and _equal(memory, kept), "client_update must not change its inputs")
        _law(_equal(update, _copy(update)) and _equal(moved, _copy(moved)), "messages must survive the codec")
        _law("delta" in update.vectors and "loss" in update.scalars, "an update carries its delta and loss")
        _law(update.size == toy.sizes[client], "an update carries the client's number of samples")
        replies.append(update)
    try:
        steps.send(Aggregate(replies))
    except StopIteration as finished:
        _law(finished.value.round == state.round + 1, "a round must return the state of the next round")
    _law(_equal(state, before), "server_round must not change the state it is given")


def _check_resume(algorithm: Algorithm, toy: Quadratics, sampling: Sampling) -> None:
    whole_store, store, loaded = MemoryStore(), MemoryStore(), MemoryStore()
    whole = toy.run(algorithm, 6, sampling=sampling, store=whole_store)
    half = toy.run(algorithm, 3, sampling=sampling, store=store)
    for client in range(toy.population):
        if (memory := store.get(client)) is not None:
            loaded.put(client, _copy(memory), 2)
    resumed = toy.rounds(algorithm, sampling=sampling, store=loaded, state=_copy(half))
    _law(_equal(whole, list(islice(resumed, 4))[-1]), "a run saved and loaded must go on to the same bits")
    same = all(_equal(whole_store.get(k), loaded.get(k)) for k in range(toy.population))
    _law(same, "a run saved and loaded must leave its clients the same memories")


def _check_unsampled(algorithm: Algorithm, toy: Quadratics) -> None:
    store = MemoryStore()
    states = toy.rounds(algorithm, store=store)
    state = list(islice(states, 3))[-1]
    before = {k: _copy(m) for k in range(toy.population) if (m := store.get(k)) is not None}
    run_round(algorithm, state, [0], SerialTransport(algorithm, toy.task, store))
    same = all(_equal(store.get(client), memory) for client, memory in before.items() if client != 0)
    _law(same, "clients that were not sampled must keep their memory to the bit")


def _without_gradient(toy: Quadratics) -> Quadratics:
    flat = copy(toy)
    flat.hessians = torch.zeros_like(toy.hessians)
    return flat


def _measure(algorithm: Algorithm, toy: Quadratics) -> Wire:
    counts = {"steps": 0, "gradients": 0, "down": 0, "up": 0, "exchanges": 0, "memory": 0}
    serial = SerialTransport(algorithm, lambda k, t, purpose: _Counted(toy.task(k), counts), store := MemoryStore())

    def transport(broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update]:
        counts["exchanges"] += 1
        counts["down"] += len(broadcast.vectors)
        for update in serial(broadcast, cohort):
            counts["up"] += len(update.vectors)
            yield update

    state = algorithm.init_server(toy.start, toy.population)
    run_round(algorithm, state, [0], transport)
    memory = store.get(0)
    return Wire(
        down=counts["down"],
        up=counts["up"],
        memory=len(memory.vectors) if memory else 0,
        exchanges=counts["exchanges"],
        gradients_per_step=counts["gradients"] // counts["steps"],
    )
