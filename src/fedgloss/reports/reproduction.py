"""The paper's cells beside our own runs: what each run answers, and how close it came.

Runs are found by their configuration, whatever their folders are called. Nothing here trains or measures.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from ..costs import reach
from ..errors import InvalidInput
from ..records import RunFolder, read_json, read_lines
from .measurements import Kind
from .paper import QUANTITIES, Cell, Exhibit, Setting, cells
from .runs import Run, find_runs, read_run, short_names
from .study import canonical
from .tables import CROSS, DASH, Column, Table
from .tables import Cell as Shown
from .verdict import Judgement, Result, judge

Find: TypeAlias = Callable[[Setting, int, bool], Sequence[Run]]
"""The runs of a setting and a seed, the longest first; with the true delta_eps recorded, if asked."""

DRAWN = frozenset(
    {
        "parameter_norm_curve", "accuracy_curve", "accuracy_against_cost", "delta_eps", "landscape",
        "local_landscape", "interpolation", "client_classes",
    }
)  # fmt: skip
"""Quantities that are pictures: nothing is printed for them, so nothing is judged."""

PICTURE = "a picture"

LEAST_SHARE = 0.01
"""Of a cell's rounds: before, a run says nothing of it."""

RULE = (
    "Ours is the mean ± sample standard deviation (ddof = 1) over seeds. Tolerance: 2 √(sd² of the paper / 3 + "
    "sd² of ours / seeds) plus 0.5 points for accuracies, one evaluation for rounds to a target, half a "
    "printed digit otherwise. One seed is shown and not judged."
)

GRADIENTS = "gradients.json"
"""In a run's analysis folder: gradients per local step, counted."""

FLATNESS = {
    "paper": ("flatness-last-train-power",),
    "released": ("flatness-average100-test-swapped-batches-power", "flatness-average100-test-batches-power"),
}
"""Files of a run's analysis folder with the paper's estimator on each fidelity's terms; data but CIFAR's have no
constants that could be swapped."""


def key(config: Mapping[str, Any]) -> str:
    """What tells one of the paper's runs from another; two configurations with one key train and report alike."""

    def section(name: str, *left_out: str) -> dict[str, Any]:
        return {k: v for k, v in (config.get(name) or {}).items() if k not in left_out}

    training = {"precision": "float32", **section("training")}
    decisive = ("seed", "cohort", "participation", "evaluate_on", "eval_every", "window", "precision")
    return canonical(
        {
            "fidelity": config.get("fidelity", "paper"),
            "data": section("data", "path", "lists"),
            "model": section("model"),
            "local": section("local"),
            "algorithm": section("algorithm"),
            "training": {k: training.get(k) for k in decisive},
            "true_delta_eps": bool(training.get("true_delta_eps")),
        }
    )


def runs_by_key(folder: Path) -> dict[str, list[Path]]:
    """The runs below a folder; of several with one key, first those with most rounds."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in find_runs([folder])[0]:
        try:
            config = tomllib.loads(RunFolder(path).config.read_text())
            rounds = _rounds_done(path)
        except (OSError, ValueError, InvalidInput):
            continue  # not ours to judge; `fedgloss runs` names it
        found.setdefault(key(config), []).append((rounds, path))
    return {
        name: [path for _, path in sorted(runs, key=lambda one: one[0], reverse=True)]
        for name, runs in found.items()
    }


def _rounds_done(path: Path) -> int:
    folder = RunFolder(path)
    if folder.summary.exists():
        return int(read_json(folder.summary).get("rounds", 0))
    return len(read_lines(folder.rounds, "round")) if folder.rounds.exists() else 0  # it goes on, or was killed


def settled(path: Path, rounds: int) -> bool:
    """Whether a run has ended and has as many rounds as are asked for, or diverged before."""
    folder = RunFolder(path)
    summary = read_json(folder.summary) if folder.summary.exists() else {}
    if summary.get("status") == "diverged":
        return True
    return summary.get("status") == "finished" and int(summary.get("rounds", 0)) >= rounds


@dataclass(frozen=True)
class Entry:
    """A cell, what our seeds gave for it, and the judgement; none where there is no answer yet."""

    cell: Cell
    results: Mapping[int, Result]
    judgement: Judgement | None
    rounds: int | None
    """Rounds done, where the runs stopped before the cell's."""
    why: str
    """Why there is no answer, or how a target was found."""
    runs: tuple[Run, ...]

    @property
    def shortened(self) -> bool:
        return self.rounds is not None

    @property
    def telling(self) -> bool:
        """Whether there is something to show: an answer, from more than the first steps of the runs."""
        soon = self.rounds is not None and early(self.rounds, self.cell.rounds_needed)
        return (self.judgement is not None or self.verdict == "drawn") and not soon

    @property
    def verdict(self) -> str:
        if self.judgement is None:
            return "drawn" if self.why == PICTURE else "not run"
        return self.judgement.verdict or "no verdict"


