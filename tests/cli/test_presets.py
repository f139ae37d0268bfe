"""Every preset loads, plans and runs, with its own data set's format and the paper's own settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import tiny
from cli.command import fedgloss

from fedgloss.algorithms import METHODS
from fedgloss.config import presets, resolve
from fedgloss.reports import paper

SAMPLES = {"landmarks-mobilenetv2": ["--set", "training.cohort=2", "--set", "local.epochs=1"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def path(name: str) -> list[str]:
        if name not in tiny.MAKERS:
            return []
        if name not in made:
            made[name] = tiny.MAKERS[name](tmp_path_factory.mktemp("data") / name)
        return ["--set", f"data.path={json.dumps(str(made[name]))}"]

    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("preset", presets())
def test_a_preset_plans_and_runs_two_rounds(preset: str, data, place: Path, capsys) -> None:
    options = [*data(resolve(preset).config.data.name), *SAMPLES.get(preset, ["--set", "training.cohort=2"])]
    method = ["--method", "fedgloss", "--client", "sam"]
    answer = fedgloss(capsys, "plan", preset, *method, *options, "--workers", "1", "--json")
    forecast = json.loads(answer.out)
    assert forecast["missing"] is None
    assert forecast["seconds"] > 0
    assert forecast["bytes_down"] > 4 * forecast["parameters"] * 2
    answer = fedgloss(
        capsys, "run", preset, *method, *options, "--rounds", "2", "--workers", "1", "--json", "--out", "run"
    )
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out)
    assert summary["status"] == "finished"
    assert summary["rounds"] == 2
    assert 0 <= summary["reported"]["accuracy"] <= 1
    assert summary["traffic"]["factor"] == 1.0


@pytest.mark.parametrize("preset", ["cifar10-cnn", "landmarks-mobilenetv2"])
def test_absent_data_are_named_by_plan_and_run(preset: str, place: Path, capsys, monkeypatch) -> None:
    plan = fedgloss(capsys, "plan", preset)
    assert plan.code == 1
    assert "missing:" in plan.out
    run = fedgloss(capsys, "run", preset)
    assert run.code == 2
    assert run.err.count("\n") == 1
    assert not (place / "runs").exists()


PAPER = ["cifar10-cnn", "cifar100-cnn", "cifar10-resnet18", "cifar100-resnet18", "landmarks-mobilenetv2"]


@pytest.mark.parametrize("preset", PAPER)
def test_presets_hold_the_papers_settings(preset: str) -> None:
    expected = paper.training()[preset]
    config = resolve(preset).config
    assert config.training.rounds == expected.rounds
    assert config.training.cohort == expected.cohort
    assert config.local.model_dump() == {
        "lr": expected.lr,
        "epochs": expected.epochs,
        "batch_size": expected.batch_size,
        "weight_decay": expected.weight_decay,
        "momentum": expected.momentum,
        "clip": None,
    }


@pytest.mark.parametrize("preset", PAPER)
@pytest.mark.parametrize("method", [*paper.FIXED_CLIENTS, *paper.EITHER_CLIENT])
def test_presets_hold_the_papers_choices_for_each_method(preset: str, method: str) -> None:
    for client in [paper.FIXED_CLIENTS[method]] if method in paper.FIXED_CLIENTS else ["sgd", "sam"]:
        takes = METHODS[method].takes_client
        options = {"algorithm.name": method, **({"algorithm.client": client} if takes else {})}
        resolved = resolve(preset, options).config.algorithm
        for name, value in paper.chosen(preset, method, client).items():
            assert resolved[name] == pytest.approx(value), (method, name)
