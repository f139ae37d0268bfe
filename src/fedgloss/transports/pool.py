"""Clients in worker processes: whoever is free takes the next client, and the bits are those of one process.

A worker that dies is named and replaced, and what it did is done again, unless the user wants it otherwise.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from ..algorithm import Algorithm, Dropped
from ..compute import TorchSettings
from ..errors import InvalidInput, WorkerLost
from ..forkserver import default_start_method, interrupts_held, prepare_workers
from ..messages import Broadcast, ClientState, Update
from ..tasks import Objective, Problem, SampleSet, evaluation_means, evaluation_starts, samples_of
from ..vectors import Vector
from .client_store import ClientStore
from .failures import Failed, explained
from .helping import Joined
from .schedule import OnFailure, in_order, settle, shared_out
from .serial import on_device
from .shared_memory import Box, Channel, share
from .worker import EvaluateBatch, Evaluated, Help, Job, Kit, Ready, TrainClient, Trained, serve

log = logging.getLogger("fedgloss")

M = TypeVar("M", bound=ClientState | Update)
Answer: TypeAlias = tuple[Update, ClientState] | Mapping[str, float] | Exception


@dataclass(eq=False)
class _Worker:
    number: int
    process: BaseProcess
    channel: Channel
    memory: Box = field(default_factory=lambda: Box("memory"))
    ready: bool = False
    job: Job | None = None
    index: int = -1  # of the job, among those of its exchange
    helped: bool = False  # whether another has joined it in this job

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    def end(self) -> str:
        """Make sure that it is dead, and tell what it died of."""
        self.channel.connection.close()
        self.process.join(timeout=1)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


class PoolTransport:
    """Carries broadcasts to clients in worker processes, and test batches too. A context: leaving it ends them.

    The workers start with the first exchange. Vectors travel through shared memory, the problem once and for all;
    client memories come from and go to ``store``, which only this process sees.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        objective: Objective,
        store: ClientStore,
        *,
        seed: int,
        workers: int,
        on_failure: OnFailure = "redo",
        environment: Mapping[str, str] | None = None,
        start_method: str | None = None,
    ) -> None:
        self._store = store
        self._federation = problem.federation
        self._context: Any = multiprocessing.get_context(start_method or default_start_method())
        self._count = workers
        self._on_failure = on_failure
        self._workers: list[_Worker] = []
        self._numbers = itertools.count(1)
        self._outgoing = Box("outgoing")
        self._kit_box = Box("kit", copy_on_write=True)
        parts = {
            "algorithm": algorithm,
            "model": objective.module,
            "loss": problem.loss,
            "metrics": dict(problem.metrics),
            "data": problem.federation,
        }
        self._kit = Kit(
            share(self._kit_box, parts),
            problem.device,
            seed,
            TorchSettings.current(),
            problem.precision,
            environment or {},
        )

    def __enter__(self) -> PoolTransport:
        atexit.register(self.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        atexit.unregister(self.close)

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers, as long as they run."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update | Dropped]:
        settle(self)
        (letter,) = self._outgoing.post(broadcast)
        device = broadcast["params"].device

        def job(client: int, worker: _Worker) -> Job:
            memory = self._store.get(client)
            known = None if memory is None else worker.memory.post(memory)[0]
            return TrainClient(client, letter, known, shared_out(client, cohort))

        for client, answer in in_order(self, cohort, job, on_failure=self._on_failure):
            if isinstance(answer, WorkerLost):
                yield Dropped(client, str(answer))
                continue
            update, memory = answer
            if broadcast.purpose == "train":
                self._store.put(client, memory, broadcast.round)
            yield on_device(update, device)

    def evaluate(self, params: Vector, sets: Sequence[SampleSet]) -> list[dict[str, float]]:
        """The means over each of the sets, their batches shared out among the workers."""
        settle(self)
        (parcel,) = self._outgoing.pack({"params": params})
        samples = [samples_of(self._federation, which) for which in sets]
        parts = [
            (which, start)
            for which, chosen in zip(sets, samples, strict=True)
            for start in evaluation_starts(chosen)
        ]
        sums = (answer for _, answer in in_order(self, parts, lambda part, _: EvaluateBatch(parcel, *part)))
        return [evaluation_means([next(sums) for _ in evaluation_starts(chosen)], chosen) for chosen in samples]

    def size(self) -> int:
        return self._count

    def idle(self) -> list[_Worker]:
        while len(self._workers) < self._count:
            self._start(next(self._numbers), len(self._workers))
        return [worker for worker in self._workers if worker.ready and worker.job is None]

    def give(self, worker: _Worker, index: int, job: Job) -> None:
        worker.index, worker.job, worker.helped = index, job, False
        with suppress(ConnectionError):  # that it died will be heard
            worker.channel.send(job, self._outgoing, worker.memory)

    def busy(self) -> bool:
        return any(worker.job is not None for worker in self._workers)

    def hear(self) -> list[tuple[int, Answer]]:
        """Wait for workers to say something: what came of their jobs. Those that died are replaced."""
        self._lend()
        news: list[tuple[int, Answer]] = []
        speaking = wait([worker.channel.connection for worker in self._workers])
        for worker in [w for w in self._workers if w.channel.connection in speaking]:
            try:
                message = worker.channel.receive()
            except (EOFError, ConnectionError):
                lost = self._replace(worker)
                if worker.job is not None and not isinstance(worker.job, Help):
                    news.append((worker.index, lost))
                continue
            if isinstance(message, Failed) and not worker.ready:
                raise explained(message, f"while {worker} started")
            if not isinstance(message, Ready):
                news.append((worker.index, _answer(worker, message)))
            worker.ready, worker.job = True, None
        return news

    def _lend(self) -> None:
        """Whoever has nothing to do joins a worker whose client is shared out."""
        for worker in self.idle():
            for other in self._workers:
                if isinstance(other.job, TrainClient) and other.job.shared_out and not other.helped:
                    ends = self._context.Pipe()
                    worker.job, other.helped = Help(), True
                    with suppress(ConnectionError), ends[0], ends[1]:
                        worker.channel.hand_over(worker.job, ends[0])
                        other.channel.hand_over(Joined(), ends[1])
                    break

    def _start(self, number: int, place: int) -> None:
        prepare_workers()
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs,), name=f"fedgloss worker {number}", daemon=True)
        worker = _Worker(number, process, Channel(ours))
        with interrupts_held():
            process.start()
            self._workers.insert(place, worker)  # before Ctrl-C is heard: it ends those that are known
        theirs.close()
        with suppress(ConnectionError):
            worker.channel.send(self._kit, self._kit_box)

    def _replace(self, worker: _Worker) -> WorkerLost:
        name, end = str(worker), worker.end()
        place = self._workers.index(worker)
        del self._workers[place]
        if not worker.ready:
            raise InvalidInput(
                f"workers: {name} {end} before it was ready; a script must train below "
                '`if __name__ == "__main__":`, or with 1 worker'
            )
        lost = WorkerLost(f"{name} {end}" + (f" at {worker.job}" if worker.job else ""))
        log.warning("%s; another takes its place", lost)
        self._start(worker.number, place)
        return lost


def _answer(worker: _Worker, message: Trained | Evaluated | Failed) -> Answer:
    """What a worker said, out of the shared memory, which the next job will overwrite."""
    if isinstance(message, Failed):
        return explained(message, f"in {worker}, {worker.job}")
    if isinstance(message, Evaluated):
        return message.sums
    update, memory = worker.channel.read(message.update), worker.channel.read(message.memory)
    return _own(update), _own(memory)


def _own(message: M) -> M:
    return replace(message, vectors={name: vector.clone() for name, vector in message.vectors.items()})
