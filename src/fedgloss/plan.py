"""What a run will cost, before it runs: measured on a few real steps, worked out for the rest."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from .algorithm import ClientTask, run_round
from .compute import compute_threads
from .data import Subset
from .diagnostics import Watch
from .local import LocalTraining
from .messages import ClientState, ServerState
from .run import Execution, Job
from .tasks import EVALUATION_BATCH, Objective, client_tasks, evaluate
from .transports import MemoryStore, SerialTransport
from .vectors import Layout, Vector

STEPS = 4  # local steps measured after one to warm up


@dataclass
class FewBatches:
    """A task cut short after so many mini-batches, for measuring."""

    task: ClientTask
    count: int

    @property
    def size(self) -> int:
        return self.task.size

    @property
    def layout(self) -> Layout:
        return self.task.layout

    def batches(self, batch_size: int, epochs: int) -> Iterator[Any]:
        return islice(self.task.batches(batch_size, epochs), self.count)

    def gradient(self, params: Vector, batch: Any) -> Vector:
        return self.task.gradient(params, batch)

    def mean_loss(self) -> float:
        return self.task.mean_loss()


@dataclass(frozen=True)
class Forecast:
    """A run's expected cost. Times are for this machine, as busy as it is now."""

    parameters: int
    clients: int
    cohort: float
    rounds: int
    workers: int
    seconds_per_round: float
    evaluations: int
    seconds_per_evaluation: float
    memory: int
    disk: int
    bytes_down: int
    bytes_up: int

    @property
    def seconds(self) -> float:
        return self.rounds * self.seconds_per_round + self.evaluations * self.seconds_per_evaluation


def forecast(job: Job, local: LocalTraining, execution: Execution, workers: int) -> Forecast:
    """Measure a few local steps and one evaluation batch of this very job, and work out the rest."""
    federation, plan = job.problem.federation, job.plan
    objective = Objective(job.problem.build(plan.seed), job.problem.loss, job.problem.device)
    steps = local.epochs * math.ceil(float(np.mean(federation.partition.sizes)) / local.batch_size)
    with compute_threads(1):
        short, long = 1, min(1 + STEPS, max(2, steps))
        _one_client(job, objective, short)
        brief, _ = _timed(lambda: _one_client(job, objective, short))
        longer, (state, memory, watch) = _timed(lambda: _one_client(job, objective, long))
        seconds_per_step = max(longer - brief, 1e-6) / (long - short)
        seconds_per_evaluation = _seconds_to_evaluate(job, objective, state)
    cohorts = [len(plan.sampling.cohort(federation.population, plan.seed, t)) for t in range(20)]
    cohort = float(np.mean(cohorts))
    waves = float(np.mean([_waves(size, workers) for size in cohorts]))

    def remembered_after(rounds: int) -> int:
        visited = federation.population * (1 - (1 - cohort / federation.population) ** rounds)
        return int(visited * _size(memory))

    remembered = remembered_after(plan.rounds)
    every = min(execution.keep_every or plan.rounds, plan.rounds)
    versions = plan.rounds // every * remembered_after(every) + int(cohort * _size(memory))
    states = 2 + (plan.rounds // every if execution.keep_every else 0)
    tail = 8 * objective.layout.size  # the sum of the last models, in float64
    held = remembered if execution.client_memory is None else min(remembered, execution.client_memory)
    return Forecast(
        parameters=objective.layout.size,
        clients=federation.population,
        cohort=cohort,
        rounds=plan.rounds,
        workers=workers,
        seconds_per_round=waves * (brief + (steps - short) * seconds_per_step),
        evaluations=plan.evaluation_window + (plan.rounds - plan.evaluation_window) // plan.eval_every,
        seconds_per_evaluation=seconds_per_evaluation / workers,
        memory=_peak_memory() * (workers + 1) + held,
        disk=versions + states * _size(state) + 2 * tail,
        bytes_down=int(watch.down.bytes * cohort * plan.rounds),
        bytes_up=int(watch.up.bytes * cohort * plan.rounds),
    )


def _waves(cohort: int, workers: int) -> float:
    """How many clients one after the other a round takes; two workers share an odd one where one would wait."""
    alone = cohort % 2 == 1 and 1 < workers < cohort and cohort % workers == 1
    return cohort // workers + 0.5 if alone else math.ceil(cohort / workers)


def _one_client(job: Job, objective: Objective, batches: int) -> tuple[ServerState, ClientState, Watch]:
    """A round with a single client that stops after so many steps."""
    tasks = client_tasks(objective, job.problem.federation, job.plan.seed)
    store = MemoryStore()
    watch = Watch(
        SerialTransport(job.algorithm, lambda k, t, purpose: FewBatches(tasks(k, t, purpose), batches), store)
    )
    state = job.algorithm.init_server(objective.initial(), job.problem.federation.population)
    return run_round(job.algorithm, state, [0], watch), store.get(0) or ClientState(), watch


@dataclass
class Counted(FewBatches):
    """A task that counts the gradients taken and the batches they were taken on."""

    tally: dict[str, int]

    def batches(self, batch_size: int, epochs: int) -> Iterator[Any]:
        for batch in super().batches(batch_size, epochs):
            self.tally["steps"] += 1
            yield batch

    def gradient(self, params: Vector, batch: Any) -> Vector:
        self.tally["gradients"] += 1
        return super().gradient(params, batch)


def gradients_per_step(job: Job) -> float:
    """Gradients a client takes for each of its local steps, counted in a few steps of one client."""
    objective = Objective(job.problem.build(job.plan.seed), job.problem.loss, job.problem.device)
    tasks = client_tasks(objective, job.problem.federation, job.plan.seed)
    tally = {"steps": 0, "gradients": 0}
    counting = SerialTransport(
        job.algorithm, lambda k, t, purpose: Counted(tasks(k, t, purpose), STEPS, tally), MemoryStore()
    )
    state = job.algorithm.init_server(objective.initial(), job.problem.federation.population)
    run_round(job.algorithm, state, [0], counting)
    return tally["gradients"] / tally["steps"]


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _seconds_to_evaluate(job: Job, objective: Objective, state: ServerState) -> float:
    federation, judged = job.problem.federation, job.judged
    if judged is None:
        return 0.0
    few = Subset(judged, np.arange(min(EVALUATION_BATCH, len(judged)), dtype=np.int64))
    seconds, _ = _timed(lambda: evaluate(objective, state.evaluated, few, federation, job.problem.metrics))
    return seconds * len(judged) / len(few)


def _size(message: ServerState | ClientState) -> int:
    return sum(vector.numel() * vector.element_size() for vector in message.vectors.values())


def _peak_memory() -> int:
    """This process's peak so far, which has just trained with this model and this batch size."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
