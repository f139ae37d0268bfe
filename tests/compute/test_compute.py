"""The machine: its cores, its memory, torch's settings, and training on a device that cannot be asked anything."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool_toys import DropoutNetwork, marked_federation
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgloss import InvalidInput, LocalTraining, Problem, compute
from fedgloss.algorithm import run_round
from fedgloss.algorithms import METHODS, FedAvg, TailAverage, Wima, build, tail_mean
from fedgloss.analysis import (
    MeanLoss,
    average_sharpness,
    interpolation,
    repeated_ascent,
    surface,
    worst_case_sharpness,
)
from fedgloss.compute import (
    TorchSettings,
    available_cores,
    check_device,
    compute_threads,
    devices,
    freed_memory_kept,
)
from fedgloss.data import ArraySamples, Federation, Identity, Partition, Subset, Transform, sent, store
from fedgloss.data.store import MappedArray, StoredSamples
from fedgloss.data.transforms import LandmarksTransform, PictureTransform
from fedgloss.messages import Broadcast, ServerState, Update
from fedgloss.tasks import Batch, ClientObjective, Objective
from fedgloss.transports import on_device, usable_workers
from fedgloss.vectors import Vector

LINUX = sys.platform == "linux"
CPU = torch.device("cpu")


def test_cores_respect_affinity() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    assert usable_workers("auto") == available_cores()
    assert usable_workers("auto", "cuda") == 1
    assert usable_workers(3, "cuda") == 3
    if LINUX:
        one = sorted(os.sched_getaffinity(0))[0]
        code = f"import os; os.sched_setaffinity(0, {{{one}}}); from fedgloss.compute import available_cores as a; "
        found = subprocess.run([sys.executable, "-c", code + "print(a())"], capture_output=True, text=True)
        assert found.stdout.strip() == "1", found.stderr


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, float("inf")),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/pod/box\n", {"cpu.max": "800000 100000", "pod/cpu.max": "300000 100000"}, 3.0),
        ("0::/not/here\n", {"cpu.max": "100000 100000"}, 1.0),
        (
            "1:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "400000", "cpu/job/cpu.cfs_period_us": "100000"},
            4.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ("1:memory:/\n", {"cpu.max": "100000 100000"}, float("inf")),
        ("0::/\n", {"cpu.max": "nonsense"}, float("inf")),
        ("", {}, float("inf")),
    ],
)
def test_the_quota_of_a_container_counts(
    tmp_path: Path, membership: str, files: dict[str, str], cores: float
) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "self").write_text(membership)
    assert compute._cpu_quota(tmp_path / "cgroup", tmp_path / "self") == cores


def test_devices_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices() == ["cpu", "cuda", "cuda:0", "cuda:1", "mps"]
    for name in devices():
        check_device(name)
    with pytest.raises(InvalidInput, match=r"run\.device: there is no 'cuda:2'; this machine has cpu, cuda,"):
        check_device("cuda:2")


def test_threads_are_as_before_after_the_block() -> None:
    before = torch.get_num_threads()
    with compute_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not LINUX or not hasattr(os, "confstr"), reason="glibc's memory")
def test_freed_memory_is_kept_and_given_back() -> None:
    if "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        pytest.skip("another C library")
    size, steps = 40_000_000, 10  # more than glibc itself would ever keep

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps):
            torch.ones(size // 4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    pages = size // resource.getpagesize()
    usual = faults()
    assert usual > 0.9 * steps * pages / 512  # huge pages would still fault once each
    with freed_memory_kept():
        faults()
        assert faults() < 0.1 * usual
        held = resident()
    assert resident() < held - 0.9 * size


def test_settings_travel() -> None:
    mine = TorchSettings.current()
    assert mine.threads == torch.get_num_threads()
    other = TorchSettings(mine.threads + 1, torch.float64, "high", True, True)
    try:
        other.apply()
        assert TorchSettings.current() == other
    finally:
        mine.apply()
    assert TorchSettings.current() == mine


class _Unasked(ClientObjective):
    """A client on the meta device, which has no numbers: whoever asks for one in a step fails."""

    def mean_loss(self) -> float:  # asked once, after the last step
        return 0.0


class _NoWaiting(TorchDispatchMode):
    """Refuses copies from the CPU to the meta device that would wait until a real one has done all before."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.is_meta and not args[0].is_meta:
            assert (kwargs or {}).get("non_blocking")
        return found


