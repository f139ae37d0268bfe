"""How time and memory grow: with the cohort, the population, the workers; and what start-up takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .engine import ours
from .harness import RESULTS, Line, PeakMemory, Running, Spread, Turns, running, take_turns, write

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COHORTS, RESNET18_COHORTS = (5, 10, 20, 50, 100), (2, 4, 10)
POPULATIONS = (100, 10_000, 1_000_000)
GB = 1e9


def startup() -> list[Line]:
    """From the command to the end of the first round, on the digits."""
    seconds = []
    for _ in range(7):
        with tempfile.TemporaryDirectory() as folder:
            timings = Path(folder) / "run" / "rounds.jsonl"
            command = [sys.executable, "-m", "fedgloss", "run", "digits", "--quiet", "--rounds", "500"]
            began = time.perf_counter()
            process = subprocess.Popen([*command, "--out", str(timings.parent)])
            while not (timings.exists() and timings.stat().st_size) and process.poll() is None:
                time.sleep(0.005)
            seconds.append(time.perf_counter() - began)
            process.terminate()
            process.wait()
    found = Spread.of(seconds)
    lines = [Line("seconds from `fedgloss run` to round 1, digits", found.show(), "at most 4", found.median <= 4)]
    write("startup", lines, None, {"seconds": seconds})
    return lines


def memory() -> list[Line]:
    """The most memory a run holds: CIFAR-10's size, 100 clients that all remember something, 2 workers."""
    peak = _peak_of("cnn", method="fedgloss-sam", all_took_part=True)
    what = "peak memory, CNN, FedGloSS, 100 clients, GB"
    lines = [Line(what, f"{peak / GB:.2f}", "at most 1.5", peak <= 1.5 * GB)]
    write("memory", lines, None, {"bytes": peak})
    return lines


def memory_resnet18() -> list[Line]:
    """The same for a network whose clients remember 9 GB together, with 256 MB of RAM for that."""
    options = {"model": "resnet18-gn", "method": "fedsmoo", "cohort": 4, "per_client": 64}
    peak = _peak_of("resnet18", **options, client_memory="256MB", all_took_part=True)
    what = "peak memory, ResNet18-GN, FedSMOO, 100 clients, 256 MB for their memories, GB"
    lines = [Line(what, f"{peak / GB:.2f}", "at most 4", peak <= 4 * GB)]
    write("memory-resnet18", lines, None, {"bytes": peak})
    return lines


def _peak_of(name: str, **options: object) -> float:
    """After the round to warm up, which has met all there is to meet, one more is watched."""
    with running([ours(name, **options)]) as started:
        peak = PeakMemory(started[name])
        started[name].once()
        return peak.stop()


def cohorts() -> list[Line]:
    """Round time against the cohort: the CNN from 5 to 100 clients, ResNet18 from 2 to 10."""
    small = {f"CNN, {n}": ours(f"CNN, {n}", cohort=n, per_client=128) for n in COHORTS}
    large = {
        f"ResNet18-GN, {n}": ours(f"ResNet18-GN, {n}", cohort=n, model="resnet18-gn", per_client=64)
        for n in RESNET18_COHORTS
    }
    taken = Turns()
    for variant in (*small.values(), *large.values()):  # too large to be kept beside each other
        with running([variant]) as started:
            found = take_turns(started, turns=3)
        taken.found |= found.found
        taken.memory |= found.memory
    lines = _curve(taken, [*small, *large], "seconds a round, cohort: ")
    write("cohorts", lines, taken, {"pictures_a_client": {"CNN": 128, "ResNet18-GN": 64}})
    return lines


def population() -> list[Line]:
    """Round time against the number of clients, whose memories have 512 MB of RAM and a disk."""
    variants = [ours(f"{n:,} clients", clients=n, method="fedgloss", client_memory="512MB") for n in POPULATIONS]
    began, starts = time.perf_counter(), {}
    started: dict[str, Running] = {}
    try:
        for variant in variants:
            started[variant.name] = Running(variant)
            starts[variant.name] = time.perf_counter() - began
            began = time.perf_counter()
        turns = take_turns(started, 200)
    finally:
        for runner in started.values():
            runner.stop()
    first, last = variants[0].name, variants[-1].name
    ratio = Spread.of([a / b for a, b in zip(turns.values(last), turns.values(first), strict=True)])
    lines = _curve(turns, [v.name for v in variants], "seconds a round, ")
    lines += [
        Line("a round of 1,000,000 clients against 100", ratio.show(), "at most 1.1", ratio.median <= 1.1),
        Line("seconds until 1,000,000 clients had their first round", f"{starts[last]:.1f}", "seconds"),
    ]
    write("population", lines, turns, {"starts": starts})
    return lines


def workers() -> list[Line]:
    """Round time against the number of workers."""
    variants = {n: ours(f"{n} workers", workers=n, cohort=10, per_client=128) for n in (1, 2)}
    with running(list(variants.values())) as started:
        turns = take_turns(started)
    ratio = turns.ratio("1 workers", "2 workers")
    lines = _curve(turns, [v.name for v in variants.values()], "seconds a round, ")
    lines.append(Line("times faster with 2 workers than with 1, cohort 10", ratio.show()))
    write("workers", lines, turns, {})
    return lines


def _curve(turns: Turns, names: Sequence[str], what: str) -> list[Line]:
    return [
        Line(
            f"{what}{name}",
            f"{Spread.of(turns.values(name)).show('.3f')}, {turns.memory[name] / GB:.2f} GB",
        )
        for name in names
    ]


def plots() -> list[Line]:
    """Draw the scaling curves from the results that are there."""
    import json

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = {
        "cohorts": ("clients a round", lambda name: float(name.split(", ")[1])),
        "population": ("clients of the federation", lambda name: float(name.split()[0].replace(",", ""))),
        "workers": ("workers", lambda name: float(name.split()[0])),
    }
    drawn = []
    for benchmark, (label, position) in curves.items():
        path = RESULTS / f"{benchmark}.json"
        if not path.exists():
            continue
        turns = json.loads(path.read_text())["turns"]
        groups: dict[str, list[str]] = {}
        for name in turns["found"]:
            groups.setdefault(name.split(", ")[0] if benchmark == "cohorts" else "CNN", []).append(name)
        figure, (times, sizes) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
        for group, names in groups.items():
            where = [position(name) for name in names]
            middle = [statistics.median(t["seconds"] for t in turns["found"][name]) for name in names]
            times.plot(where, middle, "o-", label=group)
            sizes.plot(where, [turns["memory"][name] / GB for name in names], "o-", label=group)
        for axes, unit in ((times, "seconds a round"), (sizes, "memory, GB (PSS)")):
            axes.set(xlabel=label, ylabel=unit, ylim=(0, 1.15 * axes.dataLim.ymax))
            axes.grid(alpha=0.3)
            if benchmark == "workers":
                axes.set_xticks([1, 2])
            elif benchmark == "population":
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:,.0f}")
            if len(groups) > 1:
                axes.legend()
        PICTURES.mkdir(exist_ok=True)
        figure.savefig(PICTURES / f"{benchmark}.png", dpi=110)
        pyplot.close(figure)
        drawn.append(Line(f"drawn: docs/pictures/{benchmark}.png", ""))
    return drawn
