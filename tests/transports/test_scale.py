"""A million clients: a start in seconds, memory for those who took part, and a forecast of their disk."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedgloss import ExactCohort, Federation, FedGloSS, FedSMOO, LocalTraining, Partition, Problem, train
from fedgloss.plan import forecast
from fedgloss.run import Execution, Job
from fedgloss.training import Plan

MILLION = 1_000_000
LOCAL = LocalTraining(lr=0.1, batch_size=2)
FEDGLOSS = FedGloSS(0.05, 5.0, LOCAL)


def federation(clients: int, each: int = 2) -> Federation:
    owners = np.random.default_rng(0).permutation(clients * each)
    partition = Partition(owners, np.arange(0, clients * each + 1, each))
    inputs = torch.zeros(1, 4).expand(clients * each, 4)  # one row in memory, whatever the number of samples
    return Federation.from_arrays(inputs, torch.arange(clients * each) % 3, clients=partition)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_million_clients_start_in_seconds(workers: int) -> None:
    began = time.process_time()  # what the machine does besides must not count
    problem = Problem(federation(MILLION), partial(nn.Linear, 4, 3))
    history = train(FEDGLOSS, problem, rounds=5, cohort=5, workers=workers)
    assert time.process_time() - began < 5
    assert len(history.rounds) == 5
    assert history.state.population == MILLION
    assert max(client for round in history.rounds for client in round.cohort) > 100_000


@pytest.mark.parametrize(("algorithm", "vectors"), [(FEDGLOSS, 1), (FedSMOO(0.1, 10.0, LOCAL), 2)])
def test_the_plan_says_what_disk_ten_thousand_rounds_need(algorithm: object, vectors: int) -> None:
    problem = Problem(federation(MILLION), partial(nn.Linear, 4, 3))
    plan = Plan(rounds=10_000, sampling=ExactCohort(5), eval_every=1000)
    found = forecast(Job(algorithm, problem, plan), LOCAL, Execution(client_memory=1000), workers=2)  # type: ignore[arg-type]
    visited = MILLION * (1 - (1 - 5 / MILLION) ** 10_000)  # some are drawn twice
    assert found.disk == pytest.approx(visited * vectors * 15 * 4, rel=1e-3)
    assert 45_000 < visited < 50_000
