"""``python -m benchmarks [names]``: run, write results/<name>.json and the table in the docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from . import engine, hessian, peers, scale
from .harness import RESULTS, Line

BENCHMARKS: dict[str, Callable[[], list[Line]]] = {
    "share": engine.share,
    "plain": engine.plain,
    "pfl": peers.pfl,
    "flwr": peers.flower,
    "sharpness": engine.sharpness,
    "overhead": engine.overhead,
    "resnet18": engine.resnet18,
    "profile": engine.profile,
    "startup": scale.startup,
    "memory": scale.memory,
    "memory-resnet18": scale.memory_resnet18,
    "cohorts": scale.cohorts,
    "population": scale.population,
    "workers": scale.workers,
    "plots": scale.plots,
    "hessian": hessian.hessian,
}
PAGES = {"hessian": "flatness.md"}
"""The page in docs that has a benchmark's table, where it is not performance.md."""
LETTERS = "ABCDEFGH"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"


def page(name: str) -> Path:
    return Path(__file__).parents[1] / "docs" / PAGES.get(name, "performance.md")


def table(of: Path) -> str:
    """All results there are for a page, as one Markdown table; each with the machine it was measured on."""
    rows, machines = [], list[str]()
    for name in BENCHMARKS:
        path = RESULTS / f"{name}.json"
        if page(name) != of or not path.exists():
            continue
        content = json.loads(path.read_text())
        facts = content["machine"]
        about = f"{facts['processor']}, {facts['cores']} cores, {facts['instructions']}, torch {facts['torch']}"
        if about not in machines:
            machines.append(about)
        verdicts = {True: "yes", False: "**no**", None: ""}
        others = "" if content["others"] is None else f"{content['others']:.0%}"
        rows += [
            f"| {line['what']} | {line['found']} | {line['target']} | {verdicts[line['holds']]} | {others} "
            f"| {LETTERS[machines.index(about)]} |"
            for line in content["lines"]
        ]
    heading = "| | median (quartiles) | target | holds | others' load | machine |\n|---|---|---|---|---|---|\n"
    known = "; ".join(f"{letter}: {about}" for letter, about in zip(LETTERS, machines, strict=False))
    return heading + "\n".join(rows) + f"\n\nMachines: {known}.\n"


def main() -> None:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"{name}: {(BENCHMARKS[name].__doc__ or '').splitlines()[0]}", flush=True)
        for line in BENCHMARKS[name]():
            verdict = {True: "holds", False: "MISSED", None: ""}[line.holds]
            print(f"  {line.what:62} {line.found:22} {line.target:14} {verdict}", flush=True)
        text = page(name).read_text()
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        page(name).write_text(before + table(page(name)) + after)


if __name__ == "__main__":
    main()
