"""Mistakes, by the dozen: each is exit code 2, a clear message that names the culprit, and nothing is written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command import fedgloss
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgloss import InvalidInput
from fedgloss.algorithms import METHODS
from fedgloss.compute import devices
from fedgloss.config import Config, flatten, presets, resolve, to_toml
from fedgloss.data.federate import SPLITS
from fedgloss.job import build_execution, build_job

FILES = {
    "syntax.toml": "[local\nlr = 1",
    "binary.toml": b"\xff\xfe\x00\x01",
    "empty_preset.toml": 'preset = "cifar10-cn"',
    "typo.toml": 'preset = "digits"\n[local]\nlearning_rate = 0.1',
    "section.toml": 'preset = "digits"\n[lokal]\nlr = 0.1',
    "type.toml": 'preset = "digits"\n[training]\nrounds = "many"',
    "several.toml": '[local]\nlr = -1\nepochs = 0\n[training]\nrounds = 0\n[algorithm]\nname = "fedgloss"\nbta = 1',
    "list.toml": 'preset = "digits"\nlocal = [1, 2]',
    "value.toml": 'preset = "digits"\nalgorithm = 3',
    "method.toml": 'preset = "digits"\n[algorithm]\nname = "fedgoss"',
    "inner.toml": 'preset = "digits"\n[algorithm]\nname = "wima"\n[algorithm.inner]\nname = "fedprx"',
    "inner_option.toml": '[algorithm]\nname = "wima"\n[algorithm.inner]\nname = "fedprox"\nmuu = 1',
    "numbers.toml": 'preset = "digits"\n[algorithm]\nname = 7',
    "fidelity.toml": 'preset = "digits"\nfidelity = "exact"',
    "nan.toml": 'preset = "digits"\n[local]\nlr = nan',
    "weights.safetensors": b"not weights",
    "preset_list.toml": "preset = [1]",
    "methods.toml": 'preset = "digits"\nmethods = 3',
    "many_digits.toml": f"[training]\nrounds = {'9' * 5000}",
    "deep.toml": f"[data]\noptions = {'[' * 5000}",
    "two.toml": 'preset = "digits"\n[local]\nlr = -1\n[algorithm]\nname = "fedgoss"',
    "client.toml": 'preset = "digits"\n[algorithm]\nname = "fedsmoo"\nclient = "sam"',
}

LONG = "a" * 300  # longer than a file's name may be

RUN = ["run", "digits", "--rounds", "2"]
MISTAKES: list[tuple[list[str], str]] = [
    (["run"], "Missing argument"),
    (["run", "digit"], "unknown preset 'digit'; did you mean 'digits'?"),
    (["run", "nothing-like-it"], "there are cifar10-cnn"),
    (["run", "missing.toml"], "missing.toml: no such file"),
    (["run", "folder/missing"], "no such file"),
    (["run", "syntax.toml"], "syntax.toml: is not TOML"),
    (["run", "binary.toml"], "binary.toml: is not text"),
    (
        ["run", "empty_preset.toml"],
        "empty_preset.toml: preset: unknown preset 'cifar10-cn'; did you mean 'cifar10-cnn'",
    ),
    (["run", "preset_list.toml"], "preset_list.toml: preset: unknown preset '[1]'"),
    (["run", "methods.toml"], "methods.toml: methods: unknown key"),
    (["run", "many_digits.toml"], "many_digits.toml: is not TOML"),
    (["run", "deep.toml"], "deep.toml: is not TOML"),
    ([*RUN, "--set", f"local.lr={'9' * 5000}"], "local.lr"),
    (["run", "two.toml"], "two.toml: algorithm.name: unknown method 'fedgoss'; did you mean 'fedgloss'?"),
    (["run", "two.toml"], "two.toml: local.lr: input should be greater than 0, got -1"),
    (["run", "client.toml"], "client.toml: algorithm.client: fedsmoo fixes its clients' optimiser"),
    (["run", "occupied"], "occupied: cannot be read (Is a directory)"),
    (["run", f"{LONG}.toml"], "no such file"),
    ([*RUN, "--out", LONG], "File name too long"),
    (["resume", LONG], "File name too long"),
    (["runs", LONG], "File name too long"),
    ([*RUN, "--set", f"model.weights={LONG}.safetensors"], "File name too long"),
    ([*RUN, "--set", "preset=cifar10-cnn"], "preset: unknown key"),
    ([*RUN, "--set", "summary=mine"], "summary: unknown key"),
    ([*RUN, "--set", "methods.fedavg.server_lr=2"], "methods: unknown key"),
    ([*RUN, "--set", f"run.client_memory={'9' * 400}GB"], "run.client_memory"),
    ([*RUN, "--set", f"local.epochs=1{'0' * 400}"], "local.epochs: input should be less than or equal to"),
    (
        [*RUN, "--method", "fedgloss", "--set", f"algorithm.warm_up=1{'0' * 400}"],
        "algorithm.warm_up: input should be less than or equal to",
    ),
    (
        [*RUN, "--method", "wima", "--set", "algorithm.inner=fedprox"],
        "algorithm.inner: is a section; the method inside",
    ),
    (["compare", "digits", "--methods", "fedavg", "--seeds", "²"], "--seeds ²: must be whole numbers"),
    (["run", "typo.toml"], "typo.toml: local.learning_rate: unknown key"),
    (["run", "section.toml"], "section.toml: lokal: unknown key; did you mean 'local'?"),
    (["run", "type.toml"], "type.toml: training.rounds: input should be a valid integer, got 'many'"),
    (["run", "several.toml"], "several.toml: local.lr"),
    (["run", "several.toml"], "several.toml: local.epochs"),
    (["run", "several.toml"], "several.toml: training.rounds"),
    (["run", "several.toml"], "several.toml: algorithm.bta: unknown key; did you mean 'beta'?"),
    (["run", "list.toml"], "list.toml: local"),
    (["run", "value.toml"], "algorithm"),
    (["run", "method.toml"], "unknown method 'fedgoss'; did you mean 'fedgloss'?"),
    (["run", "inner.toml"], "algorithm.inner.name: unknown method 'fedprx'; did you mean 'fedprox'?"),
    (["run", "inner_option.toml"], "algorithm.inner.muu: unknown key; did you mean 'mu'?"),
    (["run", "numbers.toml"], "unknown method '7'"),
    (["run", "fidelity.toml"], "fidelity"),
    (["run", "nan.toml"], "nan.toml: local.lr"),
    ([*RUN, "--method", "fedglos"], "unknown method 'fedglos'; did you mean 'fedgloss'?"),
    ([*RUN, "--method", "fedsam", "--client", "sam"], "FedSAM with SGD clients is fedavg"),
    ([*RUN, "--method", "fedavg", "--client", "sam"], "FedAvg with SAM clients is fedsam"),
    ([*RUN, "--method", "fedgamma", "--client", "sgd"], "FedGamma with SGD clients is scaffold"),
    ([*RUN, "--method", "fedspeed", "--client", "sgd"], "fedspeed fixes its clients' optimiser"),
    ([*RUN, "--method", "fedsmoo", "--client", "sam"], "methods that take a client are feddyn, fedgloss"),
    ([*RUN, "--method", "fedgloss", "--client", "adam"], "algorithm.client"),
    ([*RUN, "--method", "wima", "--set", "algorithm.window=0"], "algorithm.window"),
    ([*RUN, "--method", "swa"], "algorithm.start: is needed"),
    ([*RUN, "--method", "fedgloss", "--set", "algorithm.beta=0"], "algorithm.beta: input should be greater than 0"),
    ([*RUN, "--method", "fedgloss", "--set", "algorithm.rho=-1"], "algorithm.rho"),
    ([*RUN, "--method", "fedgloss", "--set", "algorithm.rho=inf"], "algorithm.rho"),
    ([*RUN, "--method", "fedgloss", "--set", "algorithm.dual=sum"], "algorithm.dual"),
    ([*RUN, "--method", "fedgloss", "--set", "algorithm.inner.name=fedavg"], "fedgloss wraps no other method"),
    ([*RUN, "--fidelity", "exact"], "fidelity"),
    ([*RUN, "--set", "local.lr"], "write it as key=value"),
    ([*RUN, "--set", "=3"], "write it as key=value"),
    ([*RUN, "--set", "local..lr=3"], "write it as key=value"),
    ([*RUN, "--set", "local.lr=fast"], "local.lr: input should be a valid number, got 'fast'"),
    ([*RUN, "--set", "local.lr=0"], "local.lr: input should be greater than 0, got 0"),
    ([*RUN, "--set", "local.epochs=1.5"], "local.epochs: input should be a valid integer, got 1.5"),
    ([*RUN, "--set", "local.momentum=1"], "local.momentum: input should be less than 1"),
    ([*RUN, "--set", "local=3"], "local"),
    ([*RUN, "--set", "lr=3"], "lr: unknown key"),
    ([*RUN, "--set", "local.lr=1\nx=2"], "local.lr: input should be a valid number"),
    ([*RUN, "--set", "data.clients=0"], "data.clients: input should be greater than or equal to 1"),
    ([*RUN, "--set", "data.clients=2000"], "clients"),
    ([*RUN, "--set", "data.name=digitz"], "digitz"),
    ([*RUN, "--set", "data.name=sites"], "go on with its run by flwr run"),
    ([*RUN, "--set", "data.name=no_such_package:make"], "no_such_package"),
    ([*RUN, "--set", "data.options.colour=true"], "colour"),
    ([*RUN, "--set", "data.validation=1"], "data.validation: input should be less than 1"),
    ([*RUN, "--alpha", "-1"], "data.alpha: input should be greater than or equal to 0"),
    ([*RUN, "--alpha", "much"], "'--alpha'"),
    ([*RUN, "--split", "hsi"], "unknown split 'hsi'"),
    ([*RUN, "--split", "official"], "the official split needs the folder of the authors' JSON files"),
    ([*RUN, "--split", "natural"], "natural split"),
    (["run", "fashion-mnist-cnn", "--split", "shards", "--set", "data.name=digits"], "classes_per_client"),
    (["run", "digits", "--set", "data.split=[]"], "data.split"),
    ([*RUN, "--split", "iid", "--alpha", "0.5"], "alpha: the split 'iid' has no such setting"),
    ([*RUN, "--set", "model.name=cnnn"], "did you mean 'cnn'?"),
    ([*RUN, "--set", "model.options.depth=3"], "depth"),
    ([*RUN, "--set", "model.weights=missing.safetensors"], "missing.safetensors"),
    ([*RUN, "--set", "model.weights=weights.safetensors"], "weights.safetensors"),
    ([*RUN, "--set", "training.cohort=21"], "21 clients a round asked of a federation of 20"),
    ([*RUN, "--set", "training.participation=0"], "training.participation"),
    ([*RUN, "--set", "training.window=5"], "window: must lie between 1 and the 2 rounds"),
    ([*RUN, "--set", "training.evaluate_on=train"], "training.evaluate_on"),
    ([*RUN, "--set", "training.evaluate_on=validation"], "needs a share of the data: --set data.validation=0.1"),
    (["run", "digits", "--rounds", "0"], "training.rounds: input should be greater than or equal to 1"),
    (["run", "digits", "--rounds", "ten"], "'--rounds'"),
    ([*RUN, "--seed", "-1"], "training.seed: input should be greater than or equal to 0"),
    ([*RUN, "--workers", "0"], "run.workers"),
    ([*RUN, "--workers", "some"], "run.workers"),
    ([*RUN, "--client-memory", "lots"], "run.client_memory"),
    ([*RUN, "--keep-every", "0"], "run.keep_every"),
    ([*RUN, "--track", "mlflow"], "there are tensorboard, wandb"),
    ([*RUN, "--track", "no_such:thing"], "no_such"),
    ([*RUN, "--track", "os:getcwd"], "--track os:getcwd: cannot be called with the run's folder alone"),
    ([*RUN, "--track", "os:fspath"], "--track os:fspath: is no tracker, it has no started()"),
    ([*RUN, "--out", "occupied"], "exists and is not a run"),
    ([*RUN, "--unknown"], "No such option"),
    (["resume", "nowhere"], "nowhere: is not a run"),
    (["resume", "occupied"], "occupied: is not a run"),
    (["export", "nowhere", "--to", "model.safetensors"], "nowhere: is not a run"),
    (["export", "nowhere", "--to", "model.onnx"], "ends in neither .safetensors nor .pt"),
    (["runs", "nowhere"], "nowhere: no such folder"),
    (["runs", ".", "--delete", "occupied"], "is not a run"),
    (["runs", ".", "--delete", "foreign", "--yes"], "environment.json: cannot be read"),
    (["runs", ".", "--delete", "../elsewhere", "--yes"], "elsewhere: is not a run"),
    (["compare", "digits", "--methods", ""], "--methods: is empty"),
    (["compare", "digits", "--methods", "fedavg,fedsm"], "unknown method 'fedsm'"),
    (["compare", "digits", "--methods", "fedavg", "--seeds", "a,b"], "must be whole numbers"),
    (["compare", "digits", "--methods", "fedavg", "--seeds", "1,1"], "--seeds 1,1: names the same twice"),
    (["compare", "digits", "--methods", "fedavg,fedavg"], "names the same twice"),
    (["compare", "digits", "--methods", "fedavg", "--jobs", "0"], "--jobs"),
    (["compare", "digits", "--methods", "fedgloss", "--clients", "sgd,adam"], "there are sgd, sam, got 'adam'"),
    (["compare", "digits", "--methods", "fedavg", "--clients", "adam"], "--clients adam: there are sgd, sam"),
    (["sweep", "digits"], "--grid: names nothing to try"),
    (["sweep", "digits", "--grid", "local.lr"], "write it as key=value1,value2"),
    (["sweep", "digits", "--grid", "local.lr=0.1,-1"], "local.lr: input should be greater than 0, got -1"),
    (["sweep", "digits", "--grid", "local.rate=1"], "local.rate: unknown key"),
    (["sweep", "digits", "--paper-grid", "--grid", "local.lr=1"], "leave out --grid"),
    (["sweep", "digits", "--paper-grid"], "digits"),
    (["sweep", "digits", "--grid", "local.lr=1", "--grid", "local.lr=2"], "has its values already"),
    (["sweep", "digits", "--grid", "local.lr=1", "--set", "local.lr=2"], "this command decides local.lr itself"),
    (
        ["sweep", "digits", "--grid", "local.lr=1", "--set", "training.evaluate_on=test"],
        "this command decides training.evaluate_on itself",
    ),
    (["sweep", "digits", "--grid", "training.seed=1,2"], "--grid training.seed: give the seeds by --seeds"),
    (["sweep", "digits", "--grid", "local.lr=1", "--seeds", "1,1"], "--seeds 1,1: names the same twice"),
    (["sweep", "digits", "--grid", "local.lr=1", "--set", "training.cohort=21"], "21 clients a round asked"),
    (["sweep", "digits", "--grid", "local.lr=1", "--out", "occupied/thesis.txt"], "thesis.txt: cannot write"),
    (["compare", "digits", "--methods", "fedavg", "--set", "training.seed=3"], "decides training.seed itself"),
    (["compare", "digits", "--methods", "fedavg", "--out", "occupied/thesis.txt"], "cannot write"),
    (["compare", "digits", "--methods", "fedavg", "--set", "training.cohort=21"], "21 clients a round asked"),
    (["show", "digits", "--set", "run.device=1"], "run.device"),
    *(
        ([*RUN, "--set", f"run.device={name}"], f"run.device: there is no '{name}'; this machine has cpu")
        for name in ("meta", "gpu", "cuda:77", "cpu:0", "CPU", "")
    ),
    (["compare", "digits", "--methods", "fedavg", "--set", "run.device=gpu"], "run.device: there is no 'gpu'"),
    (["sweep", "digits", "--grid", "local.lr=1", "--set", "run.device=gpu"], "run.device: there is no 'gpu'"),
    (["plan", "digits", "--set", "local.batch_size=0"], "local.batch_size"),
    (["data", "show", "digitz"], "digitz"),
    (["dance"], "No such command"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files above, to work in."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.txt").write_text("precious")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.toml").write_text("theme = 'dark'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file and every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_a_mistake_is_named_and_nothing_is_written(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(place)
    answer = fedgloss(capsys, *arguments)
    assert answer.code == 2, answer
    assert message in " ".join(answer.err.split()).replace("│ ", "").replace(" │", "")
    assert "Traceback" not in answer.err + answer.out
    assert snapshot(place) == before


def test_a_plan_says_that_the_device_is_missing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = fedgloss(capsys, "plan", "digits", "--set", "run.device=cuda:77")
    assert (answer.code, answer.out) == (
        1,
        f"missing: run.device: there is no 'cuda:77'; this machine has {', '.join(devices())}\n",
    )


@pytest.mark.parametrize(
    "arguments", [["run", "typo.toml"], ["resume", "nowhere"], ["run", "digits", "--method", "x"]]
)
def test_as_real_processes(arguments: list[str], place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgloss", *arguments],
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


KEYS = sorted(
    {key for key, _ in flatten(Config().model_dump())}
    | {f"algorithm.{option}" for method in METHODS.values() for option in method.options}
    | {"algorithm.inner.name", "algorithm.inner.beta", "data.options.x", "model.options.x.y", "run", "x.y"}
    | {"preset", "methods", "summary"}
)
WORDS = [*METHODS, *SPLITS, *presets(), "released", "sam", "validation", "auto", "1e999GB"]
VALUES = st.one_of(
    st.integers(-5, 10**6),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.sampled_from(WORDS),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*presets(), "nothing"]),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    st.lists(st.text(max_size=12), max_size=2),
)
def test_any_configuration_is_accepted_and_read_back_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, source: str, options: dict, texts: list[str]
) -> None:
    with contextlib.suppress(InvalidInput):
        config = resolve(source, options, texts).config
        assert isinstance(config, Config)
        kept = tmp_path_factory.mktemp("fuzz") / "config.toml"
        kept.write_text(to_toml(config))
        assert repr(resolve(kept).config) == repr(config)  # as text: options may hold nan


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_what_is_accepted_can_be_built_or_is_refused_in_words(options: dict) -> None:
    """From the configuration on to the data, the network, the method and the plan."""
    small = {"data.name": "digits", "model.name": "logistic"}
    with contextlib.suppress(InvalidInput):
        config = resolve("digits", {**options, **small}).config
        build_job(config)
        build_execution(config)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_file_is_accepted_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "config.toml"
    path.write_bytes(content)
    with contextlib.suppress(InvalidInput):
        resolve(path)
