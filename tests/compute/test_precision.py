"""bfloat16: tried out where dying does no harm, taken only where it pays, one line where not."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pool_toys import DropoutNetwork, marked_problem
from torch.nn import functional as F

from fedgloss import ExactCohort, FedAvg, InvalidInput, LocalTraining, precision, train
from fedgloss.config import resolve
from fedgloss.job import build_problem
from fedgloss.messages import Broadcast
from fedgloss.precision import ISA, LIMITS, PAYS, Bfloat16, _try, settle
from fedgloss.records import RunFolder, read_json
from fedgloss.run import Execution, Job, execute
from fedgloss.tasks import Batch, Objective
from fedgloss.training import Plan, Step
from fedgloss.transports import MemoryStore, open_simulation

LOCAL = LocalTraining(lr=0.1, batch_size=4)


@pytest.fixture(autouse=True)
def no_memory_of_trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(ISA, raising=False)
    precision.try_bfloat16.cache_clear()
    yield
    precision.try_bfloat16.cache_clear()


def child(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"import os, signal\nlimit = os.environ.get({ISA!r})\n{code}"]


GOOD = 'print(\'{"speed": 2.5, "likeness": 0.999}\')'


def test_where_it_runs_and_pays_it_is_taken() -> None:
    found = _try(child(GOOD), LIMITS)
    assert found == Bfloat16(2.5)
    assert found.pays
    assert str(found) == "bfloat16 pays here (2.5 times float32's speed)"


def test_a_processor_that_dies_of_its_newest_instructions_is_held_to_older_ones() -> None:
    found = _try(child(f"if limit is None: os.kill(os.getpid(), signal.SIGILL)\n{GOOD}"), LIMITS)
    assert found.environment == {ISA: "AVX512_CORE_BF16"}
    assert found.pays


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", "a trial died of SIGILL; with ONEDNN_MAX_CPU_ISA="),
        ("raise RuntimeError('no such kernel')", "a trial failed: RuntimeError: no such kernel"),
        ("print('nonsense')", "a trial failed: it said nothing"),
        ('print(\'{"speed": 3, "likeness": 0.2}\')', "its gradients are wrong, cosine 0.2"),
        ('print(\'{"speed": 3, "likeness": NaN}\')', "its gradients are wrong, cosine nan"),
    ],
)
def test_where_it_does_not_run_one_line_says_why(code: str, reason: str) -> None:
    found = _try(child(code), LIMITS)
    assert not found.pays
    assert reason in str(found)
    assert "\n" not in str(found)


def test_a_trial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PATIENCE", 0.2)
    found = _try([sys.executable, "-S", "-c", "import time; time.sleep(60)"], [None])
    assert "took more than 0.2 s" in str(found)


def test_the_users_own_instruction_set_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ISA, "AVX2")
    tries = tmp_path / "tries"
    monkeypatch.setattr(
        precision,
        "CHILD",
        child(f"open({str(tries)!r}, 'a').write(limit + ' ')\nos.kill(os.getpid(), signal.SIGILL)"),
    )
    assert not precision.try_bfloat16().pays
    assert tries.read_text() == "AVX2 "


def test_the_trial_itself_runs_on_this_machine() -> None:
    found = precision.try_bfloat16()
    assert found.speed > 0 or found.failure


def test_float32_and_other_devices_need_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "CHILD", ["/no/such/program"])
    assert settle("float32", "cpu") == ("float32", None)
    assert settle("bfloat16", "cuda") == ("bfloat16", None)
    with pytest.raises(InvalidInput, match="precision: must be float32 or bfloat16, got 'half'"):
        settle("half", "cpu")  # type: ignore[arg-type]


def test_where_it_does_not_pay_training_is_that_of_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "CHILD", child('print(\'{"speed": 0.4, "likeness": 0.999}\')'))
    plain = train(FedAvg(LOCAL), marked_problem(), rounds=2, cohort=3)
    with caplog.at_level(logging.WARNING, "fedgloss"):
        asked = train(FedAvg(LOCAL), replace(marked_problem(), precision="bfloat16"), rounds=2, cohort=3)
    assert asked.state["params"].equal(plain.state["params"])
    assert [r.getMessage() for r in caplog.records] == [
        "bfloat16 does not pay here (0.4 times float32's speed); training in float32"
    ]


class Listener:
    """A tracker that keeps what a run has to say at its start."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None:
        self.notices += notices

    def stepped(self, step: Step, seconds: float) -> None: ...

    def ended(self, summary: Mapping[str, Any]) -> None: ...


