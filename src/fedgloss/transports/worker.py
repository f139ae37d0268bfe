"""A worker of the pool: a process that trains one client, or evaluates one batch, at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from ..algorithm import Algorithm
from ..compute import Precision, TorchSettings, freed_memory_kept
from ..data import Federation
from ..errors import InvalidInput
from ..messages import Broadcast, ClientState, Update
from ..tasks import Metric, Objective, SampleSet, client_tasks, evaluate_batch, samples_of
from .failures import Failed, failure
from .helping import Assistant, Joined, help_out
from .serial import on_device, run_client
from .shared_memory import Box, Channel, Letter, Parcel, SharedPickle


@dataclass(frozen=True)
class Kit:
    """All a worker must know of a run."""

    parts: Mapping[str, SharedPickle]
    device: str
    seed: int
    settings: TorchSettings
    precision: Precision
    environment: Mapping[str, str]


@dataclass(frozen=True)
class TrainClient:
    """Do one client's part in an exchange. Who never took part has no memory."""

    client: int
    broadcast: Letter[Broadcast]
    memory: Letter[ClientState] | None
    shared_out: bool

    def __str__(self) -> str:
        return f"client {self.client}, round {self.broadcast.message.round}"


@dataclass(frozen=True)
class EvaluateBatch:
    """Sum loss and metrics over one batch of a set of samples."""

    params: Parcel
    samples: SampleSet
    start: int

    def __str__(self) -> str:
        samples = f"client {self.samples}'s" if isinstance(self.samples, int) else self.samples
        return f"evaluation of {samples} samples from {self.start}"


@dataclass(frozen=True)
class Help:
    """Join the worker behind the pipe that follows in its client."""

    def __str__(self) -> str:
        return "another's client"


@dataclass(frozen=True)
class Trained:
    update: Letter[Update]
    memory: Letter[ClientState]


@dataclass(frozen=True)
class Evaluated:
    sums: Mapping[str, float]


class Ready:
    """The worker waits for jobs: it has its kit, or has helped."""


Job: TypeAlias = TrainClient | EvaluateBatch | Help
Reply: TypeAlias = Trained | Evaluated | Ready | Failed


def serve(connection: Connection) -> None:
    """A worker's life: take the kit, then answer jobs until the pipe closes."""
    # Ctrl-C, and a scheduler's SIGTERM, reach the whole process group: the main process decides what they mean.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel = Channel(connection)
    with suppress(EOFError, ConnectionError), freed_memory_kept():
        try:
            worker = _Worker(channel, channel.receive())
        except Exception as error:
            channel.send(failure(error))
            return
        channel.send(Ready())
        while True:
            worker.answer(channel.receive())


class _Worker:
    def __init__(self, channel: Channel, kit: Kit) -> None:
        os.environ.update(kit.environment)  # what oneDNN reads before its first layer, here not run yet
        kit.settings.apply()
        self._channel = channel
        self._results = Box("results")
        parts = {name: _load(channel, name, part) for name, part in kit.parts.items()}
        self._algorithm: Algorithm = parts["algorithm"]
        self._metrics: Mapping[str, Metric] = parts["metrics"]
        self._precision = kit.precision
        self._objective = Objective(parts["model"], parts["loss"], kit.device)
        self._federation: Federation = parts["data"].to(self._objective.device)
        self._tasks = client_tasks(self._objective, self._federation, kit.seed, kit.precision)

    def answer(self, job: Job | Joined) -> None:
        if isinstance(job, Joined):  # too late: the client is done
            self._channel.accept().connection.close()
            return
        try:
            reply = self._reply(job)
        except Exception as error:
            reply = failure(error)
        self._channel.send(reply, self._results)

    def _reply(self, job: Job) -> Reply:
        if isinstance(job, TrainClient):
            return self._train(job)
        if isinstance(job, EvaluateBatch):
            return self._evaluate(job)
        help_out(self._channel.accept(), self._objective, self._precision)
        return Ready()

    def _train(self, job: TrainClient) -> Trained:
        broadcast = on_device(self._channel.read(job.broadcast), self._objective.device)
        memory = None if job.memory is None else self._channel.read(job.memory)
        task = self._tasks(job.client, broadcast.round, broadcast.purpose)
        with Assistant(self._channel) as assistant:
            if job.shared_out:
                task.share(assistant)
            update, memory = run_client(self._algorithm, task, broadcast, job.client, memory)
        if broadcast.purpose != "train":
            memory = ClientState()
        sent, kept = self._results.post(update, memory)
        return Trained(sent, kept)

    def _evaluate(self, job: EvaluateBatch) -> Evaluated:
        params = self._channel.open(job.params)["params"].to(self._objective.device)
        samples = samples_of(self._federation, job.samples)
        return Evaluated(
            evaluate_batch(self._objective, params, samples, self._federation, self._metrics, job.start)
        )


def _load(channel: Channel, name: str, part: SharedPickle) -> Any:
    try:
        return channel.load(part)
    except (AttributeError, ImportError) as error:  # what only exists in the main process, a notebook's say
        raise InvalidInput(
            f"{name}: worker processes cannot import it ({error}); put it into a module of its own, or use 1 worker"
        ) from error


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
