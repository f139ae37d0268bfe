"""What runs answer for the paper's cells: worked on real records, lengthened where a cell needs it."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports.small_runs import make_run

from fedgloss.records import write_json
from fedgloss.reports import paper
from fedgloss.reports.measurements import Measurement
from fedgloss.reports.reproduction import GRADIENTS, Entry, Finder, entry, key, runs_by_key, table, to_json
from fedgloss.reports.reproduction_page import markdown
from fedgloss.reports.runs import Run, read_run
from fedgloss.reports.verdict import tolerance

SEEDS = (0, 42, 200299)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("base") / "run", rounds=4), "run")[0]


def lengthened(base: Run, rounds: int, accuracy: float, *, reached: int = 0, **changes: Any) -> Run:
    """The run as it would be after so many rounds: at ``accuracy`` from the ``reached``-th on, at 0.1 before."""
    done = np.arange(100, rounds + 1, 100)
    values = np.where(done >= reached, accuracy, 0.1)
    a_round = base.bytes[-1] / base.length
    config = {**base.config, "training": {**base.config["training"], "eval_every": 100, "rounds": rounds}}
    fresh: dict[str, Any] = {
        "config": config,
        "bytes": a_round * np.arange(1, rounds + 1),
        "evaluated": done,
        "evaluations": {"accuracy": values},
        "status": "finished",
        "summary": {**base.summary, "rounds": rounds, "reported": {"accuracy": accuracy}},
        "rounds": {"norms.params": np.full(rounds, 7.5)},
    }
    return dataclasses.replace(base, **{**fresh, **changes})


def answered(id: str, runs: dict[tuple[str, int], Run], seeds: tuple[int, ...] = SEEDS, **how: Any) -> Entry:
    """The cell, with runs given by method (and client) and seed."""
    (cell,) = paper.cells(id)

    def find(setting: paper.Setting, seed: int, true_delta_eps: bool) -> list[Run]:
        name = setting.method if setting.method in paper.FIXED_CLIENTS else f"{setting.method}-{setting.client}"
        name += "".join(f",{k}={v}" for k, v in setting.changes)
        return [runs[name, seed]] if (name, seed) in runs else []

    return entry(cell, seeds, find, **how)


def seeded(name: str, base: Run, accuracies: list[float], rounds: int = 10_000, **how: Any) -> dict[Any, Run]:
    return {(name, s): lengthened(base, rounds, a, **how) for s, a in zip(SEEDS, accuracies, strict=False)}


ACCURACY = "sota_cnn/cifar10/alpha=0/fedgloss-sam"  # 83.9 ± 0.4
ROUNDS = "comm_eff_2/cifar10-cnn/alpha=0/rounds/fedgloss-sam"  # 2.2k
COST = "comm_eff_2/cifar10-cnn/alpha=0/cost/fedgloss-sam"  # 0.2B


def test_a_full_cell_gets_its_verdict_worked_by_hand(base: Run) -> None:
    found = answered(ACCURACY, seeded("fedgloss-sam", base, [0.830, 0.834, 0.838]))
    assert found.results == pytest.approx({0: 83.0, 42: 83.4, 200299: 83.8})
    assert found.judgement is not None
    assert found.judgement.difference == pytest.approx(-0.5)
    assert found.judgement.tolerance == pytest.approx(2 * math.sqrt(0.4**2 / 3 + 0.4**2 / 3) + 0.5)
    assert found.verdict == "agrees"
    assert answered(ACCURACY, seeded("fedgloss-sam", base, [0.80, 0.80, 0.80])).verdict == "differs"


def test_one_seed_is_not_judged_and_none_is_not_run(base: Run) -> None:
    assert answered(ACCURACY, seeded("fedgloss-sam", base, [0.83])).verdict == "not judged"
    assert answered(ACCURACY, {}).verdict == "not run"


def test_a_shortened_run_is_labelled_and_not_passed_off(base: Run) -> None:
    found = answered(ACCURACY, seeded("fedgloss-sam", base, [0.839, 0.839, 0.839], rounds=500))
    assert (found.verdict, found.rounds) == ("no verdict", 500)
    assert found.judgement is not None
    assert found.judgement.difference is None
    shown = table(paper.exhibit("tab:sota_cnn"), [found])
    assert shown.rows[0][2].text == "83.9 ± 0 after 500 rounds"
    assert any("shortened" in note for note in shown.notes)
    scaled = answered(ACCURACY, seeded("fedgloss-sam", base, [0.839] * 3), scaled=True)
    assert scaled.verdict == "no verdict"
    assert scaled.judgement is not None
    assert scaled.judgement.reason == "the run was scaled down"


def test_rounds_and_cost_to_our_own_references_accuracy(base: Run) -> None:
    runs = seeded("fedavg", base, [0.58, 0.60, 0.62]) | seeded("fedgloss-sam", base, [0.84] * 3, reached=2250)
    found = answered(ROUNDS, runs)
    assert found.results == dict.fromkeys(SEEDS, 2300.0)  # the first evaluation after round 2250
    assert found.why == "target 60.0, our own reference's"
    assert found.verdict == "agrees"
    cost = answered(COST, runs)
    assert cost.results == pytest.approx(dict.fromkeys(SEEDS, 0.23))
    speed = answered("comm_eff_others/cifar10-cnn/alpha=0/speed_up/fedgloss-sam", runs)
    assert speed.results == pytest.approx(dict.fromkeys(SEEDS, 10000 / 2300))
    itself = answered("comm_eff_2/cifar10-cnn/alpha=0/rounds/fedavg", runs)
    assert itself.results == dict.fromkeys(SEEDS, 10000.0)


def test_without_the_reference_the_papers_accuracy_is_the_target(base: Run) -> None:
    short = seeded("fedgloss-sam", base, [0.70] * 3, rounds=2600, reached=2200)
    found = answered(ROUNDS, short)
    assert found.why == "target 59.9, the paper's"
    assert (found.verdict, found.rounds) == ("agrees", 2600)  # known by then, so it may be judged
    never = answered(ROUNDS, seeded("fedgloss-sam", base, [0.30] * 3, rounds=2000))
    assert never.results == dict.fromkeys(SEEDS, "not reached")
    assert never.verdict == "no verdict"  # it may still come


def test_a_dear_method_pays_for_what_it_sends(base: Run) -> None:
    traffic = dataclasses.replace(base.traffic, vectors_down=2.0, vectors_up=2.0)
    runs = seeded("fedsmoo", base, [0.8] * 3, reached=5000, traffic=traffic)
    found = answered("comm_eff_2/cifar10-cnn/alpha=0/cost/fedsmoo", runs)
    assert found.results == pytest.approx(dict.fromkeys(SEEDS, 0.5 * traffic.factor))


def test_divergence_is_an_answer(base: Run) -> None:
    runs = seeded("feddyn-sgd", base, [0.1] * 3, rounds=700, status="diverged")
    found = answered("sota_cnn/cifar100/alpha=0/feddyn-sgd", runs)
    assert found.results == dict.fromkeys(SEEDS, "diverged")
    assert found.verdict == "agrees"
    assert answered("sota_cnn/cifar10/alpha=0/feddyn-sgd", runs).verdict == "differs"
    assert table(paper.exhibit("tab:sota_cnn"), [found]).rows[0][2].text == "✗"


def test_half_way_lost_norms_and_sharpness(base: Run) -> None:
    naive = seeded("naive-fedgloss-sam", base, [0.776] * 3, rounds=5000)
    half = answered("naive_comparison/cifar10/alpha=0/accuracy_half/naive-fedgloss-sam", naive)
    assert half.results == pytest.approx(dict.fromkeys(SEEDS, 77.6))
    assert half.verdict == "agrees"
    slow = seeded("fedavg", base, [0.6] * 3) | seeded("fedavg,lr=0.001", base, [0.33] * 3)
    lost = answered("local-training/lr=0.001/accuracy_lost/fedavg", slow)
    assert lost.results == pytest.approx(dict.fromkeys(SEEDS, 45.0))
    assert lost.verdict == "agrees"
    subject = {"weights": "last", "split": "train"}
    content = {"top": [{"value": 2.03}], "subject": subject}
    measured = [Measurement("eigenvalues", "flatness-last-train-power eigenvalues", content)]
    sharp = seeded("fedgloss-sam", base, [0.8] * 3, measurements=measured)
    assert answered("sota_cnn_eig/cifar10/alpha=0/fedgloss-sam", sharp).verdict == "agrees"
    elsewhere = {**content, "subject": {**subject, "split": "test"}}
    other = [Measurement("eigenvalues", "flatness", elsewhere)]
    unlike = seeded("fedgloss-sam", base, [0.8] * 3, measurements=other)
    missing = answered("sota_cnn_eig/cifar10/alpha=0/fedgloss-sam", unlike)
    assert (missing.verdict, missing.why) == ("not run", "not measured")
    norm = answered("dual-rule/cifar10/alpha=0/parameter_norm/fedgloss-sam-alg1", {}, SEEDS)
    assert norm.verdict == "not run"


def test_an_interrupted_run_gives_no_answer(base: Run) -> None:
    runs = seeded("fedgloss-sam", base, [0.8] * 3, status="interrupted")
    assert answered(ACCURACY, runs).verdict == "not run"


def test_pictures_are_drawn_not_judged(base: Run) -> None:
    cell = next(c for c in paper.exhibit("fig:acc_c10").cells if c.row == "fedgloss-sam")
    found = entry(cell, SEEDS, lambda setting, seed, true: [lengthened(base, 10_000, 0.8)])
    assert found.verdict == "drawn"
    assert found.judgement is None


def test_runs_are_found_by_what_they_train(tmp_path: Path) -> None:
    make_run(tmp_path / "any name", rounds=2)
    make_run(tmp_path / "longer", rounds=4)
    make_run(tmp_path / "other", rounds=2, seed=1)
    found = runs_by_key(tmp_path)
    assert sorted(tuple(path.name for path in paths) for paths in found.values()) == [
        ("longer", "any name"),
        ("other",),
    ]
    (tmp_path / "longer" / "summary.json").unlink()  # as while it goes on
    assert ["longer", "any name"] in [[path.name for path in paths] for paths in runs_by_key(tmp_path).values()]
    config = {"algorithm": {"name": "fedavg"}, "data": {"name": "x", "path": "/here"}, "training": {"seed": 0}}
    elsewhere = {**config, "data": {"name": "x", "path": "/there"}, "training": {"seed": 0, "rounds": 9}}
    assert key(config) == key(elsewhere)
    assert key(config) != key({**config, "local": {"lr": 0.1}})
    assert key(config) != key({**config, "training": {"seed": 1}})
    for other in ({"window": 5}, {"eval_every": 3}, {"precision": "bfloat16"}):
        assert key(config) != key({**config, "training": {"seed": 0, **other}})
    assert key(config) == key({**config, "training": {"seed": 0, "precision": "float32"}})


def test_gradients_count_whichever_run_of_a_setting_counted_them(tmp_path: Path) -> None:
    make_run(tmp_path / "long", rounds=4)
    make_run(tmp_path / "short", rounds=2)
    (tmp_path / "short" / "analysis").mkdir()
    write_json(tmp_path / "short" / "analysis" / GRADIENTS, {"gradients_per_step": 2.0})
    find = Finder(tmp_path, lambda setting, seed, true: read_run(tmp_path / "long", "long")[0].config)
    counted, carried = (entry(paper.cells(f"algs/{name}/fedsam")[0], (0,), find) for name in COSTS)
    assert counted.results == {0: 2.0}
    assert [run.name for run in counted.runs] == ["short"]
    assert [run.name for run in carried.runs] == ["long"]


COSTS = ("computation", "communication")


def test_results_are_json_and_cells_show_published_values(base: Run, tmp_path: Path) -> None:
    exhibit = paper.exhibit("tab:sota_cnn")
    found = answered(ACCURACY, seeded("fedgloss-sam", base, [0.830, 0.834, 0.838]))
    content = to_json(exhibit, [found], command=["x"])
    write_json(tmp_path / "x.json", content)
    (cell,) = content["cells"]
    assert cell["published"] == {"text": "83.9±0.4", "value": 83.9, "sd": 0.4}
    assert cell["verdict"] == "agrees"
    row = table(exhibit, [found]).rows[0]
    assert [c.text for c in row[:4]] == ["fedgloss-sam", "83.9 ± 0.4", "83.4 ± 0.4", "−0.5"]
    assert tolerance(0.4, 3, 0.4, 3, 0.5) == pytest.approx(row[4].values["tolerance"])


def paged(tmp_path: Path, runs: dict[tuple[str, int], Run]) -> str:
    """The page of a few exhibits' cells of CIFAR-10, alpha = 0; the runs in folders of their own."""
    apart = {
        (name, seed): dataclasses.replace(
            run, path=tmp_path / f"{name}-{seed}", config=_configured(run, name, seed), name=f"{name}-{seed}"
        )
        for (name, seed), run in runs.items()
    }
    here = [c for c in paper.cells() if (c.setting.preset, c.setting.alpha) == ("cifar10-cnn", 0)]
    answers = [
        (one, [answered(cell.id, apart) for cell in one.cells if cell in here])
        for one in map(paper.exhibit, LABELS)
    ]
    return markdown(answers, {"tab:sota_cnn": "everything"}, {})


