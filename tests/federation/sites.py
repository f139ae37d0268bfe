"""Three sites and a server in one process: letters are carried by hand, all else is the real thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgloss import Federation, LocalTraining, Problem
from fedgloss.algorithm import Algorithm
from fedgloss.algorithms import build
from fedgloss.federation import Learning, Reply, SiteMemory, answer
from fedgloss.messages import ClientState
from fedgloss.sampling import ExactCohort, Sampling
from fedgloss.training import Plan

LOCAL = LocalTraining(lr=0.1, batch_size=16, momentum=0.5)
SITES = 3


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def problem() -> Problem:
    """Digits, each site with another third."""
    inputs, targets = (tensor[:300] for tensor in digits())
    test = tuple(tensor[300:500] for tensor in digits())
    parts = [range(0, 120), range(120, 200), range(200, 300)]
    return Problem(Federation.from_arrays(inputs, targets, clients=parts, test=test), network)  # type: ignore[arg-type]


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.from_numpy(found.images).float() / 16, torch.from_numpy(found.target).long()


def site_data(node_config: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    federation = problem().federation
    return federation.train.fetch(federation.partition[int(node_config["partition-id"])])


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    federation = problem().federation
    assert federation.test is not None
    return federation.test.inputs, federation.test.targets  # type: ignore[attr-defined]


def learning(
    algorithm: Algorithm | str, rounds: int = 3, sampling: Sampling | None = None, **options: Any
) -> Learning:
    if isinstance(algorithm, str):
        algorithm = build(algorithm, LOCAL)
    plan = Plan(rounds=rounds, sampling=sampling or ExactCohort(SITES), eval_every=1)
    return Learning(algorithm, plan, network, SITES, site_data, test_data, **options)


Fault = Callable[[int, dict[str, Any], dict[str, Any]], Sequence[Reply] | None]
"""(site, letter, its honest answer) -> what arrives instead, None for the honest answer."""


class Courier:
    """Carries letters to sites in this process; a fault may happen to any answer."""

    def __init__(self, learning: Learning, folder: Path, fault: Fault | None = None) -> None:
        self.learning = learning
        self.folder = folder
        self.fault = fault
        self.letters: list[dict[str, Any]] = []

    def connected(self, wanted: Sequence[int]) -> set[int]:
        return set(wanted)

    def exchange(self, letters: Mapping[int, Mapping[str, Any]], group: str) -> Iterator[Reply]:
        for site in reversed(list(letters)):  # in any order
            letter = dict(letters[site])
            self.letters.append(letter)
            honest = answer(self.learning, {"partition-id": site}, self.folder / str(site), letter)
            arrives = None if self.fault is None else self.fault(site, letter, honest)
            yield from [Reply(site, honest)] if arrives is None else arrives

    def memory(self, site: int, run: str, version: int) -> ClientState:
        size = self.learning.objective().layout.size
        found = SiteMemory(self.folder / str(site), run, size=size).settle(version, 10**6)
        assert found is not None
        return found
