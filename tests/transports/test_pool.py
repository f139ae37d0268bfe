"""Clients in worker processes: the bits of one process, whatever happens to the workers."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pool_toys import Dies, Raises, Slow, marked_federation, marked_problem, nan_loss_for_class_two
from torch import nn

from fedgloss import Diverged, FedAvg, FedGloSS, FedSMOO, InvalidInput, LocalTraining, Problem, Sam, train
from fedgloss.algorithm import Algorithm
from fedgloss.algorithms import METHODS, build
from fedgloss.errors import WorkerLost
from fedgloss.messages import Broadcast, ClientState, ServerState, Update
from fedgloss.tasks import Objective, client_tasks, evaluate, samples_of
from fedgloss.training import History
from fedgloss.transports import MemoryStore, PoolTransport, SerialTransport

LOCAL = LocalTraining(lr=0.1, batch_size=4, epochs=2, weight_decay=1e-3, momentum=0.5)
FEDGLOSS = FedGloSS(0.05, 5.0, LOCAL, Sam(0.05))
REQUIRED = {"swa": {"start": 1, "cycle": 2}, "wima": {"window": 2}}


def equal(one: ServerState | ClientState | Update, other: ServerState | ClientState | Update) -> bool:
    names = one.vectors.keys() == other.vectors.keys()
    return names and all(one[n].equal(other[n]) for n in one.vectors) and dict(one.scalars) == dict(other.scalars)


def same_history(one: History, other: History) -> bool:
    return equal(one.state, other.state) and one.rounds == other.rounds and one.evaluations == other.evaluations


@contextmanager
def pool(
    algorithm: Algorithm = FEDGLOSS, problem: Problem | None = None, workers: int = 2, **options: object
) -> Iterator[tuple[PoolTransport, Objective, MemoryStore]]:
    problem = problem or marked_problem()
    objective, store = Objective(problem.build(0), problem.loss), MemoryStore()
    with PoolTransport(algorithm, problem, objective, store, seed=0, workers=workers, **options) as opened:  # type: ignore[arg-type]
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


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_gives_the_bits_of_one_process(name: str) -> None:
    problem, cohort = marked_problem(), 5
    if METHODS[name].centralised:
        problem, cohort = Problem(problem.federation.union(), problem.model), 1
    algorithm = build(name, LOCAL, **REQUIRED.get(name, {}))
    here, there = (train(algorithm, problem, rounds=3, cohort=cohort, workers=w) for w in (1, 2))
    assert same_history(here, there)


@pytest.mark.parametrize("workers", [2, 3, 7, 9])
def test_the_number_of_workers_cannot_be_seen(workers: int) -> None:
    for algorithm in (FEDGLOSS, FedSMOO(0.1, 10.0, LOCAL)):
        here = train(algorithm, marked_problem(), rounds=4, cohort=7)
        there = train(algorithm, marked_problem(), rounds=4, cohort=7, workers=workers)
        assert same_history(here, there)


def test_other_ways_to_start_processes_give_the_same_bits() -> None:
    expected, _ = serial([[3, 0, 6]])
    with pool(start_method="spawn") as (transport, objective, _):
        found = list(transport(Broadcast({"params": objective.initial()}, 0), [3, 0, 6]))
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))


def test_updates_come_in_cohort_order_however_long_each_takes() -> None:
    expected, store = serial([[4, 1, 2, 0, 3]])
    with pool(problem=marked_problem(Slow({4: 0.1, 2: 0.05})), workers=3) as (transport, objective, found_store):
        found = list(transport(Broadcast({"params": objective.initial()}, 0), [4, 1, 2, 0, 3]))
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))
    assert memories_equal(store, found_store, range(5))


def test_a_client_drawn_twice_remembers_its_first_turn() -> None:
    cohort = [1, 2, 1, 1, 0]
    expected, store = serial([cohort])
    with pool(workers=3) as (transport, objective, found_store):
        found = list(transport(Broadcast({"params": objective.initial()}, 0), cohort))
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))
    assert memories_equal(store, found_store, [0, 1, 2])


def test_a_probe_leaves_no_memory() -> None:
    with pool() as (transport, objective, store):
        list(transport(Broadcast({"params": objective.initial()}, 0, "probe"), [0, 1, 2]))
        assert all(store.get(client) is None for client in range(3))


def test_an_exchange_that_is_broken_off_does_not_disturb_the_next() -> None:
    expected, _ = serial([[5, 4]])
    with pool(problem=marked_problem(Slow({1: 0.05, 2: 0.05}))) as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 0)
        other = Broadcast({"params": objective.initial() + 1}, 0)
        exchange = transport(other, [0, 1, 2, 3])
        next(exchange)
        exchange.close()
        found = list(transport(broadcast, [5, 4]))
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))


def test_updates_are_the_receivers_own() -> None:
    with pool() as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 0)
        first = list(transport(broadcast, [0, 1, 2, 3]))
        kept = [update["delta"].clone() for update in first]
        list(transport(Broadcast({"params": objective.initial() + 1}, 1), [3, 2, 1, 0]))
        assert all(update["delta"].equal(copy) for update, copy in zip(first, kept, strict=True))


def test_evaluation_is_shared_out_with_the_same_bits() -> None:
    problem = marked_problem()
    federation = problem.federation
    with pool(problem=problem, workers=3) as (transport, objective, _):
        params = objective.initial()
        sets = ["test", *range(federation.population)]
        found = transport.evaluate(params, sets)
        with pytest.raises(InvalidInput, match="validation: the federation 'arrays' has no validation set"):
            transport.evaluate(params, ["validation"])
    expected = [
        evaluate(objective, params, samples_of(federation, which), federation, problem.metrics) for which in sets
    ]
    assert found == expected
    assert len({means["loss"] for means in found}) == len(sets)


# When workers die


def test_a_worker_killed_in_the_middle_of_a_round_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cohorts = [[0, 1, 2, 3, 4], [5, 2, 6, 1, 0]]
    expected, store = serial(cohorts)
    (tmp_path / "first").touch()
    (tmp_path / "second").touch()
    with (
        caplog.at_level(logging.WARNING, "fedgloss"),
        pool(problem=marked_problem(Dies(2, tmp_path))) as (transport, objective, found_store),
    ):
        start = objective.initial()
        found = [u for t, c in enumerate(cohorts) for u in transport(Broadcast({"params": start}, t), c)]
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))
    assert memories_equal(store, found_store, range(7))
    deaths = [r.getMessage() for r in caplog.records]
    assert len(deaths) == 2
    assert "was killed by SIGKILL at client 2, round 0; another takes its place" in deaths[0]


def test_a_worker_killed_from_outside_changes_nothing() -> None:
    expected, _ = serial([[0, 1, 2, 3]])
    slow = Slow(dict.fromkeys(range(7), 0.03))
    with pool(problem=marked_problem(slow), workers=2) as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 0)
        list(transport(broadcast, [6]))  # they run now
        before = transport.processes
        killer = threading.Timer(0.1, os.kill, (before[0], signal.SIGKILL))
        killer.start()
        found = list(transport(broadcast, [0, 1, 2, 3]))
        assert transport.processes[0] != before[0]
        assert transport.processes[1] == before[1]
        os.kill(transport.processes[1], signal.SIGKILL)  # and once more while it has nothing to do
        again = list(transport(broadcast, [0, 1, 2, 3]))
    assert len(again) == 4
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_client_that_kills_every_worker_stops_the_round_and_is_named() -> None:
    with pool(problem=marked_problem(Dies(3))) as (transport, objective, _):
        with pytest.raises(WorkerLost, match="was killed by SIGKILL at client 3, round 5"):
            list(transport(Broadcast({"params": objective.initial()}, 5), [0, 3, 1]))
        assert len(list(transport(Broadcast({"params": objective.initial()}, 6), [0, 1, 2]))) == 3


# When clients fail


def test_the_first_client_of_the_cohort_to_fail_is_the_one_reported() -> None:
    fault = Raises({2: "bug", 5: "input"})
    with pool(problem=marked_problem(fault), workers=3) as (transport, objective, _):
        broadcast = Broadcast({"params": objective.initial()}, 4)
        with pytest.raises(ZeroDivisionError, match="a bug at 2") as bug:
            list(transport(broadcast, [0, 2, 5, 1]))
        assert any("client 2, round 4" in note for note in bug.value.__notes__)
        assert "pool_toys.py" in str(bug.value.__cause__)  # the worker's own traceback
        with pytest.raises(InvalidInput, match="inputs: wrong at 5"):
            list(transport(broadcast, [5, 2, 1, 0]))


def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    fault = Raises({1: "odd"})
    with (
        pool(problem=marked_problem(fault)) as (transport, objective, _),
        pytest.raises(RuntimeError, match="Odd: stuck at 1"),
    ):
        list(transport(Broadcast({"params": objective.initial()}, 0), [0, 1]))


def test_divergence_is_that_of_one_process() -> None:
    problem = Problem(marked_federation(), marked_problem().model, loss=nan_loss_for_class_two)
    found = []
    for workers in (1, 2):
        with pytest.raises(Diverged) as caught:
            train(FedAvg(LOCAL), problem, rounds=50, cohort=3, seed=3, workers=workers)
        error = caught.value
        found.append((str(error), error.round, error.client, error.tensor))
    assert found[0] == found[1]
    assert found[0][2] in (2, 5)


# What cannot be sent


def test_what_cannot_be_sent_to_workers_is_named() -> None:
    federation, model = marked_federation(), marked_problem().model

    class Local(nn.Linear):
        pass

    bad = {
        "loss": Problem(federation, model, loss=lambda outputs, targets: outputs.sum()),
        "metrics": Problem(federation, model, metrics={"zero": lambda o, t: t * 0}),
        "model": Problem(federation, Local(26, 3)),
    }
    for name, problem in bad.items():
        with pytest.raises(InvalidInput, match=rf"^{name}: cannot be sent to worker processes .*or use 1 worker$"):
            train(FedAvg(LOCAL), problem, rounds=1, cohort=2, workers=2)


def test_a_function_that_builds_the_network_need_not_travel() -> None:
    problem = Problem(marked_federation(), lambda: marked_problem().model())  # type: ignore[operator]
    ends = [train(FedAvg(LOCAL), problem, rounds=2, cohort=3, workers=w).state for w in (1, 2)]
    assert equal(*ends)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "all"])
def test_nonsense_numbers_of_workers_are_refused(workers: object) -> None:
    with pytest.raises(InvalidInput, match="workers: must be 'auto' or a whole number of at least 1"):
        train(FedAvg(LOCAL), marked_problem(), rounds=1, cohort=2, workers=workers)  # type: ignore[arg-type]


# What is left behind


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_nothing_is_left_behind() -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with pool() as (transport, objective, _):  # starts what is kept on purpose, the server of forks
        list(transport(Broadcast({"params": objective.initial()}, 0), [0, 1]))
    before, shared = descriptors(), sorted(os.listdir("/dev/shm"))
    for _ in range(2):
        with pool() as (transport, objective, _):
            list(transport(Broadcast({"params": objective.initial()}, 0), [0, 1, 2]))
            processes = transport.processes
            assert len(processes) == 2
        del transport
        assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert descriptors() <= before
    assert sorted(os.listdir("/dev/shm")) == shared
    assert "memfd:fedgloss" not in Path("/proc/self/maps").read_text()


def test_an_interruption_ends_busy_workers_at_once() -> None:
    began = time.monotonic()
    slow = Slow(dict.fromkeys(range(7), 10.0))
    main = threading.main_thread().ident
    assert main is not None
    with pool(problem=marked_problem(slow)) as (transport, objective, _):
        exchange = transport(Broadcast({"params": objective.initial()}, 0), [0, 1, 2])
        threading.Timer(2.0, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(exchange)
    assert time.monotonic() - began < 15