LABELS = ("tab:algs", "tab:sota_cnn", "tab:comm_eff_2", "fig:landscapes_heterogeneity", "open:dual-rule")


def _configured(run: Run, name: str, seed: int) -> dict[str, Any]:
    method, _, dual = name.partition(",dual=")
    algorithm = {"name": method} | ({"dual": dual} if dual else {})
    return {**run.config, "algorithm": algorithm, "training": {**run.section("training"), "seed": seed}}


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def test_a_page_of_shortened_runs_says_how_far_they_came_and_judges_nothing(base: Run, tmp_path: Path) -> None:
    short = lengthened(base, 1000, 0.42, reached=600)
    stopped = lengthened(base, 700, 0.31, status="interrupted", summary={})
    runs = {("fedgloss-sam", 0): short, ("fedgloss-sam,dual=code", 0): stopped}
    page = paged(tmp_path, runs)
    assert "2 runs and 1,700 rounds, of the 57 runs" in section(page, "In short")
    assert "**To the end:** 0 of these 2." in page
    out = section(page, "What came out")
    assert re.search(r"1,000 of 10,000 \| shortened \| 42\.00 \| 7\.50", out)
    assert re.search(r"700 of 10,000 \| interrupted \| 31\.00", out)  # which the tables of cells leave out
    assert re.search(r"\| 500 \| 31\.0 \| 10\.0 \|", out)
    assert re.search(r"\| 1,000 \| – \| 42\.0 \|", out)
    assert re.search(r"printed in the paper.*\n\| 10,000 \| – \| 83\.9 ± 0\.4 \|", out)
    cells = section(page, "Cell by cell")
    assert r"| sota\_cnn/cifar10/alpha=0/fedgloss-sam | 83.9 ± 0.4 | 42 after 1,000 rounds | stopped after" in cells
    assert "2.2k | not reached after 1,000 rounds" in cells
    assert "fig:landscapes_heterogeneity" not in cells  # no plane was measured
    assert cells.count("**agrees**") == 1  # the communication factor, once; gradients were not counted
    left = section(page, "What was not run")
    assert "| `tab:sota_cnn` | 20 of 22 | everything |" in left
    assert "| `fig:landscapes_heterogeneity` | 2 of 2 |" in left
    assert section(page, "How it was run").count("`fedgloss ") == 2


