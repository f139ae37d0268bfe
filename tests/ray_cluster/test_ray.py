"""Clients on a real Ray cluster of two nodes: the bits of one process, whatever dies."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.command import fedgloss as fedgloss_here
from pool_toys import Dies, Raises, Slow, marked_federation, marked_problem, nan_loss_for_class_two
from torch import nn

from fedgloss import Diverged, FedAvg, FedGloSS, InvalidInput, LocalTraining, Problem, Sam, train
from fedgloss.algorithm import Algorithm, Dropped, run_round
from fedgloss.algorithms import build
from fedgloss.diagnostics import Watch
from fedgloss.errors import WorkerLost
from fedgloss.messages import Broadcast, ClientState, ServerState, Update
from fedgloss.tasks import Objective, client_tasks, evaluate, samples_of
from fedgloss.training import History
from fedgloss.transports import MemoryStore, SerialTransport

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own pipes to its daemons
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ray = pytest.importorskip("ray")
from fedgloss.transports.failures import Failed  # noqa: E402
from fedgloss.transports.ray import Hello, Packed, RayTransport, _answer, _Job, _Worker  # noqa: E402

LOCAL = LocalTraining(lr=0.1, batch_size=4, epochs=2, weight_decay=1e-3, momentum=0.5)
FEDGLOSS = FedGloSS(0.05, 5.0, LOCAL, Sam(0.05))


def start_cluster(*cpus: int) -> Any:
    """A cluster of real nodes on this machine, each with an object store and so many CPUs by its own account."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    options = {"object_store_memory": 200_000_000}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False, **options}
    )
    for count in cpus[1:]:
        cluster.add_node(num_cpus=count, **options)
    return cluster


@contextmanager
def connected(cluster: Any) -> Iterator[None]:
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    started = start_cluster(1, 1)
    yield started
    started.shutdown()


@pytest.fixture
def here(cluster: Any) -> Iterator[None]:
    with connected(cluster):
        yield


def equal(one: ServerState | ClientState | Update, other: ServerState | ClientState | Update) -> bool:
    names = one.vectors.keys() == other.vectors.keys()
    return names and all(one[n].equal(other[n]) for n in one.vectors) and dict(one.scalars) == dict(other.scalars)


