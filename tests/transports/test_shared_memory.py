"""What crosses between processes: exact, in the same memory order, and large arrays once for all."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedgloss.errors import InvalidInput
from fedgloss.messages import Broadcast, ClientState, Update
from fedgloss.transports.shared_memory import ALIGNMENT, Box, Channel, share


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    one, other = multiprocessing.Pipe()
    return Channel(one), Channel(other)


def test_messages_arrive_as_they_were(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    box = Box("results")
    update = Update({"delta": torch.randn(1001), "control": torch.randn(1001).double()}, 7, {"loss": 0.1})
    memory = ClientState({"dual": torch.randn(3), "none": torch.empty(0)}, {"steps": 3.0})
    here.send(box.post(update, memory), box)
    found = [there.read(letter) for letter in there.receive()]
    for sent, got in zip((update, memory), found, strict=True):
        assert type(sent) is type(got)
        assert sent.scalars == got.scalars
        assert all(sent[n].equal(got[n]) and sent[n].dtype == got[n].dtype for n in sent.vectors)
        assert all(got[n].data_ptr() % ALIGNMENT == 0 for n in got.vectors if got[n].numel())
    assert found[0].size == 7


def test_a_box_is_used_again_and_grows_when_it_must(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    box = Box("outgoing")
    regions = []
    for round, size in enumerate((10, 5000, 100, 5000, 20_000)):
        vector = torch.randn(size)
        (letter,) = box.post(Broadcast({"params": vector}, round, "probe"))
        here.send(letter, box)
        got = there.read(there.receive())
        assert got["params"].equal(vector)
        assert (got.round, got.purpose) == (round, "probe")
        regions.append(box.region)
    assert regions[1] is regions[2] is regions[3]
    assert len(set(map(id, regions))) == 3


@dataclass(frozen=True)
class Data:
    array: np.ndarray
    tensor: torch.Tensor
    part: torch.Tensor
    small: torch.Tensor


def test_large_arrays_are_shared_and_not_pickled(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    tensor = torch.randn(8, 64, 64, 16).permute(0, 3, 1, 2)  # channels-last in memory
    data = Data(np.arange(1_000_000), tensor, tensor[3:5], torch.arange(5))
    box = Box("kit", copy_on_write=True)
    shared = share(box, {"data": data, "again": torch.zeros(100_000, dtype=torch.bfloat16)})
    assert box.region is not None
    assert box.region.size < 8_000_000 + tensor.nbytes + 200_000 + 10_000  # the part lies in the whole
    assert len(pickle.dumps(shared)) < 10_000
    here.send(shared, box)
    received = there.receive()
    got: Data = there.load(received["data"])
    assert np.array_equal(got.array, data.array)
    assert got.tensor.equal(data.tensor)
    assert got.tensor.stride() == data.tensor.stride()
    assert got.part.equal(data.part)
    assert got.small.equal(data.small)
    assert got.part.untyped_storage().data_ptr() == got.tensor.untyped_storage().data_ptr()
    assert there.load(received["again"]).equal(torch.zeros(100_000, dtype=torch.bfloat16))


def test_what_a_worker_writes_into_shared_data_stays_its_own(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    box = Box("kit", copy_on_write=True)
    shared = share(box, {"data": torch.zeros(100_000)})
    here.send(shared, box)
    received = there.receive()
    first = there.load(received["data"])
    first.fill_(5)
    assert box.region is not None
    assert not np.frombuffer(box.region.bytes, np.float32).any()


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"^loss: cannot be sent to worker processes"):
        share(Box("kit"), {"data": torch.zeros(3), "loss": lambda outputs, targets: outputs})
