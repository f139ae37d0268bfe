"""Rounds of this library: the training loop with its records and checks, clients in this process or in workers."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from serving import serve
from torch import Tensor
from work import BATCH, CLASSES, LR, MEAN, PER_CLIENT, RHO, STD, WEIGHT_DECAY, pictures

from fedgloss import ExactCohort, FedAvg, Federation, FedGloSS, FedSMOO, LocalTraining, Partition, Problem, Sam
from fedgloss.algorithm import Algorithm
from fedgloss.config import bytes_of
from fedgloss.data.store import MappedArray
from fedgloss.data.transforms import PictureTransform
from fedgloss.files import write_atomically
from fedgloss.messages import ClientState
from fedgloss.models import build
from fedgloss.tasks import ClientObjective, Objective
from fedgloss.training import Plan, steps
from fedgloss.transports import ClientStore, DiskStore, MemoryStore, open_simulation

KEPT = Path(__file__).parents[1] / ".environments"

LOCAL = LocalTraining(lr=LR, batch_size=BATCH, weight_decay=WEIGHT_DECAY)
METHODS: dict[str, Algorithm] = {
    "sgd": FedAvg(LOCAL),
    "sam": FedAvg(LOCAL, Sam(RHO)),
    "fedgloss-sam": FedGloSS(0.1, 10.0, LOCAL, Sam(RHO)),
    "fedgloss": FedGloSS(0.1, 10.0, LOCAL),
    "fedsmoo": FedSMOO(0.1, 10.0, LOCAL),
}


@dataclass(frozen=True)
class Repeated:
    """The same pictures again and again, as many as are asked for: a million clients in little memory. They lie in
    a file that all processes map, as those of real data sets do."""

    pictures: MappedArray
    labels: Tensor
    count: int

    @property
    def targets(self) -> Tensor:
        return self.labels

    def __len__(self) -> int:
        return self.count

    def fetch(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        rows = indices % len(self.labels)
        return torch.from_numpy(self.pictures.take(rows)), self.labels.index_select(0, torch.from_numpy(rows))


@dataclass(frozen=True)
class EvenPartition(Partition):
    """Clients of equal size, one after the other, without a list of who owns what."""

    each: int = PER_CLIENT

    def __getitem__(self, client: int) -> npt.NDArray[np.int64]:
        return np.arange(client * self.each, (client + 1) * self.each, dtype=np.int64)

    def check(self, samples: int) -> None:
        assert len(self) * self.each == samples


def unit_problem(model: str, clients: int, per_client: int = PER_CLIENT) -> Problem:
    inputs, targets = pictures(min(clients, 100))
    path = KEPT / f"pictures-{len(inputs)}.bin"
    if not path.exists():
        KEPT.mkdir(exist_ok=True)
        write_atomically(path, inputs.tobytes())
    count = clients * per_client
    mapped = MappedArray(path, inputs.dtype.str, inputs.shape)
    samples = Repeated(mapped, torch.from_numpy(targets[:count].copy()), count)
    offsets = np.arange(0, count + 1, per_client, dtype=np.int64)
    partition = EvenPartition(np.empty(0, np.int64), offsets, per_client)
    federation = Federation(samples, partition, transform=PictureTransform(MEAN, STD))
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


def fill(store: ClientStore, algorithm: Algorithm, params: Tensor, clients: int) -> None:
    """As if every client had taken part already."""
    for client in range(clients):
        empty = algorithm.init_client(params)
        memory = {name: torch.full_like(vector, 1e-8) for name, vector in empty.vectors.items()}
        store.put(client, ClientState(memory, empty.scalars), 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="sgd", choices=METHODS)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--per-client", type=int, default=PER_CLIENT)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--client-memory", help="a RAM budget; what does not fit goes to a temporary folder")
    parser.add_argument("--all-took-part", action="store_true", help="every client remembers something already")
    parser.add_argument("--overhead", action="store_true", help="tell what is neither gradient nor augmentation")
    options = parser.parse_args()

    clock = Clock()
    if options.overhead:
        clock.install()
    algorithm = METHODS[options.method]
    problem = unit_problem(options.model, options.clients, options.per_client)
    objective = Objective(problem.build(0), problem.loss)
    start = objective.initial()
    state = algorithm.init_server(start, options.clients)
    plan = Plan(rounds=1_000_000, sampling=ExactCohort(options.cohort))
    with tempfile.TemporaryDirectory() as folder:
        store: ClientStore = MemoryStore()
        if options.client_memory is not None:
            store = DiskStore(Path(folder), size=len(start), budget=bytes_of(options.client_memory))
        if options.all_took_part:
            fill(store, algorithm, start, options.clients)
        with open_simulation(algorithm, problem, objective, store, seed=0, workers=options.workers) as simulation:
            rounds = steps(algorithm, plan, state, simulation.transport, objective.layout, None)

            def once() -> dict[str, float] | None:
                clock.seconds, began = 0.0, time.perf_counter()
                next(rounds)
                seconds = time.perf_counter() - began
                return {"seconds": seconds, "overhead": 1 - clock.seconds / seconds} if options.overhead else None

            serve(once)


if __name__ == "__main__":
    main()