def all_equal(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(equal(one, other) for one, other in zip(ones, others, strict=True))


def same_history(one: History, other: History) -> bool:
    return equal(one.state, other.state) and one.rounds == other.rounds and one.evaluations == other.evaluations


@contextmanager
def actors(
    algorithm: Algorithm = FEDGLOSS, problem: Problem | None = None, **options: Any
) -> Iterator[tuple[RayTransport, Objective, MemoryStore]]:
    problem = problem or marked_problem()
    objective, store = Objective(problem.build(0), problem.loss), MemoryStore()
    with RayTransport(algorithm, problem, objective, store, seed=0, **options) as opened:
        yield opened, objective, store


def serial(cohorts: Sequence[Sequence[int]], algorithm: Algorithm = FEDGLOSS) -> tuple[list[Update], MemoryStore]:
    """What the cohorts answer one after the other, without any fault."""
    problem = marked_problem()
    objective, store = Objective(problem.build(0), problem.loss), MemoryStore()
    transport = SerialTransport(algorithm, client_tasks(objective, problem.federation, 0), store)
    start = objective.initial()
    return [u for t, c in enumerate(cohorts) for u in transport(Broadcast({"params": start}, t), c)], store


def memories_equal(one: MemoryStore, other: MemoryStore, clients: Sequence[int]) -> bool:
    pairs = [(one.get(client), other.get(client)) for client in clients]
    return all(a is not None and b is not None and equal(a, b) for a, b in pairs)


# The same bits


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsmoo", "fedgloss", "naive-fedgloss"])
def test_serial_pool_and_ray_give_the_same_bits(name: str, here: None) -> None:
    algorithm, problem = build(name, LOCAL), marked_problem()
    options: dict[str, Any] = {"rounds": 3, "cohort": 5}
    alone = train(algorithm, problem, **options)
    pool = train(algorithm, problem, **options, workers=2)
    cluster = train(algorithm, problem, **options, workers=2, transport="ray")
    assert same_history(alone, pool)
    assert same_history(alone, cluster)


def node_of(process: int) -> int:
    """The daemon of the node that started this process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_clients_stay_with_their_actors_and_remember(here: None) -> None:
    cohorts = [[0, 1], [2, 3, 2, 2], [1, 0], [0, 2, 1]]
    expected, store = serial(cohorts)
    problem = marked_problem()
    with actors(problem=problem, workers=2) as (transport, objective, found_store):
        start = objective.initial()

        def exchange(round: int) -> list[Update]:
            return list(transport(Broadcast({"params": start}, round), cohorts[round]))  # type: ignore[arg-type]

        while len(transport.processes) < 2:  # one that starts late leaves its share to the other
            list(transport(Broadcast({"params": start + 1}, 0, "probe"), [0, 1]))
        assert found_store.get(0) is None  # a probe leaves no trace
        found = exchange(0)
        assert len({node_of(process) for process in transport.processes}) == 2  # one on each node
        homes = [transport._homes[client][0] for client in (0, 1)]
        assert homes[0] is not homes[1]
        found += exchange(1)  # a client drawn twice remembers its first turn
        found += exchange(2)
        assert [transport._homes[client][0] for client in (0, 1)] == homes
        # an actor asked for a memory that it does not have says so, and is given the durable one
        transport._homes = {client: (home, 7) for client, (home, _) in transport._homes.items()}
        found += exchange(3)
        assert all_equal(expected, found)
        assert memories_equal(store, found_store, range(4))

        federation = problem.federation
        sets = ["test", *range(federation.population)]
        judged = [
            evaluate(objective, start, samples_of(federation, which), federation, problem.metrics)  # type: ignore[arg-type]
            for which in sets
        ]
        assert transport.evaluate(start, sets) == judged  # type: ignore[arg-type]


# When actors and nodes die


def test_an_actor_killed_in_the_middle_of_a_round_changes_nothing(
    here: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cohorts = [[0, 1, 2, 3, 4], [5, 2, 6, 1, 0], [1, 3, 0, 5]]
    expected, store = serial(cohorts)
    (tmp_path / "first").touch()
    (tmp_path / "second").touch()
    with (
        caplog.at_level(logging.WARNING, "fedgloss"),
        actors(problem=marked_problem(Dies(2, tmp_path)), workers=2) as (transport, objective, found_store),
    ):
        start = objective.initial()
        found = [u for t, c in enumerate(cohorts[:2]) for u in transport(Broadcast({"params": start}, t), c)]
        deaths = [record.getMessage() for record in caplog.records]
        assert len(deaths) == 2
        assert "died at client 2, round 0; another takes its place" in deaths[0]
        before = transport.processes
        os.kill(before[0], signal.SIGKILL)  # and once from outside
        found += list(transport(Broadcast({"params": start}, 2), cohorts[2]))
        assert before[0] not in transport.processes
    assert all_equal(expected, found)
    assert memories_equal(store, found_store, range(7))


def test_a_dropped_client_is_recorded_and_keeps_its_memory(here: None, tmp_path: Path) -> None:
    expected, _ = serial([[0, 1, 2, 3], [3, 1, 0]])
    problem = marked_problem(Dies(2, tmp_path))
    with actors(problem=problem, workers=2, on_failure="drop") as (transport, objective, store):
        start = objective.initial()
        found = list(transport(Broadcast({"params": start}, 0), [0, 1, 2, 3]))
        before = store.get(2)
        (tmp_path / "life").touch()
        found += list(transport(Broadcast({"params": start}, 1), [3, 2, 1, 0]))
        after = store.get(2)
    (dropped,) = [one for one in found if isinstance(one, Dropped)]
    assert dropped.client == 2
    assert "died at client 2, round 1" in dropped.reason
    assert before is not None
    assert after is before
    assert all_equal(expected, [one for one in found if isinstance(one, Update)])


def test_the_server_s_dual_stays_the_mean_of_the_clients_when_one_drops_out(here: None, tmp_path: Path) -> None:
    """sigma = mean of sigma_k over all clients, also when a client is trained but dies before it answers."""
    problem = marked_problem(Dies(2, tmp_path))
    objective, store = Objective(problem.build(0), problem.loss), MemoryStore()
    state = FEDGLOSS.init_server(objective.initial(), 7)
    dropped: dict[int, list[int]] = {}
    with RayTransport(FEDGLOSS, problem, objective, store, seed=0, workers=2, on_failure="drop") as transport:
        for round, cohort in enumerate([[2, 0, 1], [3, 2, 1], [2, 4, 0]]):
            if round == 1:
                (tmp_path / "life").touch()
            watch = Watch(transport)
            state = run_round(FEDGLOSS, state, cohort, watch)
            dropped[round] = list(watch.dropped)
    assert dropped == {0: [], 1: [2], 2: []}
    memories = [store.get(client) for client in range(7)]
    duals = torch.stack([memory["dual"].double() for memory in memories if memory is not None])
    mean = duals.sum(0) / 7
    assert float((state["dual"].double() - mean).norm()) < 1e-5 * float(mean.norm())


def test_stop_ends_the_run_at_the_first_death_and_redo_at_the_third(here: None, tmp_path: Path) -> None:
    for on_failure, lives in (("stop", 2), ("redo", 0)):
        for number in range(3):
            (tmp_path / str(number)).touch()
        problem = marked_problem(Dies(3, tmp_path))
        with (
            actors(problem=problem, workers=1, on_failure=on_failure) as (transport, objective, _),
            pytest.raises(WorkerLost, match="died at client 3, round 5"),
        ):
            list(transport(Broadcast({"params": objective.initial()}, 5), [3]))
        assert len(list(tmp_path.iterdir())) == lives


def test_a_node_killed_in_the_middle_of_a_round_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = start_cluster(1, 2)
    try:
        with connected(cluster):
            _kill_a_node_mid_round(cluster, caplog)
    finally:
        cluster.shutdown()


def _kill_a_node_mid_round(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    cohorts = [[0, 1, 2, 3, 4, 5], [6, 0, 5, 1, 4, 2], [3, 6, 2, 0]]
    expected, _ = serial(cohorts)
    slow = Slow(dict.fromkeys(range(7), 0.05))
    with (
        caplog.at_level(logging.WARNING, "fedgloss"),
        actors(problem=marked_problem(slow)) as (transport, objective, _),
    ):
        start = objective.initial()
        found = list(transport(Broadcast({"params": start}, 0), cohorts[0]))
        assert len(transport.processes) == 3
        (victim,) = list(cluster.worker_nodes)
        killer = threading.Timer(0.2, cluster.remove_node, (victim,), {"allow_graceful": False})
        killer.start()
        found += list(transport(Broadcast({"params": start}, 1), cohorts[1]))
        killer.join()
        assert any("died" in record.getMessage() for record in caplog.records)
        found += list(transport(Broadcast({"params": start}, 2), cohorts[2]))
        assert len(transport.processes) == 1  # the node that is left has room for one
        cluster.add_node(num_cpus=2)
        again = list(transport(Broadcast({"params": start}, 2), cohorts[2]))
        assert len(again) == 4
    assert all_equal(expected, found)


@pytest.mark.parametrize("on_failure", ["drop", "stop"])
def test_a_node_s_clients_are_left_out_or_end_the_run(on_failure: str) -> None:
    cohort = [0, 1, 2, 3, 4, 5]
    expected, _ = serial([cohort])
    cluster = start_cluster(1, 2)
    try:
        with (
            connected(cluster),
            actors(problem=marked_problem(Slow(dict.fromkeys(range(7), 0.05))), on_failure=on_failure) as opened,
        ):
            transport, objective, _ = opened
            while len(transport.processes) < 3:
                list(transport(Broadcast({"params": objective.initial()}, 0, "probe"), cohort))
            (victim,) = list(cluster.worker_nodes)
            killer = threading.Timer(0.2, cluster.remove_node, (victim,), {"allow_graceful": False})
            killer.start()
            answers = transport(Broadcast({"params": objective.initial()}, 0), cohort)
            if on_failure == "stop":
                with pytest.raises(WorkerLost, match=r"died at client \d, round 0"):
                    list(answers)
            else:
                found = dict(zip(cohort, answers, strict=True))
                dropped = [client for client, answer in found.items() if isinstance(answer, Dropped)]
                assert 1 <= len(dropped) < len(cohort)
                others = [client for client in cohort if client not in dropped]
                assert all_equal([expected[client] for client in others], [found[client] for client in others])
            killer.join()
    finally:
        cluster.shutdown()


class Patched:
    """Ray, but the answer to the first job is what Ray says when it fails so."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def get(self, reference: Any) -> Any:
        found = ray.get(reference)
        if isinstance(found, Packed) and self.error is not None:
            error, self.error = self.error, None
            raise error
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)


