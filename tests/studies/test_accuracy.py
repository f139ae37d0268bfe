"""Whole runs on real data reach the accuracies that docs/studies.md states, with the commands it states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.command import fedgloss

pytestmark = pytest.mark.slow

RUNS = {
    "digits, FedAvg": ("run digits --method fedavg", 0.75),
    "digits, FedGloSS": ("run digits --method fedgloss --client sam", 0.90),
    "fashion-mnist, FedGloSS": ("run fashion-mnist-cnn --method fedgloss --client sam --rounds 100", 0.45),
    "cifar10, FedAvg": ("run cifar10-cnn --method fedavg --alpha 100 --rounds 200", 0.41),
}
"""What is run, and the accuracy it must pass: a little below the measured one, as machines round differently."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_reaches_its_accuracy(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, least = RUNS[name]
    if "cifar10" in command:
        assert fedgloss(capsys, "data", "get", "cifar10").code == 0
    done = fedgloss(capsys, *command.split(), "--out", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["reported"]["accuracy"] > least