def test_a_page_of_whole_runs_carries_their_verdicts(base: Run, tmp_path: Path) -> None:
    runs = seeded("fedgloss-sam", base, [0.830, 0.834, 0.838]) | seeded(
        "feddyn-sgd", base, [0.1], status="diverged"
    )
    page = paged(tmp_path, runs)
    assert "**To the end:** 4 of these 4." in page
    assert "| fedgloss-sam | 83.9 ± 0.4 | 83.4 ± 0.4 |" in section(page, "Cell by cell")
    out = section(page, "What came out")
    assert "fedgloss-sam, seed 42" in out
    assert "| whole |" in out
    assert "✗" in out
    assert (
        len(re.findall(r"^\| [\d,]+ \| 10\.0 \| 83\.0", out, re.M)) == 10
    )  # of a hundred evaluations, the last among them
    assert "| 10,000 | 10.0 | 83.0 |" in out


def test_markup_in_a_runs_name_stays_text_on_the_page(base: Run, tmp_path: Path) -> None:
    evil = "<img src=x>|`rm`"
    environment = {"command": ["run", evil], "cpu": evil, "data": {"sources": [{"file": evil}, 3]}}
    page = paged(tmp_path, {("fedgloss-sam", 0): lengthened(base, 500, 0.3, environment=environment)})
    assert "<img src=x>" in page  # in the command, which is code
    assert "<img" not in re.sub(r"`[^`]*`", "", page.replace(r"\<", "").replace(r"\`", ""))


def test_planes_are_drawn_only_where_they_were_measured(base: Run) -> None:
    cell = next(c for c in paper.exhibit("fig:landscapes_heterogeneity").cells)
    plane = Measurement("surface", "landscape", {"subject": {"weights": "last"}})
    local = Measurement("surface", "local", {"subject": {"weights": "client 3 after local training"}})
    for measured, verdict in (([], "not run"), ([local], "not run"), ([plane], "drawn")):
        run = lengthened(base, 10_000, 0.8, measurements=measured)
        assert entry(cell, (0,), lambda setting, seed, true, run=run: [run]).verdict == verdict
