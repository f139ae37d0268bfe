"""Client memories under a RAM budget: the same bits, bounded RAM, files written only for what changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pool_toys import Dies, marked_problem

from fedgloss import ExactCohort, FedGloSS, FedSMOO, LocalTraining, Sam
from fedgloss.algorithm import Algorithm
from fedgloss.checkpoint import Checkpoints
from fedgloss.errors import WorkerLost
from fedgloss.messages import ClientState
from fedgloss.records import RunFolder
from fedgloss.run import Execution, Job, execute
from fedgloss.training import Plan
from fedgloss.transports import DiskStore

LOCAL = LocalTraining(lr=0.1, batch_size=4, momentum=0.5)
METHODS: dict[str, Algorithm] = {
    "fedgloss": FedGloSS(0.05, 5.0, LOCAL, Sam(0.05)),
    "fedsmoo": FedSMOO(0.1, 10.0, LOCAL),
}
ROUNDS = 6


def job(method: str = "fedgloss", problem: object = None) -> Job:
    plan = Plan(rounds=ROUNDS, sampling=ExactCohort(4), eval_every=3)
    return Job(METHODS[method], problem or marked_problem(), plan)  # type: ignore[arg-type]


def records(folder: Path) -> tuple[bytes, dict[str, torch.Tensor]]:
    run = RunFolder(folder)
    return run.rounds.read_bytes(), dict(Checkpoints(run).state(ROUNDS).vectors)


def same(one: Path, other: Path) -> bool:
    (lines, state), (other_lines, other_state) = records(one), records(other)
    return (
        lines == other_lines
        and state.keys() == other_state.keys()
        and all(state[name].equal(other_state[name]) for name in state)
    )


def state(value: float, size: int = 1000) -> ClientState:
    return ClientState({"dual": torch.full((size,), float(value))})


@pytest.mark.parametrize("method", sorted(METHODS))
def test_neither_budget_nor_workers_can_be_seen_in_a_run(tmp_path: Path, method: str) -> None:
    execute(job(method), RunFolder(tmp_path / "plain"), Execution(workers=1))
    for budget, workers in ((1, 1), (1, 2), (5000, 2), (None, 3)):
        folder = tmp_path / f"{budget}-{workers}"
        execute(job(method), RunFolder(folder), Execution(workers=workers, client_memory=budget))
        assert same(tmp_path / "plain", folder), (budget, workers)


def test_checkpoints_all_the_time_with_a_tiny_budget_change_nothing(tmp_path: Path) -> None:
    execute(job(), RunFolder(tmp_path / "plain"), Execution())
    eager = Execution(workers=2, client_memory=1, checkpoint_seconds=0.0, keep_every=2)
    execute(job(), RunFolder(tmp_path / "eager"), eager)
    assert same(tmp_path / "plain", tmp_path / "eager")


def test_a_run_whose_worker_is_killed_in_mid_round_ends_with_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "lives").mkdir()
    for name in ("first", "second"):
        (tmp_path / "lives" / name).touch()
    execute(job(), RunFolder(tmp_path / "plain"), Execution())
    fatal = marked_problem(Dies(2, tmp_path / "lives"))
    execute(job(problem=fatal), RunFolder(tmp_path / "killed"), Execution(workers=2, client_memory=1))
    assert not list((tmp_path / "lives").iterdir())
    assert same(tmp_path / "plain", tmp_path / "killed")


def test_a_run_that_loses_all_its_workers_is_resumable(tmp_path: Path) -> None:
    execute(job(), RunFolder(tmp_path / "plain"), Execution())
    with pytest.raises(WorkerLost, match="was killed by SIGKILL at client 2, round"):
        execute(job(problem=marked_problem(Dies(2))), RunFolder(tmp_path / "lost"), Execution(workers=2))
    assert execute(job(), RunFolder(tmp_path / "lost"), Execution(workers=2))["status"] == "finished"
    assert same(tmp_path / "plain", tmp_path / "lost")


def test_what_lies_in_ram_stays_within_the_budget(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, size=1000, budget=3 * 4000)
    for client in range(10):
        store.put(client, state(float(client)), round=0)
        assert store._bytes <= 3 * 4000
    assert sorted(store._memories) == [7, 8, 9]
    for client in (0, 5, 9, 3):
        memory = store.get(client)
        assert memory is not None
        assert memory["dual"].equal(torch.full((1000,), float(client)))
        assert store._bytes <= 3 * 4000
    assert store.get(10) is None


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, size=1000, budget=2 * 4000)
    store.put(1, state(1), 0)
    store.put(2, state(2), 0)
    store.get(1)
    store.put(3, state(3), 0)
    assert sorted(store._memories) == [1, 3]
    assert store.path(2, 0).exists()
    assert not store.path(1, 0).exists()


def test_a_checkpoint_writes_what_changed_and_nothing_else(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, size=1000)
    for client in range(5):
        store.put(client, state(client), 0)
    assert store.flush() == dict.fromkeys(range(5), 0)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    assert len(written) == 5
    store.put(3, state(30), 1)
    assert store.flush() == {3: 1}
    assert {path: path.stat().st_mtime_ns for path in written} == written  # files never change
    assert store.path(3, 1).exists()
    assert store.flush() == {}


def test_versions_no_checkpoint_needs_are_deleted(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, size=1000, budget=0)
    for round in range(4):
        store.put(1, state(round), round)
        store.put(2, state(round), round)
        store.flush()
    store.collect(kept=[4])
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["1-3.safetensors", "2-3.safetensors"]
