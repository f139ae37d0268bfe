"""Runs put in order, and the statistics that decide what a report may claim."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import shutil
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from reports.small_runs import make_run
from scipy import stats

from fedgloss.costs import ledger
from fedgloss.records import read_json, read_lines
from fedgloss.reports import results
from fedgloss.reports.curves import Curve, curve_of, curves_of, mean_curve, quantities
from fedgloss.reports.measurements import Measurement
from fedgloss.reports.runs import Run, read_run, read_runs
from fedgloss.reports.study import Setting, arrange, labels, once, paired
from fedgloss.reports.tables import CROSS


@pytest.fixture(scope="module")
def setting(study: Path) -> Setting:
    (found,) = arrange(read_runs([study])[0])
    return found


def with_accuracy(run: Run, value: float) -> Run:
    return dataclasses.replace(
        run, summary={**run.summary, "reported": {**run.summary["reported"], "accuracy": value}}
    )


def judged(setting: Setting, accuracies: dict[str, list[float]]) -> Setting:
    """The same setting with these reported accuracies, a seed each."""
    methods = [
        dataclasses.replace(m, runs=[with_accuracy(r, v) for r, v in zip(m.runs, accuracies[m.label], strict=True)])
        for m in setting.methods
        if m.label in accuracies
    ]
    return dataclasses.replace(setting, methods=methods)


def test_methods_stand_in_the_papers_order_with_their_seeds(setting: Setting) -> None:
    assert [m.label for m in setting.methods] == ["FedAvg", "FedDyn-SGD", "FedSAM", "FedGloSS-SAM"]
    assert [m.client for m in setting.methods] == ["sgd", "sgd", "sam", "sam"]
    assert all([run.seed for run in m.runs] == [0, 1, 2] for m in setting.methods)
    assert list(labels([setting])) == [m.label for m in setting.methods]


def test_another_step_size_is_another_setting_and_another_beta_another_method(study: Path, tmp_path: Path) -> None:
    folders = [
        study / "fedgloss-sam-seed0",
        make_run(tmp_path / "other-beta", "fedgloss", client="sam", beta=7.0, rounds=4),
        make_run(tmp_path / "other-lr", "fedgloss", client="sam", beta=5.0, lr=0.2),
    ]
    runs = [read_run(folder, folder.name)[0] for folder in folders]
    same_rounds = dataclasses.replace(runs[1], config={**runs[1].config, "training": runs[0].config["training"]})
    settings = arrange([runs[0], same_rounds, runs[2]])
    assert [len(list(s.runs)) for s in settings] == [2, 1]
    assert [m.label for m in settings[0].methods] == ["FedGloSS-SAM (beta 5)", "FedGloSS-SAM (beta 7)"]
    assert "local.lr 0.1" in settings[0].name
    assert "local.lr 0.2" in settings[1].name


def test_a_copy_of_a_run_is_no_other_seed(study: Path, tmp_path: Path) -> None:
    whole, copy = study / "fedsam-seed0", tmp_path / "copy"
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "analysis")  # it knows less than the other
    runs, _ = read_runs([copy, whole, study / "fedsam-seed1"])
    kept, left_out = once(runs)
    assert [run.path for run in kept] == [whole, study / "fedsam-seed1"]
    assert [(item.path, item.reason) for item in left_out] == [
        (str(copy), f"repeats {whole}: method, setting and seed are the same")
    ]
    assert once(kept) == (kept, [])


def test_what_was_measured_of_a_copy_is_not_lost(study: Path) -> None:
    (measured,), _ = read_runs([study / "fedsam-seed0"])
    rounds = {**measured.rounds, "delta_eps.true": measured.rounds["loss"]}
    twin = dataclasses.replace(measured, path=Path("twin"), rounds=rounds, measurements=())
    (kept,), (left_out,) = once([measured, twin])
    assert kept.path == twin.path  # it recorded more in every round
    assert list(kept.measurements) == list(measured.measurements) != []
    assert left_out.path == str(measured.path)
    (longer,), _ = once([twin, dataclasses.replace(measured, bytes=measured.bytes[:-1])])
    assert not longer.measurements  # those are of another model


def test_federations_of_one_configuration_are_not_one(study: Path) -> None:
    (run,), _ = read_runs([study / "fedsam-seed0"])
    here = dataclasses.replace(run, config={**run.config, "data": {"name": "sites"}})
    there = dataclasses.replace(here, path=Path("there"), rounds={**here.rounds, "loss": here.rounds["loss"] + 1})
    assert once([here, there]) == ([here, there], [])
    assert len(once([here, dataclasses.replace(here, path=Path("copy"))])[0]) == 1


def test_the_paired_interval_is_the_t_interval() -> None:
    random = np.random.default_rng(0)
    one, other = random.normal(0.8, 0.02, 5), random.normal(0.75, 0.02, 5)
    found = paired(dict(enumerate(one)), {**dict(enumerate(other)), 9: 0.0})
    assert found is not None
    interval = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.seeds == 5
    assert paired({0: 1.0}, {0: 0.5}) is None
    assert paired({0: 1.0, 1: 1.0}, {2: 0.5, 3: 0.5}) is None


CLEAR = {"FedAvg": [0.70, 0.71, 0.72], "FedSAM": [0.60, 0.62, 0.61], "FedGloSS-SAM": [0.80, 0.82, 0.81]}
CLOSE = {**CLEAR, "FedAvg": [0.78, 0.84, 0.80]}


@pytest.mark.parametrize(("accuracies", "bold"), [(CLEAR, ["FedGloSS-SAM"]), (CLOSE, [])])
def test_bold_needs_a_paired_comparison_with_every_other(setting: Setting, accuracies, bold) -> None:
    table = results.results(judged(setting, accuracies))
    assert [row[0].text for row in table.rows if row[1].bold] == bold
    comparison = results.comparisons(judged(setting, accuracies))
    assert comparison is not None
    assert "95% interval" in [column.name for column in comparison.columns]
    said = {row[0].text: row[-1].text for row in comparison.rows}
    assert said["FedAvg"] == ("better" if bold else "not told apart")
    assert any("ddof = 1" in note for note in table.notes)


def test_one_seed_makes_nothing_bold(setting: Setting) -> None:
    single = dataclasses.replace(
        setting, methods=[dataclasses.replace(m, runs=m.runs[:1]) for m in setting.methods if not m.diverged]
    )
    assert not any(cell.bold for row in results.results(single).rows for cell in row)
    assert results.comparisons(single) is None


def test_a_method_with_too_few_common_seeds_is_named_in_the_comparison(setting: Setting) -> None:
    chosen = judged(setting, CLEAR)
    short = dataclasses.replace(chosen.methods[0], runs=chosen.methods[0].runs[:1])
    comparison = results.comparisons(dataclasses.replace(chosen, methods=[short, *chosen.methods[1:]]))
    assert comparison is not None
    assert [(row[0].text, row[3].text, row[-1].text) for row in comparison.rows] == [
        ("FedAvg", "1", "too few seeds"),
        ("FedSAM", "3", "better"),
    ]


def with_measurements(setting: Setting, found: dict[str, list[list[Measurement]]]) -> Setting:
    """The same setting with these measurements, a list a seed."""
    methods = [
        dataclasses.replace(
            m,
            runs=[dataclasses.replace(r, measurements=one) for r, one in zip(m.runs, found[m.label], strict=True)],
        )
        for m in setting.methods
        if m.label in found
    ]
    return dataclasses.replace(setting, methods=methods)


SUBJECT = {"split": "train", "samples": 120, "weights": "last", "preprocessing": "as in evaluation"}


def largest(value: float) -> list[Measurement]:
    top = [{"value": value, "residual": 0.1, "spread": 0.5}]
    return [Measurement("eigenvalues", "x", {"top": top, "bottom": [], "method": "power", "subject": SUBJECT})]


def test_the_flattest_is_bold_with_its_interval_shown(setting: Setting) -> None:
    flat = {"FedAvg": [largest(v) for v in (9.0, 9.5, 9.2)], "FedSAM": [largest(v) for v in (4.0, 4.2, 4.1)]}
    chosen = with_measurements(setting, flat)
    assert [row[0].text for row in results.results(chosen).rows if row[2].bold] == ["FedSAM"]
    comparison = results.curvature_comparisons(chosen)
    assert comparison is not None
    ((label, difference, interval, seeds, said),) = comparison.rows
    assert (label.text, seeds.text, said.text, said.bold) == ("FedAvg", "3", "flatter", True)
    expected = stats.ttest_rel([4.0, 4.2, 4.1], [9.0, 9.5, 9.2]).confidence_interval(0.95)
    assert difference.values["mean"] == pytest.approx(-5.1333, abs=1e-4)
    assert (interval.values["low"], interval.values["high"]) == pytest.approx((expected.low, expected.high))


def test_sharpness_of_some_seeds_says_so(setting: Setting) -> None:
    some = with_measurements(setting, {"FedAvg": [largest(9.0), [], []], "FedSAM": [largest(4.0)] * 3})
    table = results.results(some)
    assert any(note.endswith("fewer seeds than were trained: FedAvg 1 of 3.") for note in table.notes)
    rows = {row[0].text: row[2] for row in table.rows}
    assert (rows["FedAvg"].text, rows["FedAvg"].note) == ("9.00 ± 0.50", "seed 0: 9")
    assert results.curvature_comparisons(some) is None
    assert not any("fewer" in note for note in results.results(setting).notes)


def test_what_two_files_of_a_run_hold_is_one_seeds(setting: Setting) -> None:
    trace = {"value": 12.0, "error": 3.0, "products": 30.0, "subject": SUBJECT}
    swapped = {**trace, "value": 50.0, "subject": {**SUBJECT, "preprocessing": "constants of cifar100"}}
    worst = [
        {"value": v, "rho": 0.05, "steps": n, "loss": 1.0, "subject": SUBJECT} for v, n in ((0.1, 1), (0.2, 5))
    ]
    found = [
        Measurement("trace", "lanczos", trace),
        Measurement("trace", "power", trace),
        Measurement("trace", "swapped", swapped),
        *(Measurement("worst_case", "lanczos", one) for one in worst),
        Measurement("drift", "lanczos", {"drift": 1.5, "subject": {}}),
    ]
    table = results.measures(with_measurements(setting, {"FedAvg": [found, [], []]}))
    assert table is not None
    assert {column.name: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)} == {
        "Method": "FedAvg",
        "Trace of the Hessian, final model, 120 training samples": "12.0 ± 3.0",
        "Trace of the Hessian, final model, 120 training samples, constants of cifar100": "50.0 ± 3.0",
        "Worst rise of the loss, ρ 0.05, 1 step": "0.1",
        "Worst rise of the loss, ρ 0.05, 5 steps": "0.2",
        "Drift of the last round's clients": "1.5",
    }
    assert table.rows[0][1].values["seeds"] == 1


def test_names_of_files_stay_apart() -> None:
    long = "cifar10, " + ", ".join(f"key{n} {n}" for n in range(40))
    assert results.slug("results", long + " 1") != results.slug("results", long + " 2")
    assert results.slug("results", "猫") != results.slug("results", "犬")
    assert len(results.slug("results", long)) < 100


def test_the_table_shows_what_the_runs_report(setting: Setting, study: Path) -> None:
    table = results.results(setting)
    rows = {row[0].text: row for row in table.rows}
    values = [read_json(study / f"fedsam-seed{s}" / "summary.json")["reported"]["accuracy"] for s in range(3)]
    assert rows["FedSAM"][1].text == f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}"
    assert rows["FedDyn-SGD"][1].text == CROSS
    assert "seed 0: round" in rows["FedDyn-SGD"][1].note
    lines = {line["Method"]: line for line in csv.DictReader(io.StringIO(table.to_csv()))}
    assert lines["FedSAM"]["Accuracy (%) mean"] == str(100 * fmean(values))
    assert [lines[name]["Accuracy (%) state"] for name in ("FedSAM", "FedDyn-SGD")] == ["finished", "diverged"]
    communication = [column.name for column in table.columns].index("Communication")
    records = read_lines(study / "fedsam-seed0" / "rounds.jsonl", "round")
    assert rows["FedSAM"][communication].values["factor"] == ledger(records).factor == 1.0
    sharpness = [column.name for column in table.columns].index("λ₁")
    files = [read_json(study / f"fedsam-seed{s}" / "analysis" / "flatness-train.json") for s in range(3)]
    assert rows["FedSAM"][sharpness].values["mean"] == pytest.approx(fmean(f["top"][0]["value"] for f in files))


def test_the_way_to_fedavgs_accuracy(setting: Setting) -> None:
    chosen = judged(setting, {"FedAvg": [0.5, 0.5, 0.5], "FedSAM": [0.9, 0.9, 0.9]})
    low, never = chosen.methods[1], 2.0
    found = chosen.reached(low)
    assert found is not None
    assert found.rounds == fmean(
        next(int(n) for n, a in zip(r.evaluated, r.evaluations["accuracy"], strict=True) if n % 2 == 0 and a >= 0.5)
        for r in low.runs
    )
    fedavg = chosen.reached(chosen.methods[0])
    assert fedavg is not None
    assert fedavg.rounds == 12
    assert judged(setting, {"FedAvg": [never] * 3, "FedSAM": [0.9] * 3}).reached(low) is None


def test_an_unfinished_run_is_shown_as_such(setting: Setting) -> None:
    going = dataclasses.replace(setting.methods[0].runs[0], status="unfinished", bytes=np.arange(3.0))
    method = dataclasses.replace(setting.methods[0], runs=[going])
    one = dataclasses.replace(setting, methods=[method])
    assert results.results(one).rows[0][1].text == "25 % done"


def test_mean_curves_are_over_common_rounds() -> None:
    one = Curve(np.array([2, 4, 6]), np.array([20.0, 40.0, 60.0]), np.array([1.0, 2.0, 3.0]))
    two = Curve(np.array([2, 6]), np.array([20.0, 60.0]), np.array([3.0, 5.0]))
    mean = mean_curve([one, two])
    assert mean is not None
    assert mean.rounds.tolist() == [2, 6]
    assert mean.values.tolist() == [2.0, 4.0]
    assert mean.sd is not None
    assert mean.sd.tolist() == pytest.approx([math.sqrt(2), math.sqrt(2)])
    assert mean_curve([one]) is None


def test_every_recorded_figure_has_a_curve(setting: Setting) -> None:
    found = {q.id: q for q in quantities(list(setting.runs))}
    assert {
        "accuracy", "test_loss", "train_loss", "norm_params", "norm_update", "norm_dual", "norm_client_update",
        "delta_eps_consecutive", "client_accuracy_p10", "client_accuracy_p50", "client_accuracy_p90",
    } <= set(found)  # fmt: skip
    run = setting.methods[0].runs[0]
    curve = curve_of(run, found["accuracy"])
    assert curve is not None
    assert curve.values.tolist() == [100 * a for a in run.evaluations["accuracy"]]
    assert curve.bytes.tolist() == [run.travelled(int(n)) for n in run.evaluated]
    assert curves_of(setting.methods[0], found["norm_dual"]) == (None, [])  # FedAvg has no dual
