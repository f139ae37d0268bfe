"""Fair measurement on a machine that does other things too: in turn, many times, disturbances written down.

Each variant is a process that does its work once when asked. They are asked in turn, so that slow minutes hit
all of them; what is reported is medians, and ratios taken within a turn.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedgloss.compute import available_cores

RUNNERS = Path(__file__).parent / "runners"
RESULTS = Path(__file__).parent / "results"
TURNS = 7
QUIET = 0.10  # the share of the machine that others may take during a measurement
SPARE = 2  # turns done beyond those asked for, so that the most disturbed can be left out


@dataclass(frozen=True)
class Variant:
    """A runner and its arguments; ``python`` is the interpreter of its environment."""

    name: str
    runner: str
    arguments: Sequence[str] = ()
    python: str = sys.executable


class Running:
    """A variant's process."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.process = subprocess.Popen(
            [variant.python, str(RUNNERS / f"{variant.runner}.py"), *variant.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            self.stop()
            raise RuntimeError(f"{variant.name}: the runner {variant.runner} did not start")
        self._signal(signal.SIGSTOP)

    def once(self) -> dict[str, Any]:
        """One turn. Between turns its processes are held: some wait busily, which would slow the others' turns."""
        self._signal(signal.SIGCONT)
        try:
            return self._once()
        finally:
            self._signal(signal.SIGSTOP)

    def _once(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        own = self.cpu_seconds()
        before, began = _busy(), time.perf_counter()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.variant.name}: the runner ended")
        wall, busy = time.perf_counter() - began, _busy() - before
        spent = self.cpu_seconds() - own
        others = min(1.0, max(0.0, busy - spent) / (wall * (os.cpu_count() or 1)))
        found: dict[str, Any] = json.loads(line)
        return {**found, "others": others, "core_seconds": spent}

    def _signal(self, what: signal.Signals) -> None:
        for number in self.tree():
            with suppress(ProcessLookupError):
                os.kill(number, what)

    def tree(self) -> list[int]:
        """The numbers of its process and all below it."""
        parents: dict[int, list[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
        found, todo = [], [self.process.pid]
        while todo:
            found.append(todo.pop())
            todo += parents.get(found[-1], [])
        return found

    def cpu_seconds(self) -> float:
        total = 0.0
        for number in self.tree():
            try:
                fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def memory(self) -> float:
        """Bytes of its whole process tree, what is shared counted once (PSS)."""
        total = 0
        for number in self.tree():
            try:
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        return float(total)

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def running(variants: Sequence[Variant]) -> Iterator[dict[str, Running]]:
    with ExitStack() as stack:
        started = {}
        for variant in variants:
            started[variant.name] = Running(variant)
            stack.callback(started[variant.name].stop)
        yield started


@dataclass
class Turns:
    """What each variant measured, turn by turn."""

    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def others(self) -> float:
        """The share of the machine that other programs took, in the middle."""
        return statistics.median(turn["others"] for turns in self.found.values() for turn in turns)

    def values(self, name: str, key: str = "seconds") -> list[float]:
        return [turn[key] for turn in self.found[name]]

    def ratio(self, above: str, below: str, key: str = "seconds") -> Spread:
        pairs = zip(self.values(above, key), self.values(below, key), strict=True)
        return Spread.of([a / b for a, b in pairs])


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high, len(values))

    def show(self, form: str = ".2f") -> str:
        return f"{self.median:{form}} ({self.low:{form}}-{self.high:{form}})"


def take_turns(started: Mapping[str, Running], turns: int = TURNS) -> Turns:
    """Every variant once a turn. A few more turns replace those that others on the machine disturbed most."""
    taken: list[tuple[float, dict[str, dict[str, Any]]]] = []
    while len(taken) < turns + SPARE:
        turn = {name: runner.once() for name, runner in started.items()}
        taken.append((max(found["others"] for found in turn.values()), turn))
        quiet = sum(worst <= QUIET for worst, _ in taken)
        if len(taken) >= turns and (quiet >= turns or quiet < turns // 2):  # all good, or no good will come of more
            break
    kept = sorted(taken, key=lambda pair: pair[0])[:turns]
    found = {name: [turn[name] for _, turn in kept] for name in started}
    return Turns(found, {name: runner.memory() for name, runner in started.items()})


class PeakMemory:
    """Watches a variant's memory until it is asked for the highest value."""

    def __init__(self, runner: Running) -> None:
        self._runner = runner
        self._over = threading.Event()
        self._peak = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self._peak = max(self._peak, self._runner.memory())

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self._peak


def _busy() -> float:
    """Seconds that all cores together have worked since the machine started."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupt, soft, steal = (int(value) for value in fields[:8])
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """What a number must be read with."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": model,
        "cores": available_cores(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class Line:
    """One line of the table: what was found, and the target where there is one."""

    what: str
    found: str
    target: str = ""
    holds: bool | None = None


def write(name: str, lines: Sequence[Line], turns: Turns | None, facts: Mapping[str, Any]) -> None:
    """The result as JSON, for whoever wants every number."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "others": None if turns is None else round(turns.others, 2),
        "lines": [asdict(line) for line in lines],
        **facts,
        **({} if turns is None else {"turns": asdict(turns)}),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
