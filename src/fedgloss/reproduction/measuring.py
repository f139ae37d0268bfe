"""What the paper asks of finished runs: curvature, surfaces, lines between models, gradients, who has what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from ..config import Config
from ..data.statistics import portrait
from ..flatness import (
    MeasuredRun,
    Measures,
    measure_flatness,
    measure_interpolation,
    measure_landscape,
    measure_local_landscapes,
)
from ..flatness import Terms as Measured
from ..job import build_federation, build_job
from ..plan import gradients_per_step
from ..records import RunFolder, write_json
from ..reports.latex import write_division
from ..reports.paper import Cell
from ..reports.reproduction import GRADIENTS, Finder, gradients
from .terms import Terms, finder

Say: TypeAlias = Callable[[str], None]

OF_A_MODEL = ("lambda_1", "lambda_1_local", "lambda_1_global", "landscape", "local_landscape")
DEFLATED = {"paper": 1, "released": 5}
"""Eigenvalues that power iteration finds one after the other, the largest being lambda_1: the released code looks
behind a first one that is negative (spec section 8)."""


def measure(wanted: Sequence[Cell], terms: Terms, folder: Path, say: Say) -> None:
    """Whatever the cells ask of finished models and is not there yet; what is, is found again."""
    find = finder(terms, folder)
    for cell in wanted:
        if cell.quantity == "client_classes":
            _draw_distribution(cell, terms, folder)
            continue
        for seed in terms.seeds_of(cell):
            runs = find(cell.setting, seed, False)
            if runs and cell.quantity == "gradients":
                if all(gradients(run) is None for run in runs):
                    _count_gradients(runs[0].path, terms.config(cell.setting, seed, False))
            elif runs and runs[0].status == "finished" and cell.quantity in OF_A_MODEL:
                say(f"measuring {cell.quantity} of {runs[0].path.name}")
                _measure_model(cell, MeasuredRun(runs[0].path))
    _interpolate([cell for cell in wanted if cell.quantity == "interpolation"], terms, find, say)


def _measure_model(cell: Cell, run: MeasuredRun) -> None:
    """Curvature and surfaces of a run's final model."""
    fidelity = run.config.fidelity
    how = run.usual_terms(fidelity)
    few = replace(how, samples=run.most_samples(how.on))
    low, high = cell.details.get("range", (-1.0, 1.0))
    if cell.quantity == "landscape":
        measure_landscape(run, few, span=(low, high))
    elif cell.quantity == "local_landscape":
        measure_local_landscapes(run, replace(few, on="train"), span=(low, high))
    else:
        local = cell.quantity != "lambda_1"
        measure_flatness(run, how, Measures(top=DEFLATED[fidelity], bottom=0, method="power", local=local))


def _interpolate(wanted: Sequence[Cell], terms: Terms, find: Finder, say: Say) -> None:
    """The loss on the line through the two models of each column."""
    for column in dict.fromkeys(cell.column for cell in wanted):
        ends = [cell for cell in wanted if cell.column == column]
        runs = [find(cell.setting, seed, False)[:1] for cell in ends for seed in terms.seeds_of(cell)[:1]]
        finished = [MeasuredRun(run.path) for found in runs for run in found if run.status == "finished"]
        if len(ends) == len(finished) == 2:
            say(f"measuring the line from {finished[0].name} to {finished[1].name}")
            start, stop = ends[0].details["range"]
            how = [Measured(on=split) for split in ends[0].details["data"]]
            measure_interpolation(finished[0], finished[1], how, start=start, stop=stop)


def _count_gradients(path: Path, config: Config) -> None:
    """Gradients per local step, counted in one client's training."""
    folder = RunFolder(path).analysis
    folder.mkdir(exist_ok=True)
    write_json(folder / GRADIENTS, {"gradients_per_step": gradients_per_step(build_job(config))})


def _draw_distribution(cell: Cell, terms: Terms, folder: Path) -> None:
    federation = build_federation(terms.config(cell.setting, cell.seeds[0], False))
    folder.mkdir(parents=True, exist_ok=True)
    write_division(portrait(federation), folder / f"{cell.id.replace('/', '-')}.pdf")