def early(rounds: int, needed: int) -> bool:
    """Whether a run has made no more than the first steps of what it needs."""
    return rounds < LEAST_SHARE * needed


def entry(cell: Cell, seeds: Sequence[int], find: Find, *, scaled: bool = False) -> Entry:
    """A cell as our runs answer it."""
    with_true = cell.quantity == "delta_eps"
    found = {seed: _telling(cell, runs) for seed in seeds if (runs := find(cell.setting, seed, with_true))}
    runs = tuple(found.values())
    if cell.quantity in DRAWN:
        missing = "not measured" if runs else ""
        why = PICTURE if any(_pictured(cell, run) for run in runs) else missing
        return Entry(cell, {}, None, _stopped(cell, runs), why, runs)
    target = _target(cell, seeds, find) if cell.reference else None
    results = {}
    for seed, run in found.items():
        answer = _answer(cell, run, seed, target, find)
        if answer is not None:
            results[seed] = answer
    if not results:
        return Entry(cell, {}, None, _stopped(cell, runs), "not measured" if runs else "", runs)
    rounds = _stopped(cell, [found[seed] for seed in results])
    judgement = judge(cell, list(results.values()), rounds=rounds, scaled=scaled)
    why = target.why if target is not None and QUANTITIES[cell.quantity].to_target else ""
    return Entry(cell, results, judgement, rounds, why, runs)


def _telling(cell: Cell, runs: Sequence[Run]) -> Run:
    """The run that speaks for a cell: the longest, but for gradients, which any run may have counted."""
    if cell.quantity == "gradients":
        return next((run for run in runs if gradients(run) is not None), runs[0])
    return runs[0]


def _pictured(cell: Cell, run: Run) -> bool:
    """Whether a run holds what the picture shows: curves come with it, planes and lines have to be measured."""
    kinds = {"landscape": "surface", "local_landscape": "surface", "interpolation": "interpolation"}
    wanted = kinds.get(cell.quantity)
    local = cell.quantity == "local_landscape"
    return wanted is None or any(
        m.kind == wanted
        and (wanted != "surface" or str(m.subject.get("weights", "")).startswith("client") == local)
        for m in run.measurements
    )


def _stopped(cell: Cell, runs: Sequence[Run]) -> int | None:
    """The fewest rounds of runs that have not got to the cell's; divergence is an end of its own."""
    lengths = [run.length for run in runs if run.status != "diverged"]
    return min(lengths) if lengths and min(lengths) < cell.rounds_needed else None


@dataclass(frozen=True)
class _Target:
    accuracy: float | None
    """In percent."""
    rounds: int
    setting: Setting
    why: str


def _target(cell: Cell, seeds: Sequence[int], find: Find) -> _Target:
    """The reference's accuracy: ours where all its seeds are through, else the paper's."""
    (reference,) = cells(str(cell.reference))
    setting = reference.setting
    ours = [
        found for seed in seeds if (runs := find(setting, seed, False)) and (found := _accuracy(runs[0], setting))
    ]
    if len(ours) == len(seeds):
        return _Target(fmean(ours), setting.rounds, setting, f"target {fmean(ours):.1f}, our own reference's")
    printed = reference.published.value if reference.published else None
    why = "no target: the reference has not run" if printed is None else f"target {printed:g}, the paper's"
    return _Target(printed, setting.rounds, setting, why)


def _accuracy(run: Run, setting: Setting) -> float | None:
    value = run.reported("accuracy")
    return 100 * value if value is not None and run.length >= setting.rounds else None


