"""The commands as a newcomer uses them: digits, a small network, a handful of rounds."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from cli.command import Answer, fedgloss
from rich.console import Console
from safetensors.torch import load_file

from fedgloss.cli.comparing import Cell, execution_of, shares
from fedgloss.cli.planning import duration
from fedgloss.cli.progress import ShowProgress
from fedgloss.cli.tables import accuracy_cell, percent, size
from fedgloss.config import Config, bytes_of, flatten, resolve, to_toml
from fedgloss.costs import ledger, reach
from fedgloss.data.datasets import load
from fedgloss.models import build
from fedgloss.records import read_json, read_lines
from fedgloss.reproduction import forecast_of
from fedgloss.transports import simulation

QUICK = ["--set", "model.name=logistic", "--set", "local.lr=0.05", "--workers", "1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str | Path) -> Answer:
        answer = fedgloss(capsys, *arguments)
        assert answer.code == 0, answer.err
        return answer

    return command


def test_run_says_what_it_did_and_the_same_command_goes_on(call, here: Path) -> None:
    command = ["run", "digits", "--method", "fedgloss", "--client", "sam", "--rounds", "20", *QUICK]
    out = call(*command).out
    folder = here / "runs" / "digits-fedgloss-sam-shards-seed0"
    assert "accuracy:" in out
    assert "never the best" in out
    assert "split shards, 2 classes a client" in out
    before = (folder / "rounds.jsonl").read_bytes()
    assert "going on after round 20" in call(*command).out
    assert (folder / "rounds.jsonl").read_bytes() == before
    longer = [*command[: -len(QUICK)][:-1], "25", *QUICK]
    call(*longer)
    assert (folder / "rounds.jsonl").read_bytes().startswith(before[: before.index(b'"evaluation"')])
    assert read_json(folder / "summary.json")["rounds"] == 25


def test_resume_for_more_rounds(call, here: Path) -> None:
    call("run", "digits", "--rounds", "4", "--out", "short", *QUICK)
    call("resume", "short", "--rounds", "6")
    call("run", "digits", "--rounds", "6", "--out", "long", *QUICK)
    ends = [load_file(here / name / "checkpoints" / "00000006.safetensors") for name in ("short", "long")]
    assert torch.equal(ends[0]["vector.params"], ends[1]["vector.params"])


def test_the_summary_can_be_recomputed_from_the_records(call, here: Path) -> None:
    call("run", "digits", "--method", "scaffold", "--rounds", "20", "--out", "run", *QUICK)
    summary = read_json(here / "run" / "summary.json")
    rounds, evaluations = (read_lines(here / "run" / "rounds.jsonl", kind) for kind in ("round", "evaluation"))
    last = [e["metrics"]["accuracy"] for e in evaluations if e["rounds"] > 18]
    assert summary["window"] == 2
    assert summary["reported"]["accuracy"] == sum(last) / 2
    assert summary["traffic"]["factor"] == ledger(rounds).factor == 2.0
    assert summary["traffic"]["bytes"] == sum(r["down"]["bytes"] + r["up"]["bytes"] for r in rounds)
    done, values = [e["rounds"] for e in evaluations], [e["metrics"]["accuracy"] for e in evaluations]
    sent = [sum(r["down"]["bytes"] + r["up"]["bytes"] for r in rounds[:after]) for after in done]
    reached = reach(done, values, sent, target=values[2])
    assert reached is not None
    assert reached.rounds <= done[2]
    assert reached.bytes == sent[done.index(reached.rounds)]
    assert reach(done, values, sent, target=1.1) is None


def test_per_client_accuracy_on_request(call, here: Path) -> None:
    call("run", "digits", "--rounds", "3", "--out", "run", "--set", "training.client_accuracy=true", *QUICK)
    reported = read_json(here / "run" / "summary.json")["reported"]
    assert reported["client_accuracy_p10"] <= reported["client_accuracy_p50"] <= reported["client_accuracy_p90"]


def test_validation_share_and_where_it_is_judged(call, here: Path) -> None:
    options = ["--set", "data.validation=0.2", "--set", "training.evaluate_on=validation"]
    call("run", "digits", "--rounds", "2", "--out", "run", *options, *QUICK)
    assert "whole validation set" in read_json(here / "run" / "summary.json")["protocol"]


@pytest.mark.parametrize(
    ("settings", "jobs", "at_once", "workers"),
    [
        ([], None, 3, 2),
        ([], 1, 1, 6),
        (["run.workers=2"], None, 3, 2),
        (["run.workers=4"], None, 1, 4),
        (["run.workers=4"], 2, 2, 4),
        (["run.device=cuda"], None, 1, 1),
        (["run.device=cuda"], 2, 2, 1),
        (["run.device=cuda", "run.workers=2"], None, 1, 2),
    ],
)
def test_cores_are_divided_among_runs_and_a_device_is_not(
    settings: list[str], jobs: int | None, at_once: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "available_cores", lambda: 6)
    cell = Cell("fedavg", Path("run"), resolve("digits", settings=settings).config)
    found = shares([cell] * 3, jobs)
    assert (found[0], execution_of(cell, found[1]).workers) == (at_once, workers)


@pytest.mark.parametrize(("device", "workers"), [("cpu", 6), ("cuda", 1)])
def test_a_forecast_counts_the_workers_of_the_device(
    call, device: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def forecast(job: object, local: object, execution: object, workers: int) -> None:
        counted.append(workers)
        raise SystemExit(0)

    monkeypatch.setattr(simulation, "available_cores", lambda: 6)
    monkeypatch.setattr("fedgloss.job.build_job", lambda config: config)
    monkeypatch.setattr("fedgloss.plan.forecast", forecast)
    call("plan", "digits", "--set", f"run.device={device}")
    with pytest.raises(SystemExit):
        forecast_of(resolve("digits", {"run.device": device}).config)
    assert counted == [workers, workers]


@pytest.mark.parametrize("options", [[], ["--keep-every", "4"]], ids=["newest", "kept"])
def test_a_plan_foresees_the_disk(call, here: Path, options: list[str]) -> None:
    command = ["digits", "--method", "feddyn", "--rounds", "12", *options, *QUICK]
    foreseen = json.loads(call("plan", *command, "--json").out)
    call("run", *command, "--out", "run", "--quiet")
    vectors = sum(path.stat().st_size for path in (here / "run").rglob("*.safetensors"))
    assert foreseen["disk"] == pytest.approx(vectors, rel=0.2)
    evaluations = read_lines(here / "run" / "rounds.jsonl", "evaluation")
    assert foreseen["evaluations"] == len(evaluations)


def test_compare_prints_one_table_and_reads_finished_runs(call, here: Path) -> None:
    command = ["compare", "digits", "--methods", "fedavg,fedsam,fedgloss", "--clients", "sgd,sam", "--seeds", "0,1"]
    command += ["--rounds", "4", "--jobs", "1", "--out", "cmp", *QUICK[:-2]]
    found = json.loads(call(*command, "--json").out)
    assert set(found["methods"]) == {"fedavg", "fedsam", "fedgloss-sgd", "fedgloss-sam"}
    assert all(len(seeds) == 2 for seeds in found["methods"].values())
    timings = {path: path.read_bytes() for path in here.glob("cmp/*/timings.jsonl")}
    out = call(*command).out
    assert {path: path.read_bytes() for path in timings} == timings  # nothing was trained again
    for text in ("fedgloss-sam", "fedavg", "±", "1x", "never the best"):
        assert text in out


def test_sweep_judges_on_validation_and_goes_on(call, here: Path) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "digits", "--grid", "local.lr=0.001,0.05", "--grid", "local.epochs=1,2", "--rounds", "3"]
    command += ["--out", "swept", *QUICK[:2], "--workers", "1", "--quiet"]
    found = json.loads(call(*command, "--json").out)["trials"]
    assert len(found) == 4
    assert found == sorted(found, key=lambda t: -t["value"])
    protocols = {read_json(Path(t["runs"][0]) / "summary.json")["protocol"] for t in found}
    assert all("validation set" in p for p in protocols)
    again = json.loads(call(*command, "--json").out)["trials"]
    assert again == found


def test_a_sweep_of_another_configuration_is_another_sweep(call, here: Path) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "digits", "--grid", "local.lr=0.001,0.05", "--out", "swept", "--quiet", "--json"]
    command += ["--set", "model.name=logistic", "--workers", "1"]
    short = json.loads(call(*command, "--rounds", "2").out)["trials"]
    longer = json.loads(call(*command, "--rounds", "5").out)["trials"]
    assert not {run for t in short for run in t["runs"]} & {run for t in longer for run in t["runs"]}
    assert {read_json(Path(t["runs"][0]) / "summary.json")["rounds"] for t in longer} == {5}
    assert json.loads(call(*command, "--rounds", "2").out)["trials"] == short


def test_a_sweep_judges_by_the_mean_over_seeds(call, here: Path) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "digits", "--grid", "local.lr=0.01,0.1", "--rounds", "4", "--workers", "1", "--quiet"]
    command += ["--set", "model.name=logistic", "--out", "swept", "--json"]
    found = json.loads(call(*command, "--seeds", "1,2").out)["trials"]
    summaries = [[read_json(Path(run) / "summary.json") for run in trial["runs"]] for trial in found]
    for trial, runs in zip(found, summaries, strict=True):
        assert trial["values"] == [run["reported"]["accuracy"] for run in runs]
        assert trial["value"] == pytest.approx(sum(trial["values"]) / 2)
        assert trial["values"][0] != trial["values"][1]
    assert found == sorted(found, key=lambda t: -t["value"])
    (alone,) = (
        t for t in json.loads(call(*command, "--seeds", "2").out)["trials"] if t["settings"]["local.lr"] == 0.1
    )
    (both,) = (t for t in found if t["settings"]["local.lr"] == 0.1)
    assert alone["runs"] == both["runs"][1:]  # the same run, not trained again


def test_two_processes_share_a_sweep(here: Path) -> None:
    pytest.importorskip("optuna")
    command = [sys.executable, "-m", "fedgloss", "sweep", "digits", "--grid", "local.lr=0.001,0.01,0.05,0.1"]
    command += ["--rounds", "40", "--set", "model.name=logistic", "--workers", "1", "--out", "swept", "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    lines = [err.count("round 40/40") for _, err in answers]
    assert sum(lines) == 4, answers  # each point was trained by one of them
    assert max(len(json.loads(out)["trials"]) for out, _ in answers) == 4


def test_a_sweep_is_kept_in_a_folder_of_any_name(call, here: Path) -> None:
    pytest.importorskip("optuna")
    call(
        "sweep", "digits", "--grid", "local.lr=0.1", "--rounds", "1", "--out", "a?b%20 [c]#d", "--quiet", *QUICK[:2]
    )
    assert [path.name for path in here.iterdir()] == ["a?b%20 [c]#d"]
    assert (here / "a?b%20 [c]#d" / "sweep.db").is_file()


def test_export_loads_into_the_module_in_two_lines(call, here: Path) -> None:
    call("run", "digits", "--rounds", "2", "--out", "run", "--workers", "1", "--set", "local.batch_size=72")
    call("export", "run", "--to", "model.safetensors")
    call("export", "run", "--to", "model.pt")
    call("export", "run", "--to", "mean.safetensors", "--average")
    model = build("cnn", (1, 32, 32), 10)
    model.load_state_dict(load_file("model.safetensors"))
    plain = torch.load("model.pt", weights_only=True)
    assert all(torch.equal(plain[name], tensor) for name, tensor in load_file("model.safetensors").items())
    digits = load("digits")
    pictures, labels = digits.test.fetch(torch.arange(len(digits.test)).numpy())
    with torch.no_grad():
        right = (model.eval()(digits.transform.test(pictures)).argmax(1) == labels).double().mean()
    last = read_json(here / "run" / "summary.json")["last_evaluation"]["metrics"]["accuracy"]
    assert float(right) == pytest.approx(last, abs=1e-9)


def test_tied_weights_are_exported_under_each_of_their_names(call, here: Path) -> None:
    (here / "tied_network.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    first, second = nn.Linear(classes, classes), nn.Linear(classes, classes)\n"
        "    second.weight = first.weight\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(1024, classes), first, second)\n"
    )
    options = ["--set", "model.name=tied_network:make", "--workers", "1"]
    call("run", "digits", "--rounds", "1", "--out", "run", *options)
    call("export", "run", "--to", "model.safetensors")
    found = load_file("model.safetensors")
    assert torch.equal(found["2.weight"], found["3.weight"])
    assert not torch.equal(found["2.bias"], found["3.bias"])


def test_initial_weights_from_a_file(call, here: Path) -> None:
    call("run", "digits", "--rounds", "3", "--out", "one", *QUICK)
    call("export", "one", "--to", "start.safetensors")
    options = ["--set", "model.weights=start.safetensors", "--keep-every", "1"]
    call("run", "digits", "--rounds", "2", "--out", "two", *options, *QUICK)
    end = load_file(here / "one" / "checkpoints" / "00000003.safetensors")["vector.params"]
    assert torch.equal(load_file(here / "two" / "checkpoints" / "00000000.safetensors")["vector.params"], end)


def test_runs_lists_and_deletes(call, here: Path) -> None:
    call("run", "digits", "--rounds", "2", *QUICK)
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "config.toml").write_text("")
    rows = json.loads(call("runs", "--json").out)
    states = {row["run"]: row["state"] for row in rows}
    assert states["digits-fedavg-shards-seed0"] == "finished"
    assert "unreadable" in states["broken"]
    (here / "runs" / "digits-fedavg-shards-seed0" / "summary.json").unlink()  # as after kill -9
    killed = json.loads(call("runs", "--json").out)[1]
    assert (killed["state"], killed["rounds"]) == ("unfinished", "2/2")
    (here / "runs" / "digits-fedavg-shards-seed0" / "summary.json").write_text('{"status": "finished"}')
    assert "is not a run's summary" in json.loads(call("runs", "--json").out)[1]["state"]
    call("runs", "--delete", "digits-fedavg-shards-seed0", "--yes")
    assert not (here / "runs" / "digits-fedavg-shards-seed0").exists()


def test_show_list_and_doctor(call) -> None:
    shown = call("show", "cifar10-cnn", "--method", "fedgloss", "--client", "sam", "--set", "local.lr=0.5").out
    for text in ("chosen for fedgloss", "--set", "preset cifar10-cnn", "2000"):
        assert text in shown
    listed = call("list").out
    for text in ("naive-fedgloss", "landmarks-user-160k", "resnet18-gn", "cifar100-cnn", "dirichlet"):
        assert text in listed
    facts = json.loads(call("doctor", "--json").out)
    assert facts["data"]["digits"]
    assert facts["torch"] == torch.__version__


def test_every_value_says_where_it_comes_from(call, here: Path) -> None:
    (here / "mine.toml").write_text('preset = "cifar10-cnn"\n[local]\nlr = 0.5\n')
    options = ["--method", "fedgloss", "--alpha", "1", "--fidelity", "released", "--set", "training.cohort=7"]
    origins = {line.split()[0]: line for line in call("show", "mine.toml", *options).out.splitlines()}
    for key, origin in {
        "local.lr": "mine.toml",
        "local.epochs": "preset cifar10-cnn",
        "algorithm.name": "--method",
        "algorithm.beta": "chosen for fedgloss",
        "algorithm.client": "default",
        "algorithm.dual": "fidelity released",
        "data.alpha": "--alpha",
        "data.clients": "no setting of split official",
        "fidelity": "--fidelity",
        "training.cohort": "--set",
        "training.seed": "default",
    }.items():
        assert origins[key].rstrip().endswith(f" {origin}"), origins[key]
    wrapped = resolve("cifar10-cnn", {"algorithm.name": "wima", "algorithm.inner.name": "fedprox"})
    assert wrapped.origins["algorithm.inner.mu"] == "chosen for fedprox"
    assert ("algorithm.name", "fedavg", "default") in resolve("cifar10-cnn").rows()


@pytest.mark.parametrize("name", ["mine.toml", "default.toml", "presets.toml"])
def test_what_a_file_is_called_does_not_matter(name: str, here: Path) -> None:
    (here / name).write_text('\ufeffpreset = "digits"\n[data]\nalpha = 0.5\n')  # with the mark of some editors
    data = resolve(name).config.data
    assert (data.split, data.alpha, data.classes_per_client) == ("hsu", 0.5, None)


def test_a_split_and_its_settings_from_different_layers() -> None:
    """What the user asked for wins over what the preset set for another split."""
    assert resolve("digits").config.data.classes_per_client == 2
    skewed = resolve("digits", {"data.alpha": 0.5}).config.data
    assert (skewed.split, skewed.alpha, skewed.classes_per_client) == ("hsu", 0.5, None)
    even = resolve("cifar10-cnn", {"data.split": "iid"}).config.data
    assert (even.split, even.alpha, even.clients) == ("iid", None, 100)


def test_released_fidelity_switches_the_disagreements(call) -> None:
    shown = json.loads(call("show", "cifar10-cnn", "--method", "fedgloss", "--fidelity", "released", "--json").out)
    assert shown["algorithm"]["dual"] == "code"
    assert shown["algorithm"]["rho_schedule"] == "released"
    assert shown["data"]["split"] == "official"
    assert shown["data"]["options"] == {"emulate_leak": True, "draw": "batch"}


def test_brackets_in_names_are_shown_as_they_are(call, here: Path) -> None:
    assert "run: a [b] c" in call("run", "digits", "--rounds", "1", "--out", "a [b] c", *QUICK).out
    assert "a [b] c" in call("runs", ".").out
    assert '"[bold]mine"' in call("show", "digits", "--set", "run.note=[bold]mine").out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run cifar10-", ["cifar10-cnn", "cifar10-resnet18"]),
        ("run digits --method fedg", ["fedgamma", "fedgloss"]),
        ("run digits --client s", ["sgd", "sam"]),
        ("run digits --split d", ["dirichlet"]),
        ("run digits --fidelity r", ["released"]),
        ("compare digits --methods fedavg,fedgl", ["fedavg,fedgloss"]),
    ],
)
def test_completion_is_offered(typed: str, offered: list[str], here: Path) -> None:
    environment = {
        **os.environ,
        "_FEDGLOSS_COMPLETE": "complete_bash",
        "COMP_WORDS": f"fedgloss {typed}",
        "COMP_CWORD": str(len(typed.split())),
    }
    script = Path(sys.executable).with_name("fedgloss")
    done = subprocess.run([script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == offered


def test_ctrl_c_while_the_program_loads_is_no_traceback(here: Path) -> None:
    """Importing torch takes a second or two, in which nothing listens yet."""
    press = "import sys, signal; sys.meta_path.insert(0, type('Press', (), {'find_spec': staticmethod("
    press += (
        "lambda name, *rest: signal.raise_signal(signal.SIGINT) if name == 'fedgloss.cli.commands' else None)}))"
    )
    command = f"{press}; from fedgloss.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_bar_gives_the_terminal_back_however_the_run_ends() -> None:
    written = io.StringIO()
    plan = types.SimpleNamespace(rounds=5)
    with suppress(KeyboardInterrupt), ShowProgress(Console(file=written, force_terminal=True), "run") as shown:
        shown.started(types.SimpleNamespace(plan=plan), 0, [])
        raise KeyboardInterrupt
    hidden, visible = "\x1b[?25l", "\x1b[?25h"
    assert 0 <= written.getvalue().rfind(hidden) < written.getvalue().rfind(visible)


@pytest.mark.parametrize("tracker", ["tensorboard"])
def test_figures_are_tracked_under_what_they_were_measured_on(call, here: Path, tracker: str) -> None:
    pytest.importorskip(tracker)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    judged = ["--set", "data.validation=0.2", "--set", "training.evaluate_on=validation"]
    call("run", "digits", "--rounds", "2", "--out", "run", "--track", tracker, *judged, *QUICK)
    names = EventAccumulator(str(here / "run" / tracker)).Reload().Tags()["scalars"]
    assert "validation/accuracy" in names
    assert not any(name.startswith("test/") for name in names)


@pytest.mark.parametrize("tracker", ["tensorboard"])
def test_tracking_writes_beside_the_run(call, here: Path, tracker: str) -> None:
    pytest.importorskip(tracker)
    call("run", "digits", "--rounds", "3", "--out", "run", "--track", tracker, *QUICK)
    assert list((here / "run" / tracker).glob("events*"))


def test_a_tracker_of_ones_own(call, here: Path) -> None:
    (here / "my_tracking.py").write_text(
        "class Mine:\n"
        "    def __init__(self, folder): self.file = (folder.parent / 'seen.txt').open('w')\n"
        "    def started(self, job, done, notices): print('started', done, file=self.file)\n"
        "    def stepped(self, step, seconds): print('round', step.round.round, file=self.file)\n"
        "    def ended(self, summary): print(summary['status'], file=self.file); self.file.close()\n"
    )
    call("run", "digits", "--rounds", "2", "--out", "run", "--track", "my_tracking:Mine", *QUICK)
    assert (here / "seen.txt").read_text().split("\n") == ["started 0", "round 0", "round 1", "finished", ""]


def test_ctrl_c_on_a_real_process_saves_and_says_how_to_go_on(here: Path) -> None:
    command = [sys.executable, "-m", "fedgloss", "run", "digits", "--rounds", "100000", "--out", "run", *QUICK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        time.sleep(0.1)
        records = here / "run" / "rounds.jsonl"
        if records.exists() and records.stat().st_size > 2000:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "all is saved" in out
    assert "fedgloss resume run" in out
    assert "Traceback" not in err
    done = read_json(here / "run" / "summary.json")["rounds"]
    assert (here / "run" / "checkpoints" / f"{done:08d}.json").exists()


def test_the_page_about_configuration_names_every_key_and_every_file(call, here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    keys = {key.rpartition(".")[2] for key, _ in flatten(Config().model_dump())}
    call("run", "digits", "--method", "scaffold", "--rounds", "1", "--out", "run", *QUICK)
    files = {p.name + "/" * p.is_dir() for p in (here / "run").iterdir() if not p.name.startswith(".")}
    assert {name for name in keys | files if f"`{name}`" not in page} == set()


def test_a_configuration_survives_being_written() -> None:
    resolved = resolve(
        "digits", {"algorithm.name": "wima"}, ["algorithm.inner.name=fedgloss", "algorithm.window=7"]
    )
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(to_toml(resolved.config))
        file.flush()
        assert resolve(file.name).config == resolved.config


@pytest.mark.parametrize(
    ("text", "count"), [("2GB", 2 * 10**9), ("512MiB", 512 * 2**20), ("1.5 kB".replace("k", "K"), 1500), ("42", 42)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert bytes_of(text) == count


def test_numbers_are_shown_as_people_write_them() -> None:
    assert [size(n) for n in (12, 1500, 3_200_000, 5e12)] == ["12 B", "1.5 kB", "3.2 MB", "5.0 TB"]
    assert [duration(s) for s in (3.2, 200, 12_000, 200_000)] == ["3.2 s", "3 min 20 s", "3 h 20 min", "2 d 7 h"]
    assert percent([0.713]) == "71.3"
    assert percent([0.70, 0.72]) == "71.0 ± 1.4"
    diverged = {"status": "diverged", "reported": {}}
    assert accuracy_cell([diverged]) == "✗"
