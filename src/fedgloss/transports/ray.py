"""Clients on a Ray cluster: the pool of one machine over many, with the same bits.

A broadcast is put into Ray's object store once an exchange, and each node fetches it once. A client's samples go to
the actor that trains it: by their path where they live in files, by content otherwise. A client's memory stays with
the actor that trained it last, but only as a cache: what counts is the store of the process that runs this, which
every commit reaches, so a client can move at any time, and does when its actor is busy or dead.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray import cloudpickle
from ray._private.services import canonicalize_bootstrap_address  # nothing public tells what "auto" stands for
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from ..algorithm import Algorithm, Dropped
from ..compute import Precision, TorchSettings, available_cores, freed_memory_kept
from ..data import ArraySamples, Federation, Partition, Samples, Subset, Transform
from ..data.store import StoredSamples
from ..environment import describe_environment, differing_environment
from ..errors import InvalidInput, WorkerLost
from ..messages import Broadcast, ClientState, Update
from ..tasks import (
    ClientObjective,
    Loss,
    Metric,
    NoHelper,
    Objective,
    Problem,
    SampleSet,
    evaluate_batch,
    evaluation_means,
    evaluation_starts,
    samples_of,
)
from ..vectors import Vector
from .client_store import ClientStore
from .failures import Failed, explained, failure
from .schedule import ATTEMPTS, OnFailure, in_order, settle, shared_out
from .serial import on_device, run_client
from .shared_memory import take_apart

CACHED = 2**29  # bytes of client memories that an actor keeps at hand
PATIENCE = 60.0  # seconds without any news before the user is told what is waited for
SHARES = 4  # parts of an evaluation per actor: even enough, and few enough to cost nothing

START_ONE = "start one with 'ray start --head', name one (HOST:PORT), or use local"

LOST = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError, WorkerCrashedError)

log = logging.getLogger("fedgloss")

T = TypeVar("T")


@dataclass(frozen=True)
class Packed(Generic[T]):
    """A value on its way through the object store: its large arrays lie there as they are."""

    pickle: bytes
    arrays: tuple[npt.NDArray[np.uint8], ...]

    @classmethod
    def of(cls, value: T) -> Packed[T]:
        pickled, buffers = take_apart(value)
        return cls(pickled, tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))

    def open(self) -> T:
        """The value, its arrays copied out of the object store into memory as torch aligns it."""
        own = [torch.empty(array.size, dtype=torch.uint8).numpy() for array in self.arrays]
        for copy, array in zip(own, self.arrays, strict=True):
            copy[:] = array
        value: T = pickle.loads(self.pickle, buffers=own)
        return value


def part_of(samples: Samples, indices: npt.NDArray[np.int64]) -> Samples:
    """Some samples as a value that travels without the others."""
    if isinstance(samples, Subset):
        return part_of(samples.samples, samples.indices[indices])
    if isinstance(samples, StoredSamples):
        return samples.only(indices)
    return ArraySamples(*samples.fetch(indices))


@dataclass(frozen=True)
class Kit:
    """All an actor must know of a run, but for the data."""

    algorithm: Algorithm
    model: torch.nn.Module
    loss: Loss
    metrics: Mapping[str, Metric]
    transform: Transform
    device: str
    precision: Precision
    seed: int
    settings: TorchSettings


@dataclass(frozen=True)
class Hello:
    """An actor is ready; which process it is, and on what kind of machine."""

    process: int
    node: str
    environment: Mapping[str, Any]


class Forgotten:
    """The actor was told to use a client's memory that it does not have any more."""


