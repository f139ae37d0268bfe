"""Two workers at one client: the bits of one, whoever helps, and whatever becomes of the helper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helping_toys import CLIENTS, LAST, diary_problem, steps_of
from torch import Tensor, nn

from fedgloss import FedGloSS, LocalTraining, Sam
from fedgloss.messages import Broadcast, Update
from fedgloss.tasks import Batch, ClientObjective, NoHelper, Objective, client_tasks
from fedgloss.transports import MemoryStore, PoolTransport, SerialTransport
from fedgloss.transports.schedule import shared_out

METHOD = FedGloSS(0.05, 5.0, LocalTraining(lr=0.1, batch_size=64, epochs=3, momentum=0.5), Sam(0.05))
COHORT = range(CLIENTS)


def updates(folder: Path, workers: int) -> list[Update]:
    folder.mkdir(exist_ok=True)
    problem = diary_problem(folder)
    objective, store = Objective(problem.build(0), problem.loss), MemoryStore()
    broadcast = Broadcast({"params": objective.initial()}, 0)
    if workers == 1:
        here = SerialTransport(METHOD, client_tasks(objective, problem.federation, 0), store)
        return list(here(broadcast, COHORT))
    with PoolTransport(METHOD, problem, objective, store, seed=0, workers=workers) as pool:
        return list(pool(broadcast, COHORT))


def same(one: list[Update], other: list[Update]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a["delta"].equal(b["delta"]) and dict(a.scalars) == dict(b.scalars) for a, b in pairs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Update]:
    folder = tmp_path_factory.mktemp("alone")
    found = updates(folder, workers=1)
    assert [set(sizes) for sizes in steps_of(folder).values()] == [{32, 6}]  # 64 in halves; 6 stay whole
    return found


@pytest.mark.parametrize("workers", [2, 3])
def test_two_workers_share_the_last_client_and_the_bits_are_those_of_one(
    workers: int, tmp_path: Path, alone: list[Update]
) -> None:
    assert same(alone, updates(tmp_path, workers))
    helped = list(steps_of(tmp_path).values())
    assert len(helped) == 2
    assert set(helped[1]) == {32}


@pytest.mark.parametrize("fate", ["killed", "out of memory"])
def test_a_helper_that_is_lost_is_done_without(fate: str, tmp_path: Path, alone: list[Update]) -> None:
    (tmp_path / "fate").write_text(fate)
    assert same(alone, updates(tmp_path, workers=2))
    assert not (tmp_path / "fate").exists()


def test_the_last_client_of_an_odd_cohort_is_shared_out() -> None:
    assert [client for client in (4, 7, 2) if shared_out(client, [4, 7, 2])] == [2]
    assert not any(shared_out(client, [4, 7]) for client in (4, 7))
    assert not shared_out(4, [4])


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divided by the sum of the weights: not the mean of its halves."""
    return F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 5.0, 20.0]))


@pytest.mark.parametrize("loss", [F.cross_entropy, weighted])
def test_a_shared_gradient_is_that_of_the_whole_batch(loss: object, tmp_path: Path) -> None:
    problem = diary_problem(tmp_path)
    objective = Objective(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3)), loss)  # type: ignore[arg-type]
    whole, shared = (client_tasks(objective, problem.federation, 0)(LAST, 0, "train") for _ in range(2))
    shared.share(NoHelper())
    params = objective.initial()
    for ours, other in zip(whole.batches(63, 1), shared.batches(63, 1), strict=True):
        assert torch.allclose(whole.gradient(params, ours), shared.gradient(params, other), rtol=1e-5, atol=1e-7)
    assert whole.mean_loss() == pytest.approx(shared.mean_loss(), rel=1e-6)


def test_halves_draw_their_own_dropout() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(4, 3))
    objective = Objective(network, F.cross_entropy)
    twice = Batch(torch.ones(2, 4).repeat(32, 1), torch.zeros(64, dtype=torch.long), seed=1)
    first, second = twice.halves()
    assert first.inputs.equal(second.inputs)
    one, other = (objective.gradient(objective.initial(), half)[1] for half in (first, second))
    assert not one.equal(other)


def test_a_helper_is_not_asked_on_other_devices(tmp_path: Path) -> None:
    class Asked:
        def start(self, params: Tensor, half: Batch) -> bool:
            raise AssertionError

        def finish(self) -> None:
            raise AssertionError

    problem = diary_problem(tmp_path)
    objective = Objective(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 3)), F.cross_entropy, "meta")
    task: ClientObjective = client_tasks(objective, problem.federation, 0)(LAST, 0, "train")
    task.share(Asked())
    batch = Batch(torch.empty(64, 3, 8, 8, device="meta"), torch.empty(64, dtype=torch.long, device="meta"), 0)
    assert task.gradient(objective.initial(), batch).device.type == "meta"
