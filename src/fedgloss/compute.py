"""The machine under the training: its cores, its memory, and the settings of torch that the bits depend on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from .errors import require

Precision: TypeAlias = Literal["float32", "bfloat16"]
"""What a network computes in while it trains; weights, gradients and evaluations are float32 in any case."""


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Layers inside the block compute in this precision where that is safe (losses and norms stay exact)."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Torch computes with ``count`` threads inside the block, and with as many as before after it.

    Sums are split over threads, so their number changes the last bits: a client always trains with the same.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TorchSettings:
    """The global settings of torch that decide bits: a worker process takes over those of its parent."""

    threads: int
    default_dtype: torch.dtype
    matmul_precision: str
    deterministic: bool
    flush_denormal: bool

    @classmethod
    def current(cls) -> TorchSettings:
        tiny = torch.tensor([1e-310], dtype=torch.float64)
        return cls(
            threads=torch.get_num_threads(),
            default_dtype=torch.get_default_dtype(),
            matmul_precision=torch.get_float32_matmul_precision(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            flush_denormal=not bool(tiny.mul(1.0)[0]),  # torch can set it but not say it
        )

    def apply(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.default_dtype)
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.set_flush_denormal(self.flush_denormal)
        if self.deterministic != torch.are_deterministic_algorithms_enabled():  # setting it imports a compiler
            torch.use_deterministic_algorithms(self.deterministic)


USUALLY_KEPT = 32 << 20
"""Where glibc itself ends up with large tensors."""


@contextmanager
def freed_memory_kept(up_to: int = 1 << 30) -> Iterator[None]:
    """Inside the block what is freed stays with this process for its next allocation, tensors of ``up_to`` bytes.

    glibc takes a large tensor's memory from the system and gives it back at every step again; the page faults
    cost up to a fifth of a training step. Where the same sizes come again and again, as in training, the peak stays
    what it is; elsewhere gaps between large tensors add up. Other C libraries are left as they are.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        yield
        return
    _set_thresholds(library, mmap=up_to, trim=2**31 - 1)
    try:
        yield
    finally:
        _set_thresholds(library, mmap=USUALLY_KEPT, trim=2 * USUALLY_KEPT)
        library.malloc_trim(0)


def _set_thresholds(library: ctypes.CDLL, *, mmap: int, trim: int) -> None:
    library.mallopt(-3, mmap)  # M_MMAP_THRESHOLD of malloc.h
    library.mallopt(-1, trim)  # M_TRIM_THRESHOLD


def devices() -> list[str]:
    """What can be trained on here; ``cuda`` alone is the first of its kind."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *(["cuda", *cuda] if cuda else []), *(["mps"] if torch.backends.mps.is_available() else [])]


def check_device(name: str) -> None:
    """Refuse a device that is not there, naming those that are."""
    here = devices()
    require(name in here, "run.device", f"there is no {name!r}; this machine has {', '.join(here)}")


def available_cores() -> int:
    """The physical cores this process may use: as its affinity and its control group (container) allow.

    Two hyper-threads of a core share one set of arithmetic units, so they count once.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min(len(siblings), _cpu_quota())))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cpu_quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' worth of time the control group grants; infinity where nothing limits it."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return float("inf")
    least = float("inf")
    for _, controllers, path in lines:
        unified = controllers == ""
        if not unified and "cpu" not in controllers.split(","):
            continue
        top = root if unified else root / "cpu"
        folder = top / path.lstrip("/")
        for place in (folder, *folder.parents):
            least = min(least, _quota_of(place, unified))
            if place == top:
                break
    return least


def _quota_of(folder: Path, unified: bool) -> float:
    try:
        if unified:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return float("inf") if quota in ("max", "-1") or int(quota) < 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return float("inf")