@pytest.mark.parametrize("transform", [PictureTransform((0.5,), (0.5,)), LandmarksTransform(8, (0.5,), (0.5,))])
@pytest.mark.parametrize("kept", ["on the device", "elsewhere"])
def test_no_batch_of_pictures_waits_for_the_device(transform: Transform, kept: str) -> None:
    device = torch.device("meta")
    samples = ArraySamples(torch.zeros(10, 16, 16, 1, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64))
    there = samples.to(device) if kept == "on the device" else samples
    transform.test(samples.inputs.to(device))  # its constants go there once
    transform.train(samples.inputs.to(device), np.random.default_rng(0))
    objective = Objective(nn.Linear(1, 1), nn.functional.cross_entropy, "meta")
    task = ClientObjective(objective, there, transform, client=0, seed=0, round=0, purpose="train")
    with _NoWaiting():
        assert all(batch.inputs.is_meta and batch.targets.is_meta for batch in task.batches(5, 1))


def test_only_mps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **options: asked.update({device.type: options}))
    for kind in ("cuda", "mps"):
        sent(torch.zeros(1), torch.device(kind))
    assert asked == {"cuda": {"non_blocking": True}, "mps": {"non_blocking": False}}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_step_of_any_method_waits_for_the_device(name: str) -> None:
    options = {"swa": {"start": 1, "cycle": 2}, "wima": {"window": 2}}.get(name, {})
    algorithm = build(
        name, LocalTraining(lr=0.1, batch_size=4, momentum=0.5, weight_decay=0.1, clip=1.0), **options
    )
    federation = replace(marked_federation(), transform=Identity()).to(torch.device("meta"))
    if METHODS[name].centralised:
        federation = federation.union()
    problem = Problem(federation, DropoutNetwork, device="meta")
    objective = Objective(problem.build(0), problem.loss, problem.device)
    state = algorithm.init_server(objective.initial(), federation.population)
    broadcast: Broadcast = next(algorithm.server_round(state))
    samples = Subset(federation.train, federation.partition[0])
    task = _Unasked(objective, samples, federation.transform, client=0, seed=0, round=0, purpose="train")
    with _NoWaiting():
        update, memory = algorithm.client_update(broadcast, algorithm.init_client(broadcast["params"]), task)
    assert {v.device.type for v in (*update.vectors.values(), *memory.vectors.values())} == {"meta"}