def _answer(cell: Cell, run: Run, seed: int, target: _Target | None, find: Find) -> Result | None:
    """What one run says of a cell; None where it does not, or not yet."""
    if cell.quantity == "communication":
        return run.traffic.factor if run.length else None
    if cell.quantity == "gradients":
        return gradients(run)
    if run.status not in ("finished", "diverged"):
        return None
    if target is not None and QUANTITIES[cell.quantity].to_target:
        return _to_target(cell, run, target)
    if run.status == "diverged":
        return "diverged"
    if cell.quantity == "accuracy":
        return _percent(run.reported("accuracy"))
    if cell.quantity == "accuracy_half":
        return _half_way(cell, run)
    if cell.quantity == "accuracy_lost" and target is not None:
        references = find(target.setting, seed, False)
        whole = references[0].reported("accuracy") if references else None
        own = run.reported("accuracy")
        return 100 * (whole - own) / whole if whole and own is not None else None
    if cell.quantity == "parameter_norm":
        norms = run.rounds.get("norms.params")
        return float(norms[-1]) if norms is not None and len(norms) and math.isfinite(norms[-1]) else None
    if cell.quantity == "lambda_1":
        return _lambda(run)
    if cell.quantity in ("lambda_1_local", "lambda_1_global"):
        return _lambda_of_a_client(run, cell)
    raise AssertionError(cell.quantity)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _half_way(cell: Cell, run: Run) -> float | None:
    """The evaluation at the half, or the figure of a run that stopped before."""
    at = np.flatnonzero(run.evaluated == cell.rounds_needed)
    values = run.evaluations.get("accuracy")
    if len(at) and values is not None and math.isfinite(values[at[0]]):
        return 100 * float(values[at[0]])
    return _percent(run.reported("accuracy")) if run.length < cell.rounds_needed else None


def _to_target(cell: Cell, run: Run, target: _Target) -> Result | None:
    if target.accuracy is None:
        return None
    if cell.setting == target.setting:  # the reference needs all its rounds, by definition
        rounds, relative = float(target.rounds), 1.0
    else:
        values = run.evaluations.get("accuracy", np.full(len(run.evaluated), np.nan))
        travelled = [run.travelled(int(done)) for done in run.evaluated]
        every = run.section("training").get("eval_every", 1)
        found = reach(run.evaluated.tolist(), values.tolist(), travelled, target.accuracy / 100, every=every)
        if found is None:
            return "diverged" if run.status == "diverged" else "not reached"
        whole = (
            target.rounds * (run.bytes[-1] / run.length) / run.traffic.factor
        )  # the reference sends one each way
        rounds, relative = float(found.rounds), found.bytes / whole
    return {"rounds": rounds, "speed_up": target.rounds / rounds, "cost": relative}[cell.quantity]


def gradients(run: Run) -> float | None:
    """Gradients per local step, where they were counted in this run."""
    path = RunFolder(run.path).analysis / GRADIENTS
    value = read_json(path).get("gradients_per_step") if path.exists() else None
    return float(value) if isinstance(value, int | float) else None


def _lambda(run: Run) -> float | None:
    return next((_largest(found) for found in _flatness(run, "eigenvalues")), None)


def _lambda_of_a_client(run: Run, cell: Cell) -> float | None:
    measured, place = _flatness(run, "local"), int(cell.details["client"]) - 1
    if place >= len(measured):
        return None
    return _largest(measured[place]["local" if cell.quantity == "lambda_1_local" else "union"])


def _flatness(run: Run, kind: Kind) -> list[Mapping[str, Any]]:
    """What was measured with the paper's estimator on the terms of the run's fidelity, nothing else."""
    files = FLATNESS[run.config.get("fidelity", "paper")]
    return [found.content for found in run.measurements if found.kind == kind and found.name.split()[0] in files]


def _largest(eigenvalues: Mapping[str, Any]) -> float | None:
    top = eigenvalues["top"]
    return float(top[0]["value"]) if top and math.isfinite(top[0]["value"]) else None


class Finder:
    """Runs below a folder by setting and seed, each read once."""

    def __init__(self, folder: Path, config_of: Callable[[Setting, int, bool], Mapping[str, Any]]) -> None:
        self._paths = runs_by_key(folder) if folder.exists() else {}
        every = [path for paths in self._paths.values() for path in paths]
        self._names = dict(zip(every, short_names(every), strict=True))
        self._config_of = config_of
        self._read: dict[Path, Run | None] = {}

    @property
    def empty(self) -> bool:
        return not self._paths

    def __call__(self, setting: Setting, seed: int, true_delta_eps: bool) -> list[Run]:
        paths = self._paths.get(key(self._config_of(setting, seed, true_delta_eps)), [])
        return [run for path in paths if (run := self._run(path)) is not None]

    def _run(self, path: Path) -> Run | None:
        if path not in self._read:
            try:
                self._read[path] = read_run(path, self._names[path])[0]
            except InvalidInput:
                self._read[path] = None
        return self._read[path]