def test_an_actor_ended_for_want_of_memory_is_one_that_died(
    here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, _ = serial([[0, 1]])
    with caplog.at_level(logging.WARNING, "fedgloss"), actors(workers=1) as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 0)
        monkeypatch.setattr("fedgloss.transports.ray.ray", Patched(ray.exceptions.OutOfMemoryError("too much")))
        assert all_equal(expected, list(transport(broadcast, [0, 1])))
        assert "died at client 0, round 0, its node being out of memory" in caplog.text
        monkeypatch.setattr("fedgloss.transports.ray.ray", Patched(ray.exceptions.OutOfDiskError("no room")))
        with pytest.raises(WorkerLost, match=r"^actor 1 .* cannot work: "):  # what nothing is known about
            list(transport(broadcast, [2]))


# When clients fail


def test_what_clients_raise_is_raised_here(here: None) -> None:
    fault = Raises({2: "bug", 5: "input", 1: "odd"})
    with actors(problem=marked_problem(fault), workers=2) as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 4)
        with pytest.raises(ZeroDivisionError, match="a bug at 2") as bug:
            list(transport(broadcast, [0, 2, 5]))
        assert any("client 2, round 4" in note for note in bug.value.__notes__)
        assert "pool_toys.py" in str(bug.value.__cause__)  # the actor's own traceback
        with pytest.raises(InvalidInput, match="inputs: wrong at 5"):
            list(transport(broadcast, [5, 2, 0]))
        with pytest.raises(RuntimeError, match="Odd: stuck at 1"):
            list(transport(broadcast, [0, 1]))
        assert len(list(transport(broadcast, [0, 3]))) == 2


