"""Every block of docs/data.md is run, in order, in an empty folder; the examples learn."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from own_federation import make_federation
from own_npz import make_archive
from own_pictures import learn, make_pictures
from torch import nn

from fedgloss import FedAvg, LocalTraining, Problem, train
from fedgloss.cli import main
from fedgloss.data.datasets import DataSet, load

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets").disable_progress_bars()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "docs/data.md", "exec"), names)
            continue
        for line in block.strip().splitlines():
            monkeypatch.setattr(sys, "argv", shlex.split(line))
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, f"{line}: {capsys.readouterr().err}"
    assert len(blocks) == 9
    assert names["federation"].population == 3
    assert names["shapes"].owners.max() == 4
    assert names["people"].owners.max() == 3
    assert len(list(tmp_path.glob("*.png"))) == 6


def test_own_pictures_from_folders_and_by_a_split(tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures")
    assert learn(tmp_path / "pictures", clients="folders") > 0.8
    for person in ("anna", "ben", "carla"):
        for file in (tmp_path / "pictures" / person).rglob("*.jpg"):
            target = tmp_path / "merged" / file.parent.name / f"{person}-{file.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
    assert learn(tmp_path / "merged") > 0.8


def test_own_archive(tmp_path: Path) -> None:
    make_archive(tmp_path / "shapes.npz")
    shapes = load("npz", path=tmp_path / "shapes.npz")
    assert isinstance(shapes, DataSet)
    assert np.bincount(shapes.owners).tolist() == [40] * 5
    assert shapes.classes == ("upright", "lying")


def test_own_federation_learns() -> None:
    problem = Problem(make_federation(), lambda: nn.Linear(30, 2))
    history = train(FedAvg(LocalTraining(lr=0.1, batch_size=16)), problem, rounds=20, cohort=2)
    assert history.reported() > 0.9
