"""Rounds of this library: the training loop with its records and checks, clients in this process or in workers."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from serving import serve
from work import BATCH, CLASSES, LR, MEAN, RHO, STD, WEIGHT_DECAY, pictures

from fedgloss import ExactCohort, FedAvg, Federation, FedGloSS, LocalTraining, Problem, Sam
from fedgloss.algorithm import Algorithm
from fedgloss.data.transforms import PictureTransform
from fedgloss.models import build
from fedgloss.tasks import ClientObjective, Objective
from fedgloss.training import Plan, steps
from fedgloss.transports import MemoryStore, open_simulation

LOCAL = LocalTraining(lr=LR, batch_size=BATCH, weight_decay=WEIGHT_DECAY)
METHODS: dict[str, Algorithm] = {
    "sgd": FedAvg(LOCAL),
    "sam": FedAvg(LOCAL, Sam(RHO)),
    "fedgloss-sam": FedGloSS(0.1, 10.0, LOCAL, Sam(RHO)),
}


def unit_problem(model: str, clients: int) -> Problem:
    inputs, targets = pictures(clients)
    per_client = len(targets) // clients
    parts = [range(k * per_client, (k + 1) * per_client) for k in range(clients)]
    federation = Federation.from_arrays(inputs, targets, clients=parts, transform=PictureTransform(MEAN, STD))
    return Problem(federation, partial(build, model, (3, 32, 32), CLASSES))


class Clock:
    """The time spent in gradients and augmentation: what no engine can do without."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def install(self) -> None:
        gradient, batches = ClientObjective.gradient, ClientObjective.batches

        def timed_gradient(task: Any, params: Any, batch: Any) -> Any:
            began = time.perf_counter()
            found = gradient(task, params, batch)
            self.seconds += time.perf_counter() - began
            return found

        def timed_batches(task: Any, batch_size: int, epochs: int) -> Any:
            began = time.perf_counter()
            for batch in batches(task, batch_size, epochs):
                self.seconds += time.perf_counter() - began
                yield batch
                began = time.perf_counter()

        ClientObjective.gradient = timed_gradient  # type: ignore[method-assign]
        ClientObjective.batches = timed_batches  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="sgd", choices=METHODS)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--overhead", action="store_true", help="tell what is neither gradient nor augmentation")
    options = parser.parse_args()

    clock = Clock()
    if options.overhead:
        clock.install()
    algorithm, problem = METHODS[options.method], unit_problem(options.model, options.clients)
    objective = Objective(problem.build(0), problem.loss)
    state = algorithm.init_server(objective.initial(), options.clients)
    plan = Plan(rounds=1_000_000, sampling=ExactCohort(options.cohort))
    with open_simulation(
        algorithm, problem, objective, MemoryStore(), seed=0, workers=options.workers
    ) as simulation:
        rounds = steps(algorithm, plan, state, simulation.transport, objective.layout, None)

        def once() -> dict[str, float] | None:
            clock.seconds, began = 0.0, time.perf_counter()
            next(rounds)
            seconds = time.perf_counter() - began
            return {"seconds": seconds, "overhead": 1 - clock.seconds / seconds} if options.overhead else None

        serve(once)


if __name__ == "__main__":
    main()