class _Device(TorchDispatchMode):
    """The meta device as one without float64, from which zeros come back to the CPU."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and kwargs.get("device") == CPU:
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=CPU)
        found = func(*args, **kwargs)
        for tensor in tree_leaves(found):
            assert not (isinstance(tensor, torch.Tensor) and tensor.is_meta and tensor.dtype == torch.float64), func
        return found


def _still(broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update]:
    for _ in cohort:
        yield Update({"delta": torch.zeros_like(broadcast["params"])}, size=1)


def test_sums_over_rounds_need_no_float64_on_the_device_and_are_resumed_there() -> None:
    algorithm = TailAverage(Wima(FedAvg(), window=2), first=1)
    with _Device():
        state = algorithm.init_server(torch.zeros(3, device="meta"), population=4)
        for _ in range(4):
            state = run_round(algorithm, state, [0, 1], _still)
            places = {name: vector.device.type for name, vector in state.vectors.items()}
            assert (places.pop("window_sum"), places.pop("tail_sum", "cpu")) == ("cpu", "cpu")
            assert set(places.values()) == {"meta"}
            saved = on_device(state, CPU)
            assert {vector.device for vector in saved.vectors.values()} == {CPU}
            state = on_device(saved, torch.device("meta"))
            assert {name: v.device.type for name, v in state.vectors.items() if name in places} == places
        assert tail_mean(state, first=1) is not None


def test_a_model_in_float64_is_moved_whole() -> None:
    double = ServerState({"params": torch.zeros(2).double(), "tail_sum": torch.zeros(2).double()}, 1, 1)
    assert all(vector.is_meta for vector in on_device(double, torch.device("meta")).vectors.values())


def test_flatness_needs_no_float64_on_the_device() -> None:
    """Neither does any figure change for weights that lie on a device."""
    inputs = torch.randn(8, 3)
    loss = MeanLoss(nn.Linear(3, 2), nn.functional.cross_entropy, (inputs, torch.arange(8) % 2))
    measures: list[Callable[[Vector], Any]] = [
        lambda params: surface(loss, params, grid=2).grids,
        lambda params: interpolation(loss, params, params, points=2).curves,
        lambda params: worst_case_sharpness(loss, params, rho=0.1, steps=2),
        lambda params: average_sharpness(loss, params, sigma=0.1),
        lambda params: repeated_ascent(loss, params, rho=0.1)[-1].tolist(),
    ]
    zero = torch.zeros(loss.layout.size)
    with _Device():
        for measure in measures:
            assert measure(zero.to("meta")) == measure(zero)


def test_data_in_arrays_is_moved_to_the_device_once() -> None:
    federation = marked_federation().to(torch.device("meta"))
    assert isinstance(federation.train, ArraySamples)
    assert federation.train.inputs.is_meta
    assert federation.train.fetch(np.array([0, 1]))[0].is_meta
    assert federation.test is not None
    assert federation.test.targets.is_meta
    here = marked_federation()
    assert here.to(torch.device("cpu")) is here


def test_stored_pictures_are_moved_where_they_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2, 1)
    (tmp_path / "pictures.bin").write_bytes(pixels.tobytes())
    pictures = MappedArray(tmp_path / "pictures.bin", "uint8", pixels.shape)
    stored = StoredSamples(pictures, np.array([4, 1]), np.array([7, 8]))
    here = stored.to(CPU)
    assert isinstance(here, ArraySamples)
    assert [x.tolist() for x in here.fetch(np.array([0, 1]))] == [pixels[[4, 1]].tolist(), [7, 8]]
    federation = Federation(stored, Partition.of([[0], [1]]))
    assert federation.to(torch.device("meta")).train.targets.is_meta
    monkeypatch.setattr(store, "FEW", 23)
    assert federation.to(torch.device("meta")).train is stored


def test_a_gradient_is_a_new_vector_equal_to_plain_autograd() -> None:
    module = DropoutNetwork().eval()
    objective = Objective(module, nn.functional.cross_entropy)
    params: Vector = objective.initial()
    federation = marked_federation()
    inputs, targets = federation.train.fetch(np.arange(8))
    batch = Batch(inputs, targets, seed=5)
    loss, gradient = objective.gradient(params, batch)
    again = objective.gradient(params, batch)[1]
    assert gradient.equal(again)
    assert gradient.data_ptr() != again.data_ptr()
    torch.manual_seed(5)
    module.train()
    plain = nn.functional.cross_entropy(module(inputs), targets)
    parts = torch.autograd.grad(plain, list(module.parameters()))
    named = dict(zip([e.name for e in objective.layout.entries], parts, strict=True))
    assert loss.equal(plain.detach())
    assert gradient.equal(objective.layout.pack(named))


def test_modes_follow_what_is_asked() -> None:
    objective = Objective(DropoutNetwork(), nn.functional.cross_entropy)
    params, inputs = objective.initial(), torch.randn(4, 26)
    batch = Batch(inputs, torch.zeros(4, dtype=torch.int64), seed=1)
    first = objective.outputs(params, inputs)
    dropped = objective.gradient(params, batch)[1]
    assert objective.outputs(params, inputs).equal(first)  # no dropout in evaluation
    assert objective.gradient(params, batch)[1].equal(dropped)
    assert not objective.gradient(params, Batch(inputs, batch.targets, seed=2))[1].equal(dropped)
