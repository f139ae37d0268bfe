"""Reading run folders: what is in them, what is not a run, and what someone broke."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports.small_runs import add_analysis, make_run

from fedgloss import InvalidInput
from fedgloss.records import read_json, read_lines
from fedgloss.reports.html import page_data
from fedgloss.reports.runs import find_runs, read_run, read_runs


def test_columns_are_the_records(study: Path) -> None:
    run, problems = read_run(study / "fedgloss-sam-seed1", "a name")
    lines = read_lines(study / "fedgloss-sam-seed1" / "rounds.jsonl")
    rounds = [line for line in lines if line["type"] == "round"]
    evaluations = [line for line in lines if line["type"] == "evaluation"]
    assert not problems
    assert run.rounds["loss"].tolist() == [line["loss"] for line in rounds]
    assert run.rounds["norms.dual"].tolist() == [line["norms"]["dual"] for line in rounds]
    assert np.isnan(run.rounds["delta_eps.consecutive"][0])  # the first round has no round before
    assert run.evaluations["accuracy"].tolist() == [line["metrics"]["accuracy"] for line in evaluations]
    assert run.evaluated.tolist() == [line["rounds"] for line in evaluations]
    sent = [line["down"]["bytes"] + line["up"]["bytes"] for line in rounds]
    assert run.travelled(3) == sum(sent[:3])
    assert run.travelled(12) == run.bytes[-1] == sum(sent) == run.traffic.bytes
    assert run.reported("accuracy") == read_json(run.path / "summary.json")["reported"]["accuracy"]
    assert (run.seed, run.status, run.planned, run.length) == (1, "finished", 12, 12)


def test_a_diverged_run_reports_no_accuracy(study: Path) -> None:
    run, _ = read_run(study / "feddyn-seed0", "feddyn")
    assert run.status == "diverged"
    assert run.reported("accuracy") is None
    assert run.length < run.planned


def test_every_analysis_result_is_recognised(study: Path) -> None:
    run, problems = read_run(study / "fedavg-seed0", "fedavg")
    kinds = [m.kind for m in run.measurements]
    assert problems == []
    assert sorted(set(kinds)) == [
        "average_case", "density", "eigenvalues", "interpolation", "local", "surface", "trace", "worst_case",
    ]  # fmt: skip
    assert kinds.count("local") == 3  # a client each, and the eigenvalues inside them are not counted again
    assert kinds.count("eigenvalues") == 1


def test_results_of_the_analysis_package_are_recognised(tmp_path: Path) -> None:
    analysis = pytest.importorskip("fedgloss.analysis", reason="the analysis commands are not part of this build")
    import torch
    from torch import nn

    from fedgloss.analysis.results import save

    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2), torch.randn(40, 3)
    data = (inputs, inputs.argmax(1) % 2)
    run = make_run(tmp_path / "run")
    (run / "analysis").mkdir()
    loss = nn.functional.cross_entropy
    save(run / "analysis" / "a.json", analysis.top_eigenvalues(model, loss, data, top=2, samples=20))
    save(run / "analysis" / "b.json", analysis.loss_surface(model, loss, data, grid=3))
    save(run / "analysis" / "c.json", analysis.interpolate(model, nn.Linear(3, 2), loss, data, points=3))
    found, problems = read_run(run, "run")
    assert problems == []
    assert {m.kind for m in found.measurements} == {"eigenvalues", "surface", "interpolation"}


def test_a_folder_of_runs_stands_for_its_runs(study: Path, tmp_path: Path) -> None:
    runs, skipped = read_runs([study])
    assert (len(runs), skipped) == (12, [])
    twice, _ = read_runs([study, study / "fedavg-seed0"])
    assert len(twice) == 12
    (tmp_path / "run").mkdir()
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run" / "deep" / "down")
    folders, _ = find_runs([tmp_path])
    assert folders == [tmp_path / "run" / "deep" / "down"]


def test_what_is_no_run_is_named_and_skipped(study: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.toml").write_text('title = "another program\'s"\n')
    runs, skipped = read_runs([tmp_path / "empty", foreign, tmp_path / "nowhere", study / "fedavg-seed0"])
    assert [run.seed for run in runs] == [0]
    said = {Path(item.path).name: item.reason for item in skipped}
    assert said["empty"] == "is not a run, nor a folder of runs"
    assert said["nowhere"] == "no such folder"
    assert "environment.json" in said["foreign"]


BREAKS = {
    "config.toml: not TOML": ("config.toml", b"= = ="),
    "config.toml: not text": ("config.toml", b"\xff\xfe\x00"),
    "config.toml: no method": ("config.toml", b"[data]\nname = 'x'\n"),
    "config.toml: section is a number": ("config.toml", b"data = 3\n[algorithm]\nname='fedavg'\n"),
    "environment.json: not JSON": ("environment.json", b"{"),
    "environment.json: another format": ("environment.json", b'{"format": 99}'),
    "rounds.jsonl: not JSON": ("rounds.jsonl", b"hello\n"),
    "rounds.jsonl: no object": ("rounds.jsonl", b"[1, 2]\n"),
    "rounds.jsonl: a round is missing": ("rounds.jsonl", b'{"type":"round","round":3}\n'),
    "rounds.jsonl: deep": ("rounds.jsonl", b"[" * 100_000 + b"\n"),
    "timings.jsonl: no seconds": ("timings.jsonl", b'{"round": 0}\n'),
    "summary.json: a list": ("summary.json", b"[]"),
    "summary.json: reported is no table": ("summary.json", b'{"reported": 3, "status": "finished", "rounds": 12}'),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_run_is_named_with_its_file_and_skipped(name: str, study: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(study / "fedavg-seed0", broken)
    file, content = BREAKS[name]
    (broken / file).write_bytes(content)
    runs, skipped = read_runs([broken, study / "fedavg-seed1"])
    assert [run.seed for run in runs] == [1]
    assert [item.path for item in skipped] == [str(broken)]
    assert file in skipped[0].reason
    assert str(tmp_path) not in skipped[0].reason


def test_a_torn_last_line_is_left_out(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run")
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"type":"round","rou')
    run, _ = read_run(tmp_path / "run", "run")
    assert run.length == 12


def test_a_summary_speaks_only_for_the_rounds_it_knows(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run")
    summary = read_json(tmp_path / "run" / "summary.json")
    (tmp_path / "run" / "summary.json").write_text(json.dumps({**summary, "rounds": 5, "status": "interrupted"}))
    assert read_run(tmp_path / "run", "run")[0].status == "unfinished"
    (tmp_path / "run" / "summary.json").unlink()
    assert read_run(tmp_path / "run", "run")[0].status == "unfinished"


def test_a_broken_analysis_file_is_named_and_the_run_kept(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run")
    bad = json.loads((tmp_path / "run" / "analysis" / "landscape-train.json").read_text())
    bad["grids"]["loss"] = bad["grids"]["loss"][:-1]
    (tmp_path / "run" / "analysis" / "landscape-train.json").write_text(json.dumps(bad))
    (tmp_path / "run" / "analysis" / "other.json").write_text("{")
    (tmp_path / "run" / "analysis" / "strange.json").write_text('{"hello": "world"}')
    runs, skipped = read_runs([tmp_path / "run"])
    assert len(runs) == 1
    assert {Path(item.path).name for item in skipped} == {"landscape-train.json", "other.json"}


def test_an_unreadable_folder_is_skipped(study: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").chmod(0)
    _, skipped = read_runs([tmp_path / "run"])
    assert "cannot be read" in skipped[0].reason


JUNK = [None, "<b>x</b>", [], {}, -1, 10**30, 10**400, True, 1e308, float("nan"), float("inf")]


def leaves(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON document, lists represented by their first item."""
    items = (
        content.items()
        if isinstance(content, dict)
        else list(enumerate(content))[:1]
        if isinstance(content, list)
        else []
    )
    return [path, *(leaf for key, value in items for leaf in leaves(value, (*path, key)))]


