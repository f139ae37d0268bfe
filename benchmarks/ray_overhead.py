"""What a round costs on Ray beside the local pool: the paper's CNN (0.8M weights), the same clients, equal workers.

    python -m benchmarks.ray_overhead [--rounds 9] [--clients 8] [--samples 500] [--workers 2]

Both train the same rounds in turn, now one first, now the other, so that what else the machine is doing hits both
alike; printed are the median overhead with its quartiles, and the pieces a larger cluster's cost is worked out from
(docs/cluster.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch

from fedgloss import Federation, FedGloSS, LocalTraining, Problem, Sam
from fedgloss.compute import compute_threads
from fedgloss.messages import Broadcast
from fedgloss.models.cnn import Cnn
from fedgloss.tasks import Objective
from fedgloss.transports import MemoryStore, PoolTransport
from fedgloss.transports.ray import Packed, RayTransport

BOUND = 0.10  # of a round on the local pool


def cnn() -> torch.nn.Module:
    return Cnn((3, 32, 32), 10)


def pictures(clients: int, samples: int) -> Federation:
    generator = np.random.default_rng(0)
    count = clients * samples
    inputs = generator.normal(size=(count, 3, 32, 32)).astype(np.float32)
    labels = generator.integers(10, size=count)
    parts = [np.arange(k * samples, (k + 1) * samples) for k in range(clients)]
    return Federation.from_arrays(inputs, labels, clients=parts)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], Any], times: int = 30) -> float:
    work()
    return statistics.median(seconds(work) for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 9), ("clients", 8), ("samples", 500), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    problem = Problem(pictures(given.clients, given.samples), cnn)
    algorithm = FedGloSS(0.1, 10.0, LocalTraining(lr=0.01, batch_size=64), Sam(0.05))
    objective = Objective(problem.build(0), problem.loss)
    start = objective.initial()
    cohort = list(range(0, given.clients, 2))
    options: dict[str, Any] = {"seed": 0, "workers": given.workers}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with (
        compute_threads(1),
        PoolTransport(algorithm, problem, objective, MemoryStore(), **options) as pool,
        RayTransport(algorithm, problem, objective, MemoryStore(), address="local", **options) as cluster,
    ):
        times: dict[str, list[float]] = {"pool": [], "ray": []}
        for number in range(given.rounds + 1):
            broadcast = Broadcast({"params": start}, number)
            turn = [("pool", pool), ("ray", cluster)]
            for name, transport in turn if number % 2 else reversed(turn):
                taken = seconds(lambda: list(transport(broadcast, cohort)))  # noqa: B023 - called at once
                if number > 0:  # the first starts the workers
                    times[name].append(taken)
        message = Packed.of(Broadcast({"params": start}, 0))
        reference = ray.put(message)
        pieces = {
            "put a broadcast": median(lambda: ray.put(message)),
            "take a broadcast out": median(lambda: ray.get(reference).open()),
            "an empty call": median(lambda: ray.get(_nothing().remote())),
        }
    found = {name: statistics.median(values) for name, values in times.items()}
    ratios = [r / p - 1 for p, r in zip(times["pool"], times["ray"], strict=True)]
    low, overhead, high = statistics.quantiles(ratios, n=4)
    print(
        json.dumps(
            {
                "parameters": objective.layout.size,
                "cohort": len(cohort),
                "seconds_per_round": {name: round(value, 4) for name, value in found.items()},
                "overhead": round(overhead, 4),
                "quartiles": [round(low, 4), round(high, 4)],
                "bound": BOUND,
                "milliseconds": {name: round(1000 * value, 3) for name, value in pieces.items()},
            },
            indent=2,
        )
    )


def _nothing() -> Any:
    return ray.remote(num_cpus=0)(_answer)


def _answer() -> None: ...


if __name__ == "__main__":
    main()
