"""bfloat16, for whoever asks for it: tried out in a process that may die of it, and taken only where it pays.

Some processors advertise instructions that they then refuse, and a process that meets one is gone. So whether
bfloat16 runs, under which instruction set, and whether it is faster, is found out in a child process; where it is
not, one line says so and training stays in float32.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F

from .compute import Precision
from .errors import require
from .vectors import Vector

ISA = "ONEDNN_MAX_CPU_ISA"
LIMITS: Sequence[str | None] = (None, "AVX512_CORE_BF16")
"""What oneDNN may use, in the order tried: all it finds, or nothing newer than this (AMX may be masked)."""

PAYS = 1.1  # times float32's speed
HOPELESS = 0.5  # not worth measuring more than once
ALIKE = 0.98  # cosine between the gradients of both: rounding to 8 bits leaves 0.999
PATIENCE = 120.0  # seconds
CHILD = (sys.executable, "-c", "from fedgloss.precision import _trial; _trial()")


@dataclass(frozen=True)
class Bfloat16:
    """What became of the trial: how fast it is beside float32, and what oneDNN must be told for it."""

    speed: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def pays(self) -> bool:
        return not self.failure and self.speed >= PAYS

    def __str__(self) -> str:
        if self.failure:
            return f"bfloat16 does not run here ({self.failure})"
        limit = f" with {ISA}={self.environment[ISA]}" if self.environment else ""
        verdict = "pays" if self.pays else "does not pay"
        return f"bfloat16 {verdict} here ({self.speed:.2g} times float32's speed{limit})"


def settle(precision: Precision, device: str, began: Precision | None = None) -> tuple[Precision, str | None]:
    """The precision to train in, and what the user should know where it is not the one asked for.

    A run that ``began`` in one goes on in it: its numbers must not depend on how fast a machine is today.
    """
    require(precision in ("float32", "bfloat16"), "precision", f"must be float32 or bfloat16, got {precision!r}")
    if precision == "float32" or device != "cpu":
        return precision, None
    if began == "float32":
        return "float32", "the run began in float32, where bfloat16 did not run or pay, and stays in it"
    found = try_bfloat16()
    if began == "bfloat16":
        reason = f"the run began in bfloat16, and {found}; resume it on a machine where it does"
        require(not found.failure, "training.precision", reason)
        return "bfloat16", None
    return ("bfloat16", None) if found.pays else ("float32", f"{found}; training in float32")


@cache
def try_bfloat16() -> Bfloat16:
    """Try once a process. An instruction set that the user chose is left as it is."""
    return _try(CHILD, (None,) if ISA in os.environ else LIMITS)


def _try(child: Sequence[str], limits: Sequence[str | None]) -> Bfloat16:
    """The first limit under which the child survives: a newer instruction set is never the slower one."""
    failures = []
    for limit in limits:
        environment = {} if limit is None else {ISA: limit}
        found = _try_under(child, environment)
        if not found.failure:
            return found
        failures.append(found.failure if limit is None else f"with {ISA}={limit} {found.failure}")
    return Bfloat16(failure="; ".join(failures))


def _try_under(child: Sequence[str], environment: Mapping[str, str]) -> Bfloat16:
    try:
        ended = subprocess.run(
            child, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        return Bfloat16(failure=f"took more than {PATIENCE:g} s")
    if ended.returncode < 0:
        return Bfloat16(failure=f"a trial died of {signal.Signals(-ended.returncode).name}")
    try:
        found = json.loads(ended.stdout)
        speed, likeness = float(found["speed"]), float(found["likeness"])
    except (ValueError, KeyError, TypeError):
        reason = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Bfloat16(failure=f"a trial failed: {reason}")
    if not likeness >= ALIKE:
        return Bfloat16(failure=f"its gradients are wrong, cosine {likeness:.2g}")
    return Bfloat16(speed, environment)


def _trial() -> None:
    """Gradients of the paper's CNN in both precisions: convolutions and matrix products, forward and backward.

    Runs in the child, and prints what it found.
    """
    from .models import build
    from .tasks import Batch, Objective

    torch.manual_seed(0)
    torch.set_num_threads(1)
    objective = Objective(build("cnn", (3, 32, 32), 10), F.cross_entropy)
    params = objective.initial()

    def batch(size: int) -> Batch:
        inputs = torch.randn(size, 3, 32, 32).to(memory_format=torch.channels_last)
        return Batch(inputs, torch.arange(size) % 10, seed=0)

    def timed(precision: Precision, one: Batch) -> tuple[float, Vector]:
        began = time.perf_counter()
        _, gradient = objective.gradient(params, one, precision)
        return time.perf_counter() - began, gradient

    likeness = 1.0
    for size in (1, 7, 52, 64):  # other sizes may take other kernels
        one = batch(size)
        timed("float32", one)  # kernels are made at first use
        (plain, exact), (short, rounded) = timed("float32", one), timed("bfloat16", one)
        likeness = min(likeness, float(F.cosine_similarity(exact, rounded, dim=0)))
    _other_layers()
    ratios = [plain / short]
    while ratios[0] > HOPELESS and len(ratios) < 7:
        ratios.append(timed("float32", one)[0] / timed("bfloat16", one)[0])
    print(json.dumps({"speed": statistics.median(ratios), "likeness": likeness}))


def _other_layers() -> None:
    """Layers of the larger networks, which only have to survive."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=32),
        torch.nn.GroupNorm(8, 32),
        torch.nn.Conv2d(32, 64, 1, stride=2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 16, 512),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = network(torch.randn(16, 32, 8, 8)).sum()
    loss.backward()