class Actor:
    """Trains one client, or evaluates a few batches, at a time."""

    def start(self, paths: Sequence[str], kit: bytes) -> Hello | Failed:
        try:
            sys.path += [path for path in paths if path not in sys.path]
            self._kit: Kit = cloudpickle.loads(kit)
            self._kit.settings.apply()
            ExitStack().enter_context(freed_memory_kept())  # to the end of the process
            self._objective = Objective(self._kit.model, self._kit.loss, self._kit.device)
            self._memories: OrderedDict[int, tuple[int, ClientState]] = OrderedDict()
            self._bytes = 0
            return Hello(os.getpid(), ray.util.get_node_ip_address(), describe_environment())
        except Exception as error:
            return failure(error)

    def train(
        self,
        client: int,
        broadcast: Packed[Broadcast],
        samples: Packed[Samples],
        shared_out: bool,
        memory: Packed[ClientState] | int | None,
    ) -> Packed[tuple[Update, ClientState]] | Forgotten | Failed:
        """One client's part in an exchange, with the memory given or with that of a round it is known from."""
        try:
            if isinstance(memory, int):
                round, known = self._memories.get(client, (None, None))
                if round != memory:
                    return Forgotten()
            else:
                known = None if memory is None else memory.open()
            update, after = self._train(client, broadcast.open(), samples.open(), known, shared_out)
            return Packed.of((update, after))
        except Exception as error:
            return failure(error)

    def _train(
        self, client: int, broadcast: Broadcast, samples: Samples, memory: ClientState | None, shared_out: bool
    ) -> tuple[Update, ClientState]:
        kit, cpu = self._kit, torch.device("cpu")
        task = ClientObjective(
            self._objective,
            samples,
            kit.transform,
            client=client,
            seed=kit.seed,
            round=broadcast.round,
            purpose=broadcast.purpose,
            precision=kit.precision,
        )
        if shared_out:
            task.share(NoHelper())
        received = on_device(broadcast, self._objective.device)
        update, after = run_client(kit.algorithm, task, received, client, memory)
        if broadcast.purpose != "train":
            return on_device(update, cpu), ClientState()
        after = on_device(after, cpu)
        self._keep(client, broadcast.round, after)
        return on_device(update, cpu), after

    def _keep(self, client: int, round: int, memory: ClientState) -> None:
        if client in self._memories:
            self._bytes -= _bytes(self._memories.pop(client)[1])
        self._memories[client] = round, memory
        self._bytes += _bytes(memory)
        while self._bytes > CACHED:
            self._bytes -= _bytes(self._memories.popitem(last=False)[1][1])

    def evaluate(
        self, params: Packed[Vector], samples: Packed[Samples], starts: Sequence[int]
    ) -> list[dict[str, float]] | Failed:
        """The sums of the batches that begin at these samples."""
        try:
            kit, here = self._kit, samples.open()
            everything = Partition.of([np.arange(len(here))])
            federation = Federation(here, everything, transform=kit.transform)
            vector = params.open().to(self._objective.device)
            return [
                evaluate_batch(self._objective, vector, here, federation, kit.metrics, start) for start in starts
            ]
        except Exception as error:
            return failure(error)


@dataclass(frozen=True)
class _Job:
    what: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Trained:
    update: Update
    memory: ClientState
    worker: _Worker


@dataclass(eq=False)
class _Worker:
    number: int
    actor: Any
    pending: Any  # the reference of its answer, to the call to start at first
    hello: Hello | None = None
    job: _Job | None = None
    index: int = -1
    lost: bool = False

    def __str__(self) -> str:
        where = f" (process {self.hello.process} on {self.hello.node})" if self.hello else ""
        return f"actor {self.number}{where}"


