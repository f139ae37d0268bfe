"""`flatness`, `landscape` and `interpolate` on tiny runs: what they find, keep, go on from, and refuse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cli.command import Answer, fedgloss
from cli.tiny import cifar10

from fedgloss import InvalidInput
from fedgloss.analysis import Eigenvalues, Interpolation, MeanLoss, Surface, from_json, load
from fedgloss.checkpoint import Checkpoints
from fedgloss.codec import encode
from fedgloss.export import run_model, run_weights
from fedgloss.flatness import (
    RELEASED,
    Flatness,
    MeasuredRun,
    Measures,
    Terms,
    measure_flatness,
    measure_interpolation,
    measure_landscape,
)
from fedgloss.records import RunFolder, read_json, write_json
from fedgloss.reports.measurements import read_measurements
from fedgloss.vectors import norm

TINY = [
    "--rounds",
    "4",
    "--workers",
    "1",
    "--quiet",
    "--set",
    "training.cohort=4",
    "--set",
    "model.name=mlp",
    "--set",
    "model.options.hidden=[8]",
]
METHODS = {
    "fedavg": ["-m", "fedavg"],
    "fedgloss": ["-m", "fedgloss", "--client", "sam"],
    "naive": ["-m", "naive-fedgloss"],
    "fedsmoo": ["-m", "fedsmoo"],
}


def run_command(*arguments: str | Path) -> None:
    from fedgloss.cli import main

    before, sys.argv = sys.argv, ["fedgloss", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    assert ended.value.code == 0, arguments


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for name, options in METHODS.items():
        run_command("run", "digits", *options, *TINY, "--out", folder / name)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies to work on, in the working directory."""
    for name in METHODS:
        shutil.copytree(trained / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(runs: Path, capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str | Path) -> Answer:
        answer = fedgloss(capsys, *arguments)
        assert answer.code == 0, answer.err
        return answer

    return command


def the_file(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_flatness_is_that_of_the_exported_model(call, runs: Path) -> None:
    out = call("flatness", "fedavg", "fedgloss", "--top", "2", "--sharpness", "--trace").out
    for text in ("fedavg", "fedgloss-sam", "lambda_1", "trace", "SAM sharpness", "|cos| of the pseudo-gradient"):
        assert text in out
    assert "last server step" in out
    found = load(runs / "fedavg" / "analysis" / "flatness-last-train-lanczos.json", Flatness)
    measured = MeasuredRun("fedavg")
    federation = measured.problem.federation
    inputs, targets = federation.train.fetch(np.sort(federation.partition.indices))
    model = run_model(RunFolder(Path("fedavg")))
    plain = MeanLoss(model, F.cross_entropy, (federation.transform.test(inputs), targets))
    assert found.means["loss"] == pytest.approx(plain.value(plain.params), rel=1e-6)
    vector = torch.ones(plain.layout.size, dtype=torch.float64)
    ours = measured.loss(Terms()).hessian_vector(measured.weights(), vector)
    assert norm(ours - plain.hessian_vector(plain.params, vector)) < 1e-5 * norm(ours)
    assert found.eigenvalues is not None
    assert found.eigenvalues.subject.samples == len(targets)
    assert (found.eigenvalues.subject.split, found.eigenvalues.subject.weights) == ("train", "last")
    assert len(found.eigenvalues.top) == 2
    assert len(found.eigenvalues.bottom) == 1
    assert [one.steps for one in found.worst_case] == [1, 5]
    assert found.worst_case[1].value >= found.worst_case[0].value > 0
    assert found.alignment is not None
    assert all(0 <= cosine <= 1 for cosine in (*found.alignment.cosines, *found.alignment.ascents))
    gloss = load(runs / "fedgloss" / "analysis" / "flatness-last-train-lanczos.json", Flatness)
    assert 0 < gloss.delta_eps["consecutive"] <= 2
    pictures = {p.name for p in (runs / "fedgloss" / "analysis").iterdir() if p.suffix in (".png", ".svg")}
    assert {"flatness-last-train-lanczos-eigenvalues.png", "flatness-last-train-lanczos-delta-eps.svg"} <= pictures
    assert (runs / "fedavg" / "analysis" / "flatness-compared-eigenvalues.png").exists()


def test_subsets_give_error_bars_and_workers_no_difference(call, runs: Path) -> None:
    command = ["flatness", "fedavg", "--samples", "200", "--top", "1", "--on", "test", "--json"]
    shutil.copytree("fedavg", "copy")
    one = json.loads(call(*command, "--workers", "1").out)["fedavg"]
    command[1] = "copy"
    other = json.loads(call(*command, "--workers", "2").out)["copy"]
    assert one["eigenvalues"] == other["eigenvalues"]
    found = from_json(Eigenvalues, one["eigenvalues"])
    assert found.largest.spread is None  # 359 test pictures hold one such subset
    command = ["flatness", "fedavg", "--samples", "200", "--top", "1", "--json"]
    found = from_json(Eigenvalues, json.loads(call(*command).out)["fedavg"]["eigenvalues"])
    assert len(found.largest.by_subset) == 5
    assert found.largest.spread == pytest.approx(np.std(found.largest.by_subset, ddof=1))


@pytest.mark.parametrize("name", list(METHODS))
def test_the_last_round_is_recomputed_to_the_bit(runs: Path, name: str) -> None:
    run = MeasuredRun(name)
    last = run.last_round
    assert last.exact
    assert len(last.models) == len(last.deltas) == run.config.training.cohort
    if name == "fedavg":
        before = run_weights(run.folder, done=3)
        mean = sum(last.sizes[c] * last.deltas[c].double() for c in last.models) / sum(last.sizes.values())
        assert norm(before.double() + mean - run.weights().double()) < 1e-5
        client = next(iter(last.models))
        assert torch.equal(last.models[client], before + last.deltas[client])


def test_local_against_global(call, runs: Path) -> None:
    out = call("flatness", "fedgloss", "--local", "--clients", "2", "--samples", "100", "--top", "1").out
    assert "on its own data" in out
    assert "agreement" in out
    found = load(runs / "fedgloss" / "analysis" / "flatness-last-train-100-lanczos.json", Flatness)
    run = MeasuredRun("fedgloss")
    cohort = list(run.last_round.models)
    assert [one.client for one in found.local] == cohort[:2]
    assert found.drift is not None
    assert found.drift.clients == len(cohort)
    for one in found.local:
        assert one.local.subject.samples == len(run.own_samples(one.client))
        assert (one.union.subject.samples, one.union.subject.split) == (100, "train")
    assert (runs / "fedgloss" / "analysis" / "flatness-last-train-100-lanczos-local.png").exists()


def test_the_density_has_the_hessian_s_trace(call, runs: Path) -> None:
    call("flatness", "fedavg", "--top", "1", "--density", "--trace")
    found = load(runs / "fedavg" / "analysis" / "flatness-last-train-lanczos.json", Flatness)
    assert found.density is not None
    assert found.trace is not None
    moment = np.mean(
        [np.dot(points, masses) for points, masses in zip(found.density.points, found.density.masses, strict=True)]
    )
    size = found.trace.subject.parameters
    assert size * moment == pytest.approx(found.trace.value, rel=0.3)
    assert (runs / "fedavg" / "analysis" / "flatness-last-train-lanczos-density.svg").exists()


def test_landscapes_share_the_draw_and_their_centre_is_the_model(call, runs: Path) -> None:
    out = call("landscape", "fedavg", "fedgloss", "--grid", "3", "--samples", "150", "--range", "-0.5", "0.5").out
    assert "loss at the model" in out
    for name in ("fedavg", "fedgloss"):
        surface = load(runs / name / "analysis" / "landscape-last-train-150.json", Surface)
        assert surface.complete
        assert surface.x == (-0.5, 0.0, 0.5)
        assert surface.seed == 0
        assert surface.loss[1][1] == pytest.approx(surface.centre["loss"], abs=1e-6)
    for picture in ("fedavg-and-fedgloss-sam.png", "contours.svg"):
        assert (runs / "fedavg" / "analysis" / f"landscapes-compared-{picture}").exists()
    assert "1150" not in call("landscape", "fedavg", "--grid", "2", "--directions", "eigenvectors").out
    along = load(the_file(runs / "fedavg" / "analysis", "landscape-eigenvectors-*.json"), Surface)
    assert along.directions == "top eigenvectors"
    assert along.subject.samples == 1438  # all there are, not 2000


def test_local_landscapes_on_own_and_on_all_data(call, runs: Path) -> None:
    call("landscape", "fedsmoo", "--grid", "2", "--samples", "50", "--local", "--clients", "1")
    client = next(iter(MeasuredRun("fedsmoo").last_round.models))
    folder = runs / "fedsmoo" / "analysis"
    own = load(folder / f"landscape-client{client}-own-last-train-50.json", Surface)
    union = load(folder / f"landscape-client{client}-union-last-train-50.json", Surface)
    assert own.fingerprint == union.fingerprint  # one model, one plane
    assert own.subject.split == f"client {client}"
    assert union.subject.split == "train"
    assert (folder / f"landscape-client{client}-last-train-50-surface.png").exists()


def test_the_line_between_two_runs(call, runs: Path) -> None:
    answer = call("interpolate", "naive", "fedgloss", "--points", "4", "--from", "-1", "--to", "2")
    assert "barrier" in answer.out
    saved = json.loads((runs / "naive" / "analysis" / "interpolation-to-fedgloss-last.json").read_text())
    assert set(saved) == {"train", "test"}
    line = from_json(Interpolation, saved["test"])
    assert (saved["test"]["to"], saved["test"]["barrier"]) == ("fedgloss", line.barrier)
    ends = [
        read_json(RunFolder(runs / name).summary)["last_evaluation"]["metrics"] for name in ("naive", "fedgloss")
    ]
    for place, end in zip((0.0, 1.0), ends, strict=True):
        at = line.coefficients.index(place)
        assert line.loss[at] == pytest.approx(end["loss"], rel=1e-5)
        assert line.curves["accuracy"][at] == pytest.approx(end["accuracy"], abs=1e-9)
    assert (runs / "naive" / "analysis" / "interpolation-to-fedgloss-last-accuracy.png").exists()
    before = (runs / "naive" / "analysis" / "interpolation-to-fedgloss-last.json").read_bytes()
    options = ("--samples", "50", "--seed", "3", "--on", "train", "--points", "2", "--json")
    shown = call("interpolate", "naive", "fedgloss", *options, "--from", "0.5").out
    assert json.loads(shown, parse_constant=pytest.fail)["train"]["barrier"] is None  # not between both models
    assert (runs / "naive" / "analysis" / "interpolation-to-fedgloss-last-train-50-seed3.json").exists()
    assert (runs / "naive" / "analysis" / "interpolation-to-fedgloss-last.json").read_bytes() == before


def test_a_line_says_when_the_second_run_learnt_other_data(call, no_test_set: Path) -> None:
    shutil.copytree("no-test", "renamed")
    config = RunFolder(Path("renamed")).config
    (no_test_set.parent / "other_data.py").write_text("from own_data import make\n")
    config.write_text(config.read_text().replace("own_data:make", "other_data:make"))
    out = call("interpolate", "no-test", "renamed", "--on", "train", "--points", "2").out
    assert "renamed was trained on other_data:make; the line is measured on own_data:make" in " ".join(out.split())


def test_the_mean_of_the_last_models(call, runs: Path) -> None:
    options = ("--model", "average100", "--top", "1")
    found = json.loads(call("flatness", "fedgloss", *options, "--json").out)["fedgloss"]
    assert found["eigenvalues"]["subject"]["weights"] == "average100"
    assert found["models"] == 1  # a tenth of the rounds, 100 at most
    assert "weights: the mean of the last 1 models" in call("flatness", "fedgloss", *options).out
    mean = run_weights(RunFolder(Path("fedgloss")), average=True)
    assert found["means"]["loss"] == pytest.approx(MeasuredRun("fedgloss").loss(Terms()).value(mean), rel=1e-9)


def test_the_released_way_of_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cifar10(tmp_path / "cifar")
    folder = tmp_path / "run"
    options = ["--set", f"data.path={tmp_path / 'cifar'}", "--set", "data.clients=10", "--set", "training.cohort=2"]
    run_command("run", "cifar10-cnn", *TINY, *options, "--out", folder)
    answer = fedgloss(capsys, "flatness", folder, "--fidelity", "released", "--top", "1", "--json")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out).values()
    subject = found["eigenvalues"]["subject"]
    assert found["eigenvalues"]["method"] == "power"
    assert subject["weights"] == "average100"
    assert subject["split"] == "test"
    assert subject["preprocessing"] == "constants of cifar100"
    assert subject["weighting"] == "batches"
    own = fedgloss(
        capsys, "flatness", folder, "--fidelity", "released", "--constants", "own", "--top", "1", "--json"
    )
    (other,) = json.loads(own.out).values()
    assert other["means"]["loss"] != found["means"]["loss"]
    run = MeasuredRun(folder)
    pixels, _ = run.problem.federation.train.fetch(np.arange(1))
    swapped = run._transform("swapped")[0].test(pixels)
    mean, std = torch.tensor([0.5071, 0.4865, 0.4409]), torch.tensor([0.2673, 0.2564, 0.2762])
    expected = ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)
    assert torch.allclose(swapped, expected, atol=1e-5)