def replaced(content: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], junk)
    return copy


@pytest.mark.parametrize("file", ["environment.json", "summary.json", "federation.json", "analysis"])
def test_no_file_of_any_content_stops_the_report(file: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    if file == "analysis":
        add_analysis(run, steepness=1.0, partner="x")
    paths = sorted((run / "analysis").glob("*.json")) if file == "analysis" else [run / file]
    for path in paths:
        original = path.read_text()
        for place in leaves(json.loads(original)):
            for junk in JUNK:
                path.write_text(json.dumps(replaced(json.loads(original), place, junk)))
                try:
                    found, problems = read_run(run, "run")
                except InvalidInput:
                    continue
                json.dumps(page_data([found], problems), allow_nan=False)
        path.write_text(original)


def test_no_line_of_any_content_stops_the_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    path = run / "rounds.jsonl"
    lines = path.read_text().splitlines()
    for number in (0, next(i for i, line in enumerate(lines) if "evaluation" in line)):
        for place in leaves(json.loads(lines[number])):
            for junk in JUNK:
                line = json.dumps(replaced(json.loads(lines[number]), place, junk))
                path.write_text("\n".join([*lines[:number], line, *lines[number + 1 :]]) + "\n")
                try:
                    found, problems = read_run(run, "run")
                except InvalidInput:
                    continue
                json.dumps(page_data([found], problems), allow_nan=False)


def test_a_line_measured_on_one_split_and_again_on_all_is_one_line(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "fedsam-seed1", tmp_path / "run")
    folder = tmp_path / "run" / "analysis"
    (file,) = folder.glob("interpolation-*.json")
    alone = json.loads(file.read_text())["train"]
    (folder / f"{file.stem}-train.json").write_text(json.dumps({"train": alone}))
    elsewhere = {**alone, "to": "another"}
    (folder / "interpolation-to-another-last.json").write_text(json.dumps({"train": elsewhere}))
    found = [m for m in read_run(tmp_path / "run", "run")[0].measurements if m.kind == "interpolation"]
    assert sorted(m.content["to"] for m in found) == sorted([alone["to"], "another"])