def test_a_file_that_another_node_does_not_have_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pictures.bin"
    file.touch()
    failed = Failed(InvalidInput(f"{file}: the store is gone; load the data set again"), "there")
    worker = _Worker(3, None, None, Hello(77, "10.0.0.9", {}), _Job("client 2, round 0", "train", ()))
    answer = _answer(worker, failed)
    assert isinstance(answer, InvalidInput)
    assert str(answer).startswith(f"{file}: is here, but 10.0.0.9 cannot read it")
    file.unlink()
    assert _answer(worker, failed) is failed.error  # gone here too


def test_divergence_is_that_of_one_process_and_code_of_the_script_travels(here: None) -> None:
    class Network(nn.Linear):  # known to this function alone
        def __init__(self) -> None:
            super().__init__(26, 3)

    problem = Problem(marked_federation(), Network, loss=nan_loss_for_class_two)
    found = []
    for options in ({}, {"transport": "ray", "workers": 2}):
        with pytest.raises(Diverged) as caught:
            train(FedAvg(LOCAL), problem, rounds=50, cohort=3, seed=3, **options)  # type: ignore[arg-type]
        error = caught.value
        found.append((str(error), error.round, error.client, error.tensor))
    assert found[0] == found[1]


def test_a_problem_that_cannot_travel_is_refused(here: None) -> None:
    lock = threading.Lock()
    problem = Problem(marked_federation(lambda client: lock.locked() and None), marked_problem().model)
    with pytest.raises(InvalidInput, match=r"^run.transport: the problem cannot be sent to Ray's actors"):
        train(FedAvg(LOCAL), problem, rounds=1, cohort=2, transport="ray")


# The commands


DIGITS = ["digits", "--method", "fedgloss", "--set", "model.name=mlp", "--set", "data.clients=6",
          "--set", "training.cohort=3", "--set", "training.eval_every=1", "--set", "run.checkpoint_seconds=0",
          "--quiet"]  # fmt: skip


def fedgloss(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedgloss", *map(str, arguments)]


def check(*arguments: str | Path) -> str:
    ended = subprocess.run(fedgloss(*arguments), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_run_killed_on_the_cluster_goes_on_with_other_sizes(cluster: Any, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    rounds = ["--rounds", "20"]
    check("run", *DIGITS, *rounds, "--workers", "1", "--out", whole)
    there = ["--transport", "ray", "--address", cluster.address]
    process = subprocess.Popen(fedgloss("run", *DIGITS, *rounds, *there, "--workers", "2", "--out", run))
    deadline = time.monotonic() + 120
    lines = run / "rounds.jsonl"
    while not (lines.exists() and lines.read_bytes().count(b"\n") >= 4) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert 4 <= lines.read_bytes().count(b"\n") < 40
    check("resume", run, *there, "--workers", "1", "--quiet")
    assert lines.read_bytes() == (whole / "rounds.jsonl").read_bytes()
    ends = [folder / "checkpoints" / "00000020.safetensors" for folder in (whole, run)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_compare_and_sweep_run_on_a_cluster(
    cluster: Any, here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*DIGITS[:1], *DIGITS[3:-1], "--rounds", "2", "--json"]
    there = ["--transport", "ray", "--address", cluster.address, "--set", "run.workers=1"]
    found = json.loads(check("compare", *settings, *there, "--methods", "fedgloss", "--out", tmp_path / "compare"))
    alone = fedgloss_here(capsys, "run", *settings, "--method", "fedgloss", "-w", "1", "--out", tmp_path / "alone")
    assert found["methods"]["fedgloss"][0]["reported"] == json.loads(alone.out)["reported"]
    swept = fedgloss_here(
        capsys, "sweep", *settings, *there, "--grid", "local.lr=0.1,0.05", "--trials", "1", "--out", tmp_path / "s"
    )
    (trial,) = json.loads(swept.out)["trials"]
    assert trial["value"] > 0