def test_a_short_last_batch_weighed_like_the_others(runs: Path) -> None:
    run = MeasuredRun("fedavg")
    by_batches = run.loss(replace(RELEASED, model="last", constants="own"))
    federation, params = run.problem.federation, run.weights()
    assert federation.test is not None
    inputs, targets = federation.test.fetch(np.arange(len(federation.test)))
    module = run_model(RunFolder(Path("fedavg"))).eval()
    with torch.no_grad():
        pairs = zip(federation.transform.test(inputs).split(64), targets.split(64), strict=True)
        losses = [float(F.cross_entropy(module(x), y)) for x, y in pairs]
    assert len(targets) % 64
    assert by_batches.value(params) == pytest.approx(np.mean(losses), rel=1e-6)


def test_a_rerun_computes_nothing_twice(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MeasuredRun("fedavg")
    first = measure_flatness(run, Terms(samples=300), Measures(top=1))
    monkeypatch.setattr(MeanLoss, "hessian_vector", None)  # whoever asks for a product again fails
    assert measure_flatness(run, Terms(samples=300), Measures(top=1)) == first


def test_what_was_measured_before_stays_beside_what_is_measured_now(runs: Path) -> None:
    run, terms = MeasuredRun("fedavg"), Terms(samples=100)
    first = measure_flatness(run, terms, Measures(top=2, sharpness=True, local=True, clients=2))
    second = measure_flatness(run, terms, Measures(top=1, trace=True))
    assert second.trace is not None
    assert (second.local, second.drift, second.worst_case) == (first.local, first.drift, first.worst_case)
    assert second.eigenvalues is not None
    assert len(second.eigenvalues.top) == 1
    third = measure_flatness(run, terms, Measures(top=1, local=True, clients=1))
    assert [one.client for one in third.local] == [first.local[0].client]
    path = runs / "fedavg" / "analysis" / "flatness-last-train-100-lanczos.json"
    content = read_json(path)
    content["means"]["loss"] += 1e-3  # as if of another model
    write_json(path, content)
    assert measure_flatness(run, terms, Measures(top=1)).trace is None


def test_processes_at_one_run_keep_each_other_s_results(runs: Path) -> None:
    run, terms, together = MeasuredRun("fedavg"), Terms(samples=100), Measures(top=1, trace=True)

    def meanwhile(what: str, done: int, total: int) -> None:
        if what == "trace" and done == 1:
            measure_flatness(MeasuredRun("fedavg"), terms, Measures(top=1, sharpness=True))

    found = measure_flatness(run, terms, together, meanwhile)
    saved = load(runs / "fedavg" / "analysis" / "flatness-last-train-100-lanczos.json", Flatness)
    assert saved.trace is not None
    assert len(saved.worst_case) == 2
    assert found == saved

    command = [
        sys.executable,
        "-m",
        "fedgloss",
        "flatness",
        "fedgloss",
        "--samples",
        "100",
        "--top",
        "1",
        "--quiet",
    ]
    options = ("--trace", "--sharpness", "--density")
    processes = [subprocess.Popen([*command, option]) for option in options]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    saved = load(runs / "fedgloss" / "analysis" / "flatness-last-train-100-lanczos.json", Flatness)
    assert None not in (saved.eigenvalues, saved.trace, saved.average_case, saved.density)


class StopAfter:
    """Ctrl-C in the middle: after so many reports of progress."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.seen: list[str] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.seen.append(what)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_stopped_measurements_keep_what_they_have_and_go_on(runs: Path) -> None:
    shutil.copytree("fedavg", "copy")
    terms, measures, whole = Terms(samples=300), Measures(top=1), StopAfter(-1)
    expected = measure_flatness(MeasuredRun("copy"), terms, measures, whole)
    run, file = MeasuredRun("fedavg"), runs / "fedavg" / "analysis" / "flatness-last-train-300-lanczos.json"

    with pytest.raises(KeyboardInterrupt):
        measure_flatness(run, terms, measures, StopAfter(3))
    early = load(file, Flatness).eigenvalues
    assert early is not None
    assert (early.converged, early.products) == (False, 3)

    products = whole.seen.count("eigenvalues, subset 1 of 4")
    with pytest.raises(KeyboardInterrupt):
        measure_flatness(run, terms, measures, StopAfter(products + 2))
    half = load(file, Flatness).eigenvalues
    assert half is not None
    assert (half.converged, half.products) == (True, products)

    rest = StopAfter(-1)
    assert replace(measure_flatness(run, terms, measures, rest), run="copy") == expected
    assert "eigenvalues, subset 1 of 4" not in rest.seen


@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_stopped_measurement_does_not_replace_a_better_one(runs: Path, stop_at: int) -> None:
    run, file = MeasuredRun("fedavg"), runs / "fedavg" / "analysis" / "flatness-last-train-300-lanczos.json"
    whole = measure_flatness(run, Terms(samples=300), Measures(top=1, local=True, clients=2))
    assert whole.exact
    with pytest.raises(KeyboardInterrupt):
        measure_flatness(run, Terms(samples=300), Measures(top=2, local=True, clients=1), StopAfter(stop_at))
    assert load(file, Flatness) == whole


def test_a_stopped_landscape_and_a_stopped_line_go_on(runs: Path) -> None:
    one, other = MeasuredRun("fedavg"), MeasuredRun("fedgloss")
    whole = measure_landscape(other, Terms(samples=50), grid=3)
    with pytest.raises(KeyboardInterrupt):
        measure_landscape(one, Terms(samples=50), grid=3, report=StopAfter(4))
    rest = StopAfter(-1)
    assert measure_landscape(one, Terms(samples=50), grid=3, report=rest).complete
    assert len(rest.seen) == 5
    assert whole.complete
    line = [Terms(on="test")]
    with pytest.raises(KeyboardInterrupt):
        measure_interpolation(one, other, line, points=4, report=StopAfter(2))
    found = measure_interpolation(one, other, line, points=4)["test"]
    shutil.rmtree(one.folder.analysis)
    assert measure_interpolation(one, other, line, points=4)["test"] == found


def test_ctrl_c_as_a_real_process(runs: Path) -> None:
    command = [sys.executable, "-m", "fedgloss", "landscape", "fedavg", "--grid", "60", "--samples", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pieces = runs / "fedavg" / "analysis" / "pieces"
    deadline = time.monotonic() + 120
    while not pieces.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "the same command goes on" in out
    assert "Traceback" not in out
    assert load(the_file(pieces, "surface-*.json"), Surface).computed >= 1


@pytest.fixture
def no_test_set(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run on data of the user's own that have no test set."""
    (runs / "own_data.py").write_text(
        "import numpy as np\nfrom fedgloss import Federation\n"
        "def make():\n"
        "    inputs = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)\n"
        "    clients = np.arange(40).reshape(8, 5).tolist()\n"
        "    return Federation.from_arrays(inputs, np.arange(40) % 2, clients=clients)\n"
    )
    monkeypatch.syspath_prepend(runs)
    run_command("run", "digits", *TINY, "--set", "data.name=own_data:make", "--out", "no-test")
    yield runs / "no-test"
    sys.modules.pop("own_data", None)


def test_bad_input_is_one_clear_line(runs: Path, no_test_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(name: str) -> RunFolder:
        shutil.copytree("fedavg", name)
        return RunFolder(Path(name))

    diverged = spoil("diverged")
    content = read_json(diverged.summary)
    write_json(diverged.summary, content | {"status": "diverged", "divergence": {"round": 3}})

    other = spoil("other-network")
    other.config.write_text(other.config.read_text().replace("hidden = [8]", "hidden = [9]"))
    assert "hidden = [9]" in other.config.read_text()

    nan = spoil("nan")
    state = Checkpoints(nan).state(4)
    params = state["params"].clone()
    params[7] = float("nan")
    (nan.checkpoints / "00000004.safetensors").write_bytes(encode(state.also(params=params)))

    unfinished = spoil("unfinished")
    for suffix in ("json", "safetensors"):
        (unfinished.checkpoints / f"00000003.{suffix}").unlink()

    empty = spoil("empty")
    for path in empty.checkpoints.iterdir():
        path.unlink()

    short = spoil("short")
    short.rounds.write_text("".join(short.rounds.read_text().splitlines(keepends=True)[:2]))

    shutil.copytree("no-test", "narrow")
    mistakes: list[tuple[list[str], str]] = [
        (["flatness"], "Missing argument"),
        (["flatness", "nowhere"], "nowhere: is not a run"),
        (["flatness", "fedavg", "nowhere"], "nowhere: is not a run"),
        (["flatness", "fedavg", "fedavg"], "the same run is named twice"),
        (["flatness", "diverged"], "diverged: the run diverged in round 3"),
        (["flatness", "other-network"], "other-network: its checkpoint is of another network"),
        (["flatness", "nan"], "nan: its weights '1.weight' hold a NaN"),
        (["landscape", "nan"], "hold a NaN"),
        (["interpolate", "fedavg", "nan"], "hold a NaN"),
        (["flatness", "no-test", "--on", "test"], "no-test: its data 'arrays' have no test samples"),
        (["interpolate", "fedavg", "no-test"], "its network differs from that of fedavg"),
        (["interpolate", "no-test", "narrow"], "have no test samples; measure --on train"),
        (["flatness", "fedavg", "--samples", "0"], "--samples"),
        (["flatness", "fedavg", "--samples", "5000"], "samples: asked for 5000, train holds 1438"),
        (["flatness", "fedavg", "--local", "--clients", "50"], "clients: 50 asked for, but the last round had 4"),
        (["flatness", "fedavg", "--clients", "2"], "--clients: goes with --local"),
        (["landscape", "fedavg", "--local", "--clients", "6"], "clients: 6 asked for, but the last round had 4"),
        (["flatness", "unfinished", "--local"], "finish the run: fedgloss resume unfinished"),
        (["flatness", "empty"], "empty: has no checkpoint yet"),
        (["flatness", "fedavg", "--top", "0"], "--top"),
        (["flatness", "fedavg", "--top", "200"], "top: 201 eigenvalues take more than 200 products, the limit"),
        (["flatness", "fedavg", "--method", "qr"], "--method: is 'lanczos' or 'power', got 'qr'"),
        (["flatness", "fedavg", "--model", "best"], "--model: is 'last' or 'average100', got 'best'"),
        (["flatness", "fedavg", "--on", "validation"], "--on: is 'train' or 'test', got 'validation'"),
        (["flatness", "fedavg", "--fidelity", "exact"], "--fidelity: is 'paper' or 'released'"),
        (["flatness", "fedavg", "--constants", "swapped"], "'swapped' is for cifar10 and cifar100"),
        (["flatness", "fedavg", "--sharpness", "--rho", "0"], "rho: must be positive, got 0"),
        (["flatness", "fedavg", "--sharpness", "--sigma", "nan"], "sigma: must be positive, got nan"),
        (["landscape", "fedavg", "--range", "1", "-1"], "--range: must rise"),
        (["landscape", "fedavg", "--range", "0", "inf"], "--range: must rise and be finite"),
        (
            ["landscape", "fedavg", "--local", "--directions", "eigenvectors"],
            "--directions: local models have random",
        ),
        (["landscape", "fedavg", "no-test", "--on", "test"], "no-test: its data 'arrays' have no test samples"),
        (["flatness", "fedavg", "no-test", "--on", "test"], "no-test: its data 'arrays' have no test samples"),
        (["flatness", "fedavg", "no-test", "--samples", "100"], "samples: asked for 100, train holds 40"),
        (["flatness", "fedavg", "nan"], "nan: its weights '1.weight' hold a NaN"),
        (["flatness", "fedavg", "unfinished", "--local"], "finish the run: fedgloss resume unfinished"),
        (["flatness", "short", "--local"], "ends before round 3; put it back"),
        (["landscape", "fedavg", "--ceiling", "nan"], "--ceiling: must be positive, got nan"),
        (["landscape", "fedavg", "--grid", "1"], "--grid"),
        (["interpolate", "fedavg"], "Missing argument"),
        (["interpolate", "fedavg", "fedavg"], "the same run"),
        (["interpolate", "fedavg", "fedgloss", "--from", "1", "--to", "0"], "--from: must be below --to"),
    ]
    for arguments, message in mistakes:
        answer = fedgloss(capsys, *arguments)
        assert answer.code == 2, (arguments, answer)
        assert message in " ".join(answer.err.split()), (arguments, answer.err)
        assert "Traceback" not in answer.err + answer.out
    assert not list(runs.glob("*/analysis/*.json"))


def test_a_replay_that_leads_elsewhere_is_refused(runs: Path) -> None:
    folder = RunFolder(runs / "fedavg")
    config = folder.config.read_text()
    folder.config.write_text(config.replace("\nlr = 0.05", "\nlr = 0.9"))
    assert folder.config.read_text() != config
    with pytest.raises(InvalidInput, match="leads elsewhere"):
        _ = MeasuredRun(runs / "fedavg").last_round


def test_a_replay_that_is_not_to_the_bit_says_so(call, runs: Path) -> None:
    folder = RunFolder(runs / "fedavg")
    state = Checkpoints(folder).state(4)
    moved = state["params"] * (1 + 1e-6)  # as another processor might have rounded
    (folder.checkpoints / "00000004.safetensors").write_bytes(encode(state.also(params=moved)))
    note = "ends near the run's model but not at its very bits"
    out = call("flatness", "fedavg", "--local", "--clients", "1", "--samples", "50", "--top", "1").out
    assert note in " ".join(out.split())
    found = load(folder.analysis / "flatness-last-train-50-lanczos.json", Flatness)
    assert found.exact is False
    out = call("landscape", "fedavg", "--local", "--clients", "1", "--samples", "50", "--grid", "2").out
    assert note in " ".join(out.split())


def test_as_a_real_process_without_a_terminal(runs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgloss", "flatness", "fedavg", "--top", "1"],
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert "fedavg: eigenvalues 1/200" in done.stdout
    assert "\x1b[" not in done.stdout


def test_the_report_reads_every_result(call, runs: Path) -> None:
    call("flatness", "fedgloss", "--samples", "100", "--top", "2", "--density", "--trace", "--sharpness", "--local")
    call("landscape", "fedgloss", "--grid", "2", "--samples", "50", "--local", "--clients", "1")
    call("interpolate", "fedgloss", "fedavg", "--points", "2")
    found, problems = read_measurements(runs / "fedgloss" / "analysis")
    assert problems == []
    kinds = [one.kind for one in found]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "eigenvalues": 1,
        "density": 1,
        "trace": 1,
        "worst_case": 2,
        "average_case": 1,
        "drift": 1,
        "local": 4,
        "surface": 3,
        "interpolation": 2,
    }
