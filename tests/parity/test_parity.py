"""The library against plain transcriptions: every iterate and dual of six rounds, to 1e-12."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from parity import transcriptions

from fedgloss import FedGloSS, FedSMOO, LocalTraining, Sam, Scaffold
from fedgloss.algorithm import Algorithm, run_round
from fedgloss.transports import MemoryStore, SerialTransport
from fedgloss.vectors import Entry, Layout, Vector

PINNED = json.loads(Path(__file__).with_name("pinned.json").read_text())
LOCAL = LocalTraining(lr=transcriptions.LR, epochs=transcriptions.STEPS)


@dataclass(frozen=True)
class TwistedTask:
    """The transcriptions' client problem as a task."""

    client: int

    @property
    def size(self) -> int:
        return transcriptions.SIZES[self.client]

    @property
    def layout(self) -> Layout:
        return Layout((Entry("weight", (3,), 0),), torch.float64)

    def batches(self, batch_size: int, epochs: int) -> Iterator[None]:
        yield from [None] * epochs

    def gradient(self, params: Vector, batch: None) -> Vector:
        return torch.tensor(transcriptions.gradient(self.client, params.tolist()), dtype=torch.float64)

    def mean_loss(self) -> float:
        return 0.0


def library_rounds(algorithm: Algorithm):
    """After each round: the server's state and every client's memory (zeros where it has none yet)."""
    store = MemoryStore()
    transport = SerialTransport(algorithm, lambda k, t, p: TwistedTask(k), store)
    start = torch.tensor(transcriptions.START, dtype=torch.float64)
    state = algorithm.init_server(start, transcriptions.CLIENTS)
    for cohort in transcriptions.COHORTS:
        state = run_round(algorithm, state, cohort, transport)
        yield state, [store.get(k) or algorithm.init_client(start) for k in range(transcriptions.CLIENTS)]


def agrees(vector: Vector, pinned: list[float]) -> bool:
    return vector.tolist() == pytest.approx(pinned, rel=1e-12, abs=1e-13)


def test_the_pinned_numbers_are_what_the_script_gives() -> None:
    again = json.loads(json.dumps(transcriptions.all_numbers()))
    for name, rounds in PINNED.items():
        for one, other in zip(rounds, again[name], strict=True):
            assert one.keys() == other.keys()
            assert all(
                agrees(torch.tensor(other[key]).double(), torch.tensor(one[key]).double().tolist())
                for key in one
                if not isinstance(one[key][0], list)
            )


def test_fedgloss_is_algorithm_1() -> None:
    beta = 4.0
    algorithm = FedGloSS(0.3, beta, LOCAL, Sam(0.2))
    for (state, memories), pinned in zip(library_rounds(algorithm), PINNED["fedgloss"], strict=True):
        assert agrees(state["params"], pinned["w"])
        assert agrees(state["dual"] / beta, pinned["sigma"])
        assert agrees(state["pseudo_gradient"], pinned["delta"])
        for memory, sigma_k in zip(memories, pinned["sigma_k"], strict=True):
            assert agrees(memory["dual"] / beta, sigma_k)


def test_scaffold_is_its_transcription() -> None:
    for (state, memories), pinned in zip(library_rounds(Scaffold(LOCAL)), PINNED["scaffold"], strict=True):
        assert agrees(state["params"], pinned["w"])
        assert agrees(state["control"], pinned["c"])
        for memory, c_k in zip(memories, pinned["c_k"], strict=True):
            assert agrees(memory["control"], c_k)


def test_fedsmoo_is_its_transcription() -> None:
    beta = 4.0
    algorithm = FedSMOO(0.25, beta, LOCAL)
    for (state, memories), pinned in zip(library_rounds(algorithm), PINNED["fedsmoo"], strict=True):
        assert agrees(state["params"], pinned["w"])
        assert agrees(state["dual"] / beta, pinned["lambda"])
        assert agrees(state["perturbation"], pinned["s"])
        for memory, lambda_k, mu_k in zip(memories, pinned["lambda_k"], pinned["mu_k"], strict=True):
            assert agrees(memory["dual"] / beta, lambda_k)
            assert agrees(memory["perturbation_dual"], mu_k)