# ---- how it is shown --------------------------------------------------------------------------------------------


def table(exhibit: Exhibit, entries: Sequence[Entry]) -> Table:
    """Published, ours, difference, tolerance, verdict: a row a cell, grouped as the paper's columns are."""
    groups: dict[str, list[tuple[Shown, ...]]] = {}
    for one in entries:
        groups.setdefault(f"{one.cell.column} ({QUANTITIES[one.cell.quantity].about})", []).append(table_row(one))
    columns = (
        Column("Method", numeric=False),
        Column("Published"),
        Column("Ours", ("mean", "sd", "seeds")),
        Column("Difference", ("difference",)),
        Column("Tolerance", ("tolerance",)),
        Column("Verdict", numeric=False),
        Column("Why", numeric=False),
    )
    notes = [RULE]
    if any(one.shortened for one in entries):
        notes.append("Figures of shortened runs are marked with their rounds; they are not the table's.")
    said = dict.fromkeys(note for one in entries for note in one.cell.notes)
    identity = exhibit.label.replace(":", "-")
    title = f"{exhibit.label}: {exhibit.about}"
    return Table(
        identity, title, columns, tuple((name, tuple(rows)) for name, rows in groups.items()), (*notes, *said)
    )


def table_row(one: Entry) -> tuple[Shown, ...]:
    """A cell in the columns of ``table``."""
    printed = one.cell.published
    judgement = one.judgement
    reasons = [judgement.reason if judgement else "", one.why]
    return (
        Shown(one.cell.row),
        Shown(DASH if printed is None else printed.text.replace("±", " ± ").replace("X", CROSS)),
        _ours(one),
        Shown(DASH) if judgement is None or judgement.difference is None
        else Shown(_signed(judgement.difference), {"difference": judgement.difference}),
        Shown(DASH) if judgement is None or judgement.tolerance is None
        else Shown(f"{judgement.tolerance:.3g}", {"tolerance": judgement.tolerance}),
        Shown(one.verdict, bold=one.verdict in ("agrees", "differs")),
        Shown("; ".join(filter(None, reasons)) or DASH),
    )  # fmt: skip


def _ours(one: Entry) -> Shown:
    if one.judgement is None:
        return Shown(DASH)
    values = [value for value in one.results.values() if not isinstance(value, str)]
    words = [value for value in one.results.values() if isinstance(value, str)]
    short = f" after {one.rounds:,} rounds" if one.shortened else ""
    if words:
        lost = f"{CROSS if 'diverged' in words else 'not reached'}"
        return Shown(lost + (f" in {len(words)} of {len(one.results)} seeds" if values else "") + short)
    mean, sd = one.judgement.mean or 0.0, one.judgement.sd
    text = f"{mean:.4g}" + ("" if sd is None else f" ± {sd:.2g}")
    return Shown(text + short, {"mean": mean, "sd": math.nan if sd is None else sd, "seeds": len(values)})


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def to_json(exhibit: Exhibit, entries: Sequence[Entry], **about: Any) -> dict[str, Any]:
    """Everything that was compared, for programs."""
    return {
        "label": exhibit.label,
        "about": exhibit.about,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "cells": [_cell_json(one) for one in entries],
    }


def _cell_json(one: Entry) -> dict[str, Any]:
    judgement, printed = one.judgement, one.cell.published
    return {
        "id": one.cell.id,
        "quantity": one.cell.quantity,
        "published": None if printed is None else {"text": printed.text, "value": printed.value, "sd": printed.sd},
        "ours": None if judgement is None else {"mean": judgement.mean, "sd": judgement.sd, "by_seed": one.results},
        "difference": None if judgement is None else judgement.difference,
        "tolerance": None if judgement is None else judgement.tolerance,
        "verdict": one.verdict,
        "why": "; ".join(filter(None, [judgement.reason if judgement else "", one.why])),
        "rounds_needed": one.cell.rounds_needed,
        "stopped_after": one.rounds,
        "runs": [run.name for run in one.runs],
        "notes": list(one.cell.notes),
    }
