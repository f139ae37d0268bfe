"""`fedgloss reproduce` on tiny stand-ins in CIFAR-10's true format: the paper's settings, a few rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli import tiny
from cli.command import Answer, fedgloss

from fedgloss import flatness
from fedgloss.analysis import load
from fedgloss.flatness import Flatness, MeasuredRun, Measures, measure_flatness
from fedgloss.job import build_algorithm
from fedgloss.records import read_json
from fedgloss.reports import paper
from fedgloss.reproduction import Terms
from fedgloss.reproduction.needs import vectors_kept


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.cifar10(tmp_path_factory.mktemp("data") / "cifar10")


@pytest.fixture
def call(tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path / "cache"))

    def command(*arguments: str | Path) -> Answer:
        options = ["--set", f"data.path={json.dumps(str(pictures))}", "--set", "model.name=logistic"]
        return fedgloss(capsys, "reproduce", *arguments, *options)

    return command


def test_every_setting_of_the_paper_becomes_a_configuration() -> None:
    for run in paper.runs(paper.cells()):
        setting = run.setting
        if run.seed != 0:
            continue
        config = Terms().config(setting, run.seed, False)
        build_algorithm(config)
        assert config.algorithm["name"] == setting.method
        assert config.training.rounds == setting.rounds
        assert {name: config.algorithm[name] for name in setting.options} == setting.options
        assert {name: getattr(config.local, name) for name in setting.local_training} == setting.local_training
        if setting.alpha is not None:
            assert config.data.alpha == setting.alpha


def test_factors_of_the_cost_table_agree_and_a_second_call_trains_nothing(call, tmp_path: Path) -> None:
    command = ["algs", "--cell", "algs/*/fedsmoo", "--jobs", "1", "--out", "out"]
    answer = call(*command, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert {cell["id"]: cell["verdict"] for cell in found["cells"]} == {
        "algs/communication/fedsmoo": "agrees",
        "algs/computation/fedsmoo": "agrees",
    }
    assert found["cells"][1]["ours"]["mean"] == 2.0
    (timings,) = (tmp_path / "out").glob("*/timings.jsonl")
    before = timings.stat().st_mtime_ns
    again = call(*command)
    assert "1 of 1 runs are there already" in again.out
    assert timings.stat().st_mtime_ns == before
    for ending in ("json", "md", "html"):
        assert (tmp_path / "out" / f"tab-algs.{ending}").exists()
    assert "**agrees**" in (tmp_path / "out" / "tab-algs.md").read_text()
    assert "tab:algs" in (tmp_path / "out" / "tab-algs.html").read_text()


def test_a_shortened_table_goes_on_and_is_labelled(call, tmp_path: Path) -> None:
    cell = "sota_cnn/cifar10/alpha=0/fedavg"
    command = ["tab:sota_cnn", "--cell", cell, "--seeds", "0,1", "--jobs", "1", "--out", "out"]
    assert call(*command, "--rounds", "2").code == 0
    answer = call(*command, "--rounds", "3", "--json")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["cells"]
    assert (found["verdict"], found["stopped_after"], found["rounds_needed"]) == ("no verdict", 3, 10_000)
    assert found["why"] == "stopped after 3 of 10000 rounds"
    assert found["published"]["value"] == 59.9
    assert set(found["ours"]["by_seed"]) == {"0", "1"}
    folders = sorted((tmp_path / "out").glob("*/summary.json"))
    assert [read_json(path)["rounds"] for path in folders] == [3, 3]

    page = call("--read", "--out", "out", "--markdown", "reproduction.md")
    assert page.code == 0, page.err
    text = (tmp_path / "reproduction.md").read_text()
    assert "## tab:sota_cnn" in text  # the communication factor is known
    assert "| fedavg | 1x | 1 |" in text
    assert "after 3 rounds" not in text  # of 10,000: no figure to show
    assert "`tab:sota_gld` | " in text  # what was not run is said too

    for checkpoints in (tmp_path / "out").glob("*/checkpoints"):  # records alone are enough to read
        shutil.rmtree(checkpoints)
        shutil.rmtree(checkpoints.parent / "clients")
    assert call("tab:sota_cnn", "--cell", cell, "--seeds", "0,1", "--read", "--out", "out").code == 0


def test_scale_shrinks_rounds_warm_up_and_window_together() -> None:
    (cell,) = paper.cells("sota_cnn/cifar10/alpha=0/fedgloss-sam")
    config = Terms(scale=0.1).config(cell.setting, 0, False)
    assert config.training.rounds == 1000
    assert config.training.window == 10
    assert config.training.eval_every == 10
    assert config.algorithm["warm_up"] == 200
    stopped = Terms(rounds=1000).config(cell.setting, 0, False)
    assert stopped.training.rounds == 1000
    assert stopped.algorithm["warm_up"] == 2000
    released = Terms(fidelity="released", settings=("data.lists=here",)).config(cell.setting, 0, False)
    assert released.algorithm["dual"] == "code"


def test_scaled_runs_are_not_taken_for_the_tables_own(call, tmp_path: Path) -> None:
    cell = "sota_cnn/cifar10/alpha=0/fedsam"  # no warm-up: but for its rounds it trains as the paper's does
    command = ["tab:sota_cnn", "--cell", cell, "--seeds", "0", "--jobs", "1", "--out", "out"]
    assert call(*command, "--scale", "0.0002").code == 0
    read = call(*command, "--read", "--json")
    (found,) = json.loads(read.out)["cells"]
    assert (found["verdict"], found["runs"]) == ("not run", [])
    answer = call(*command, "--rounds", "3", "--json")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["cells"]
    assert found["stopped_after"] == 3
    assert len(found["runs"]) == 1
    assert (tmp_path / "out" / "scale-0.0002").is_dir()


def test_sharpness_is_measured_where_a_cell_asks_for_it(call) -> None:
    options = ["--rounds", "2", "--seeds", "0", "--jobs", "1", "--out", "out", "--json"]
    answer = call("sota_cnn_eig", "--cell", "*/cifar10/alpha=0/fedavg", *options)
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["cells"]
    assert found["ours"]["mean"] > 0
    assert found["verdict"] == "no verdict"
    assert found["published"]["value"] is not None
    (run,) = {path.parent.parent for path in Path("out").glob("*/analysis/*.json")}
    file = run / "analysis" / f"flatness-{flatness.Terms().stem}-power.json"
    power = load(file, Flatness).eigenvalues
    assert power is not None
    assert (power.method, power.largest.value) == ("power", found["ours"]["mean"])
    measure_flatness(MeasuredRun(run), measures=Measures(top=1))  # Lanczos: another figure, not the paper's
    answer = call("sota_cnn_eig", "--cell", "*/cifar10/alpha=0/fedavg", "--read", *options)
    assert json.loads(answer.out)["cells"] == [found]


def test_what_one_table_measured_stays_for_it_when_another_measures_the_same_run(call) -> None:
    options = ["--rounds", "2", "--seeds", "0", "--jobs", "1", "--out", "out", "--json"]
    local = ["eigs_fedgloss", "--cell", "*/cifar10/client1/*/fedavg"]
    first = json.loads(call(*local, *options).out)["cells"]
    assert len([one for one in first if one["ours"]["mean"] > 0]) == 2
    assert call("sota_cnn_eig", "--cell", "*/cifar10/alpha=0/fedavg", *options).code == 0
    assert json.loads(call(*local, "--read", *options).out)["cells"] == first


def test_the_distribution_of_classes_needs_no_training(call, tmp_path: Path) -> None:
    answer = call("fig:cifar-distributions", "--cell", "*cifar10/alpha=0.05*", "--out", "out")
    assert answer.code == 0, answer.err
    (drawn,) = (tmp_path / "out").glob("*.pdf")
    assert drawn.read_bytes().startswith(b"%PDF")
    assert not list((tmp_path / "out").glob("*/config.toml"))


def test_plan_says_what_it_would_take_and_runs_nothing(call, tmp_path: Path) -> None:
    command = ["tab:sota_cnn", "--cell", "*/cifar10/alpha=0/fedavg", "--plan", "--json", "--out", "out"]
    answer = call(*command)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert [run["rounds"] for run in found["runs"]] == [10_000] * 3
    assert found["seconds"] > 0
    assert found["disk"] > 0
    assert not (tmp_path / "out").exists()


def test_missing_data_are_named_before_the_first_run(call, tmp_path: Path) -> None:
    answer = call("tab:sota_cnn", "--cell", "*/alpha=0/fedavg", "--seeds", "0", "--rounds", "1", "--out", "out")
    assert answer.code == 2
    assert "cifar100" in answer.err
    assert answer.err.rstrip().endswith("--cell takes other cells alone")
    assert not (tmp_path / "out").exists()


def test_everything_that_is_there_is_json_too(call) -> None:
    cell = ["--cell", "algs/communication/fedsam", "--jobs", "1", "--out", "out"]
    assert call("tab:algs", *cell).code == 0
    answer = call("--read", "--out", "out", "--json")
    found = json.loads(answer.out)
    verdicts = {one["id"]: one["verdict"] for exhibit in found for one in exhibit["cells"]}
    assert verdicts["algs/communication/fedsam"] == "agrees"
    assert not {"not run"} & set(verdicts.values())


def test_the_list_names_everything_and_what_is_missing(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGLOSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    answer = fedgloss(capsys, "reproduce", "--json")
    assert answer.code == 0, answer.err
    rows = {row["label"]: row for row in json.loads(answer.out)}
    assert set(rows) == {exhibit.label for exhibit in paper.exhibits()}
    assert rows["tab:sota_cnn"]["runs"] == 132
    assert rows["tab:sota_cnn"]["rounds"] == 1_980_000
    assert rows["tab:sota_gld"]["missing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tab:sota_cn"], "did you mean 'tab:sota_cnn'?"),
        (["tab:hp"], "there is nothing to run"),
        (["tab:sota_cnn", "--cell", "nothing/*"], "matches no cell"),
        (["tab:sota_cnn", "--scale", "2"], "--scale: must lie between 0 and 1"),
        (["tab:sota_cnn", "--scale", "0.1", "--rounds", "5"], "exclude each other"),
        (["tab:sota_cnn", "--read", "--plan"], "exclude each other"),
        (["tab:sota_cnn", "--seeds", "a,b"], "must be whole numbers"),
        (["tab:sota_cnn", "--seeds", "1,1"], "names the same twice"),
        (["tab:sota_cnn", "--fidelity", "exact"], "fidelity"),
        (["fig:method"], "is a sketch"),
        (["--read", "--out", "nowhere"], "holds no run"),
        (["tab:sota_cnn", "--read", "--out", "nowhere"], "holds no run"),
        (["--read", "--cell", "nothing/*"], "matches no cell"),
        (["--cell", "*/fedavg"], "--cell: needs a table or figure"),
        (["--scale", "0.1"], "--scale: needs a table or figure"),
        (["--markdown", "page.md"], "--markdown: needs a table or figure"),
    ],
)
def test_mistakes_are_one_line(call, tmp_path: Path, arguments: list[str], message: str) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])


def test_the_disk_of_a_method_counts_every_vector_its_clients_keep() -> None:
    found = {name: vectors_kept("cifar10-cnn", name) for name in ("fedavg", "fedgloss", "scaffold", "fedsmoo")}
    assert found == {"fedavg": 0, "fedgloss": 1, "scaffold": 1, "fedsmoo": 2}


def test_released_terms_look_behind_a_first_eigenvalue(call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "fedgloss.reproduction.measuring.measure_flatness", lambda run, how, measures: asked.append(measures.top)
    )
    options = ["--rounds", "1", "--seeds", "0", "--jobs", "1", "--set", "data.split=hsu"]
    for fidelity in ("paper", "released"):
        command = ["sota_cnn_eig", "--cell", "*/cifar10/alpha=0/fedavg", "--fidelity", fidelity, "--out", fidelity]
        answer = call(*command, *options, "--set", "data.options.emulate_leak=false")
        assert answer.code == 0, answer.err
    assert asked == [1, 5]