class RayTransport:
    """Carries broadcasts to clients in actors of a Ray cluster, and test batches too. A context: leaving it ends
    the actors, and the connection or the cluster that it started itself.

    There are as many actors as the largest cohort has clients, at most ``workers``, so that several runs can
    share a cluster. ``address`` is ``auto`` (the cluster this machine belongs to), ``local`` (one of its own, on
    this machine) or the HOST:PORT of a cluster's head.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        objective: Objective,
        store: ClientStore,
        *,
        seed: int,
        workers: int | None = None,
        address: str = "auto",
        on_failure: OnFailure = "redo",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._store = store
        self._federation = problem.federation
        self._settings = TorchSettings.current()
        self._kit = Kit(
            algorithm,
            objective.module,
            problem.loss,
            dict(problem.metrics),
            problem.federation.transform,
            problem.device,
            problem.precision,
            seed,
            self._settings,
        )
        self._asked = workers
        self._address = address
        self._on_failure = on_failure
        self._variables = dict(environment or {})
        self._environment = describe_environment()
        self._connection = ExitStack()
        self._workers: list[_Worker] = []
        self._wanted = 0
        self._started = 0
        self._failed_starts = 0
        self._samples: dict[SampleSet, Any] = {}
        self._homes: dict[int, tuple[_Worker, int]] = {}

    def __enter__(self) -> RayTransport:
        threads = self._settings.threads
        cores = self._asked * threads if self._asked else available_cores()
        self._connection.enter_context(connected(self._address, cores))
        resource = "GPU" if self._kit.device.startswith("cuda") else "CPU"
        per_actor = 1 if resource == "GPU" else threads
        self._count = self._asked or max(1, int(ray.cluster_resources().get(resource, 0) // per_actor))
        self._make = ray.remote(Actor).options(
            num_cpus=threads,
            num_gpus=1 if resource == "GPU" else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": self._variables} if self._variables else None,
        )
        try:
            self._kit_reference = ray.put(cloudpickle.dumps(self._kit))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._connection.close()
            raise InvalidInput(f"run.transport: the problem cannot be sent to Ray's actors ({error})") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._connection.close()

    @property
    def actors(self) -> int:
        """How many there are at most."""
        return self._count

    @property
    def processes(self) -> list[int]:
        """The process numbers of the actors that are ready, each on its own node."""
        return [worker.hello.process for worker in self._workers if worker.hello is not None]

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update | Dropped]:
        settle(self)
        self._wanted = max(self._wanted, min(self._count, len(cohort)))
        device = broadcast["params"].device
        reference = ray.put(Packed.of(on_device(broadcast, torch.device("cpu"))))

        def job(client: int, worker: _Worker) -> _Job:
            what = f"client {client}, round {broadcast.round}"
            home, round = self._homes.get(client, (None, -1))
            memory = round if home is worker else self._durable(client)
            arguments = (client, reference, self._send(client), shared_out(client, cohort), memory)
            return _Job(what, "train", arguments)

        for client, answer in in_order(self, cohort, job, on_failure=self._on_failure, rank=self._distance):
            if isinstance(answer, WorkerLost):
                yield Dropped(client, str(answer))
                continue
            if broadcast.purpose == "train":
                self._store.put(client, answer.memory, broadcast.round)
                self._homes[client] = answer.worker, broadcast.round
            yield on_device(answer.update, device)

    def evaluate(self, params: Vector, sets: Sequence[SampleSet]) -> list[dict[str, float]]:
        """The means over each of the sets, their batches shared out among the actors."""
        settle(self)
        self._wanted = max(self._wanted, 1)
        samples = [samples_of(self._federation, which) for which in sets]
        batches = sum(len(evaluation_starts(chosen)) for chosen in samples)
        share = ceil(batches / (SHARES * self._wanted))
        parts = [
            (which, tuple(starts[first : first + share]))
            for which, starts in zip(sets, map(evaluation_starts, samples), strict=True)
            for first in range(0, len(starts), share)
        ]
        reference = ray.put(Packed.of(params.cpu()))

        def job(part: tuple[SampleSet, Sequence[int]], worker: _Worker) -> _Job:
            which, starts = part
            return _Job(f"evaluation of {which}", "evaluate", (reference, self._send(which), starts))

        sums = (batch for _, answer in in_order(self, parts, job) for batch in answer)
        return [evaluation_means([next(sums) for _ in evaluation_starts(chosen)], chosen) for chosen in samples]

    def size(self) -> int:
        return self._wanted

    def idle(self) -> list[_Worker]:
        while len(self._workers) < self._wanted:
            self._started += 1
            self._workers.append(self._start(self._started))
        return [worker for worker in self._workers if worker.pending is None]

    def give(self, worker: _Worker, index: int, job: _Job) -> None:
        worker.index, worker.job = index, job
        worker.pending = getattr(worker.actor, job.method).remote(*job.arguments)

    def busy(self) -> bool:
        return any(worker.job is not None for worker in self._workers)

    def hear(self) -> list[tuple[int, Any]]:
        """Wait for actors to say something: what came of their jobs. Those that died are replaced."""
        speaking = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        done, others = ray.wait(list(speaking), num_returns=1, timeout=PATIENCE)
        if not done:
            self._tell_what_is_waited_for()
        elif others:
            done += ray.wait(others, num_returns=len(others), timeout=0)[0]
        news: list[tuple[int, Any]] = []
        for reference in done:
            worker = speaking[reference]
            try:
                reply = ray.get(reference)
            except LOST as error:
                news += self._replace(worker, error)
                continue
            except RayTaskError as error:  # not from our own code, which returns what it has to say
                raise InvalidInput(
                    f"run.transport: {worker} cannot work ({_last_line(error)}); install the same fedgloss, and "
                    "what your own code needs, on every node of the cluster"
                ) from error
            except RayError as error:
                raise WorkerLost(f"{worker} cannot work: {_last_line(error)}") from error
            worker.pending = None
            if worker.hello is None:
                worker.hello = self._welcome(worker, reply)
            elif isinstance(reply, Forgotten):
                assert worker.job is not None
                client, *between, _ = worker.job.arguments
                again = (client, *between, self._durable(client))
                self.give(worker, worker.index, replace(worker.job, arguments=again))
            else:
                news.append((worker.index, _answer(worker, reply)))
                worker.job = None
        return news

    def _distance(self, worker: _Worker, client: int) -> int:
        """How far a client would have to move: not at all, from nowhere, from another actor."""
        home, _ = self._homes.get(client, (None, -1))
        return 0 if home is worker else 1 if home is None or home.lost else 2

    def _durable(self, client: int) -> Packed[ClientState] | None:
        memory = self._store.get(client)
        return None if memory is None else Packed.of(on_device(memory, torch.device("cpu")))

    def _send(self, which: SampleSet) -> Any:
        """The reference of a set of samples, for whoever needs it: put once, fetched by each node once."""
        if which not in self._samples:
            samples = samples_of(self._federation, which)
            self._samples[which] = ray.put(Packed.of(part_of(samples, np.arange(len(samples)))))
        return self._samples[which]

    def _start(self, number: int) -> _Worker:
        actor = self._make.remote()
        return _Worker(number, actor, actor.start.remote(sys.path, self._kit_reference))

    def _welcome(self, worker: _Worker, reply: Hello | Failed) -> Hello:
        if isinstance(reply, Failed):
            if isinstance(reply.error, ImportError | AttributeError):
                raise InvalidInput(
                    f"run.transport: {worker} cannot load the problem ({reply.error}); install what your own code "
                    "needs on every node of the cluster"
                ) from explained(reply, f"while {worker} started")
            raise explained(reply, f"while {worker} started")
        self._failed_starts = 0
        here, there = self._environment, reply.environment
        if here["code"] != there["code"]:
            raise InvalidInput(
                f"run.transport: {reply.node} has another fedgloss (version {there['fedgloss']}, code "
                f"{there['code']}; here version {here['fedgloss']}, code {here['code']}); install the same"
            )
        if differences := differing_environment(here, there):
            log.warning("%s may give other last bits: %s", reply.node, "; ".join(differences))
        return reply

    def _replace(self, worker: _Worker, error: Exception) -> list[tuple[int, WorkerLost]]:
        """End a worker that is lost and start another: the news of its job, if it had one."""
        _end(worker)
        worker.lost = True
        if worker.hello is None:
            self._failed_starts += 1
            if self._failed_starts == ATTEMPTS:
                raise WorkerLost(f"{worker}, like others before it, died while it started: {_last_line(error)}")
        why = ", its node being out of memory" if isinstance(error, OutOfMemoryError) else ""
        lost = WorkerLost(f"{worker} died" + (f" at {worker.job.what}" if worker.job else "") + why)
        log.warning("%s; another takes its place", lost)
        self._workers[self._workers.index(worker)] = self._start(worker.number)
        return [(worker.index, lost)] if worker.job else []

    def _tell_what_is_waited_for(self) -> None:
        if not any(worker.hello for worker in self._workers):
            free = ray.available_resources().get("CPU", 0)
            log.warning(
                "waiting for the cluster to start actors of %d CPU each; %g CPU free", self._settings.threads, free
            )


@contextmanager
def connected(address: str, cores: int) -> Iterator[None]:
    """A connection to a cluster, or a cluster of this machine's ``cores``; one that there is already is used and
    left as it is."""
    if ray.is_initialized():
        yield
        return
    if address != "local":
        _require_listener(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else every start warns of a change to come
    options: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False} if address == "local" else {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _terminations_kept():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as error:  # Ray raises plain ones too
        raise InvalidInput(f"run.address: {address}: no connection to Ray ({_last_line(error)})") from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Ray itself would try for ten minutes, also at the last cluster of this machine once that was killed."""
    if address == "auto":
        try:
            found = canonicalize_bootstrap_address("auto")
        except ConnectionError as error:
            raise InvalidInput(f"run.address: no Ray cluster is running on this machine; {START_ONE}") from error
        if found is None or "://" in found:  # RAY_ADDRESS says local, or names a server of Ray's client
            return
        what, host_and_port = f"auto: the cluster at {found} does not answer", found
    else:
        what, host_and_port = f"{address}: no connection to Ray", address
    host, _, port = host_and_port.rpartition(":")
    if not (host and port.isdigit()):
        raise InvalidInput(f"run.address: {address}: must be auto, local or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        hint = f"; {START_ONE}" if address == "auto" else ""
        raise InvalidInput(f"run.address: {what} ({error}){hint}") from error


@contextmanager
def _terminations_kept() -> Iterator[None]:
    """Ray makes SIGTERM end this process at once; a run wants to end its round."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answer(worker: _Worker, reply: Any) -> Any:
    if isinstance(reply, Failed):
        assert worker.job is not None
        error = explained(reply, f"in {worker}, {worker.job.what}")
        return _where_files_differ(error, worker) or error
    if isinstance(reply, Packed):
        update, memory = reply.open()
        return _Trained(update, memory, worker)
    return reply


def _where_files_differ(error: Exception, worker: _Worker) -> InvalidInput | None:
    """What to say of a file that is here and could not be read there."""
    path = Path(str(error).partition(": ")[0])
    if not (isinstance(error, InvalidInput) and worker.hello and path.is_absolute() and path.exists()):
        return None
    found = InvalidInput(
        f"{path}: is here, but {worker.hello.node} cannot read it ({str(error).partition(': ')[2]}); have it at "
        "the same path on every node (for what is in the cache, set FEDGLOSS_CACHE to a shared folder)"
    )
    found.__cause__ = error
    return found


def _end(worker: _Worker) -> None:
    with suppress(Exception):  # it may be gone, or its whole cluster
        ray.kill(worker.actor)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _bytes(memory: ClientState) -> int:
    return sum(vector.numel() * vector.element_size() for vector in memory.vectors.values())