def test_a_run_says_so_and_records_what_it_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(precision, "CHILD", child("os.kill(os.getpid(), signal.SIGILL)"))
    problem = replace(marked_problem(), precision="bfloat16")
    listener = Listener()
    job = Job(FedAvg(LOCAL), problem, Plan(rounds=1, sampling=ExactCohort(2)))
    assert execute(job, RunFolder(tmp_path / "run"), Execution(workers=2), [listener])["status"] == "finished"
    (notice,) = listener.notices
    assert notice.startswith("bfloat16 does not run here (a trial died of SIGILL")
    assert notice.endswith("training in float32")
    assert read_json(tmp_path / "run" / "environment.json")["precision"] == "float32"


SLOW = 'print(\'{"speed": 0.4, "likeness": 0.999}\')'
DEADLY = "os.kill(os.getpid(), signal.SIGILL)"


def test_a_run_goes_on_in_the_precision_it_began_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if precision.try_bfloat16().failure:
        pytest.skip(str(precision.try_bfloat16()))

    def go_on(name: str, rounds: int, trial: str) -> list[str]:
        monkeypatch.setattr(precision, "CHILD", child(trial))
        precision.try_bfloat16.cache_clear()
        problem, listener = replace(marked_problem(), precision="bfloat16"), Listener()
        job = Job(FedAvg(LOCAL), problem, Plan(rounds=rounds, sampling=ExactCohort(2), window=1))
        execute(job, RunFolder(tmp_path / name), Execution(), [listener])
        return listener.notices

    assert go_on("whole", 3, GOOD) == []
    assert go_on("parts", 1, GOOD) == []
    assert go_on("parts", 2, SLOW) == []
    with pytest.raises(InvalidInput, match="the run began in bfloat16, and bfloat16 does not run here"):
        go_on("parts", 3, DEADLY)
    assert go_on("parts", 3, GOOD) == []
    whole, parts = (tmp_path / name / "checkpoints" / "00000003.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    assert len(go_on("plain", 1, SLOW)) == 1
    assert go_on("plain", 3, GOOD) == [
        "the run began in float32, where bfloat16 did not run or pay, and stays in it"
    ]


def test_where_it_pays_clients_train_in_it_and_in_processes_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    if precision.try_bfloat16().failure:
        pytest.skip(str(precision.try_bfloat16()))
    limit = "AVX2" if os.uname().machine == "x86_64" else "DEFAULT"
    monkeypatch.setattr(precision, "LIMITS", [limit])
    monkeypatch.setattr(precision, "CHILD", child(GOOD))
    precision.try_bfloat16.cache_clear()
    problem = replace(marked_problem(), precision="bfloat16")
    one, two = (train(FedAvg(LOCAL), problem, rounds=2, cohort=3, workers=w) for w in (1, 2))
    plain = train(FedAvg(LOCAL), marked_problem(), rounds=2, cohort=3)
    assert one.state["params"].equal(two.state["params"])
    assert one.state["params"].dtype == torch.float32
    difference = float((one.state["params"] - plain.state["params"]).norm() / plain.state["params"].norm())
    assert 0 < difference < 0.05
    objective = Objective(problem.build(0), problem.loss)
    with open_simulation(FedAvg(LOCAL), problem, objective, MemoryStore(), seed=0) as simulation:
        list(simulation.transport(Broadcast({"params": objective.initial()}, 0), [0]))
        (worker,) = simulation.transport.processes  # type: ignore[attr-defined]
        assert worker != os.getpid()
    assert ISA not in os.environ


def test_layers_compute_in_bfloat16_and_gradients_stay_float32() -> None:
    seen: list[torch.dtype] = []
    module = DropoutNetwork()
    module.drop.register_forward_hook(lambda *call: seen.append(call[2].dtype))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs, targets)

    objective = Objective(module, loss)
    batch = Batch(torch.randn(4, 26), torch.zeros(4, dtype=torch.int64), seed=0)
    value, gradient = objective.gradient(objective.initial(), batch, "bfloat16")
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert (value.dtype, gradient.dtype) == (torch.float32, torch.float32)
    objective.gradient(objective.initial(), batch)
    assert seen[2:] == [torch.float32, torch.float32]


def test_the_configuration_asks_for_it() -> None:
    config = resolve("digits", {"training.precision": "bfloat16"}).config
    assert build_problem(config).precision == "bfloat16"
    with pytest.raises(InvalidInput, match=r"training.precision: .*'float32' or 'bfloat16', got 'half'"):
        resolve("digits", {"training.precision": "half"})


def test_pays_means_clearly_faster() -> None:
    assert not Bfloat16(speed=PAYS - 0.01).pays
    assert Bfloat16(speed=PAYS).pays
