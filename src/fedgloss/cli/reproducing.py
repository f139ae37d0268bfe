"""`reproduce`: a table or figure of the paper, cell by cell, beside the published numbers."""

from __future__ import annotations

import json as json_module
import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..algorithms import METHODS
from ..config import Config, resolve, to_toml
from ..errors import InvalidInput, require
from .comparing import Cell as Started
from .comparing import run_cells, seeds_of, shares
from .options import Fidelity, Jobs, Json, Quiet, Settings
from .planning import duration
from .tables import size

if TYPE_CHECKING:
    from ..plan import Forecast
    from ..reports.paper import Cell, Exhibit, Setting
    from ..reports.reproduction import Entry, Finder

WINDOW = 100
"""Rounds over which the paper takes the mean of its accuracies."""


@dataclass(frozen=True)
class Terms:
    """How the paper's runs are carried out here."""

    fidelity: str | None = None
    settings: tuple[str, ...] = ()
    rounds: int | None = None
    scale: float | None = None

    def planned(self, setting: Setting, needed: int) -> int:
        """The rounds to run of a setting of which ``needed`` would answer."""
        if self.scale is not None:
            return max(1, round(needed * self.scale))
        return needed if self.rounds is None else min(needed, self.rounds)

    def config(self, setting: Setting, seed: int, true_delta_eps: bool, needed: int | None = None) -> Config:
        """A setting of the paper as the configuration of a run."""
        from ..reports.paper import LOCAL_TRAINING

        needed = setting.rounds if needed is None else needed
        options: dict[str, Any] = {
            "algorithm.name": setting.method,
            "algorithm.client": setting.client if METHODS[setting.method].takes_client else None,
            "data.alpha": setting.alpha,
            "training.rounds": self.planned(setting, needed),
            "training.seed": seed,
            "training.true_delta_eps": true_delta_eps or None,
            "fidelity": self.fidelity,
        }
        for name, value in setting.changes:
            options[f"{'local' if name in LOCAL_TRAINING else 'algorithm'}.{name}"] = value
        if self.scale is not None:
            options |= self._shrunk(setting)
        return resolve(setting.preset, options, self.settings).config

    def _shrunk(self, setting: Setting) -> dict[str, Any]:
        """The window, the evaluations and T_s shrink with the rounds."""
        assert self.scale is not None
        usual = resolve(setting.preset).config.training
        warm_up = setting.options.get("warm_up", 0)
        found: dict[str, Any] = {
            "training.window": max(1, round(min(WINDOW, setting.rounds // 10) * self.scale)),
            "training.eval_every": max(1, round(usual.eval_every * self.scale)),
        }
        return found | ({"algorithm.warm_up": round(float(warm_up) * self.scale)} if warm_up else {})

    def content(self, setting: Setting, true_delta_eps: bool) -> dict[str, Any]:
        """The configuration as a run's folder would hold it, but for the seed."""
        return tomllib.loads(to_toml(self.config(setting, 0, true_delta_eps)))


def reproduce(
    label: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE|FIGURE]", help="Such as tab:sota_cnn or fig:eigs; none: list all."),
    ] = None,
    cell: Annotated[str, typer.Option("--cell", metavar="GLOB", help="Only cells whose id matches.")] = "*",
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds, with commas between them; default the paper's three.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", "-t", min=1, help="Stop after so many; schedules unchanged.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option("--scale", help="Shrink rounds, T_s and the window together, e.g. 0.1.")
    ] = None,
    fidelity: Fidelity = None,
    settings: Settings = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would take, and run nothing.")] = False,
    read: Annotated[bool, typer.Option("--read", help="Judge the runs that are there, and run nothing.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of runs and results.")] = Path("runs/paper"),
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write results as a page of Markdown.")
    ] = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Do a table or figure of the paper again, and say how close it came. Runs go on where they stopped."""
    from ..reports import paper

    require(scale is None or 0 < scale < 1, "--scale", f"must lie between 0 and 1, got {scale}")
    require(scale is None or rounds is None, "--scale", "and --rounds exclude each other")
    require(not (read and plan), "--read", "and --plan exclude each other")
    terms = Terms(fidelity, tuple(settings or ()), rounds, scale)
    folder = out if scale is None else out / f"scale-{scale:g}"
    console = Console(stderr=json, quiet=quiet, highlight=False, soft_wrap=True)
    if label is None and read:
        _read_all(cell, seeds, terms, folder, markdown, console, json)
        return
    if label is None:
        given = {
            "--cell": cell != "*",
            "--seeds": seeds,
            "--rounds": rounds,
            "--scale": scale,
            "--markdown": markdown,
        }
        for name, value in given.items():
            require(not value, name, "needs a table or figure, such as tab:sota_cnn, or --read")
        _list(console, terms, json)
        return
    exhibit = _exhibit(label)
    wanted = paper.cells(cell, exhibit.label)
    work = _work(wanted, seeds, terms)
    if plan:
        _plan(exhibit, work, folder, console, json)
        return
    if not read:
        _run(work, folder, jobs, console)
        _measure(wanted, seeds, terms, folder, console)
    entries = _entries(wanted, seeds, terms, _there(terms, folder) if read else _finder(terms, folder))
    written = _write(exhibit, entries, folder, terms)
    if markdown is not None:
        _write_page(markdown, [(exhibit, entries)])
        written.append(markdown)
    if json:
        print(written[0].read_text(), end="")
        return
    _print(console, exhibit, entries)
    console.print("\n".join(map(str, written)), markup=False)


def _exhibit(label: str) -> Exhibit:
    """By its label, with or without what stands before the colon."""
    from ..reports import paper

    known = {found.label: found for found in paper.exhibits()}
    matching = [found for name, found in known.items() if name.partition(":")[2] == label]
    return matching[0] if len(matching) == 1 else paper.exhibit(label)


def _seeds(cell: Cell, asked: str | None) -> tuple[int, ...]:
    """The cell's own, or as many of those asked for as it takes."""
    if asked is None:
        return cell.seeds
    chosen = tuple(seeds_of(asked))
    return chosen if len(cell.seeds) > 1 else chosen[:1]


@dataclass(frozen=True)
class Work:
    """A run that cells ask for."""

    name: str
    config: Config


def _work(wanted: Sequence[Cell], seeds: str | None, terms: Terms) -> list[Work]:
    """Every run the cells need, once, with the rounds that answer them all; first those all methods are held to."""
    from ..reports.reproduction import key

    found: dict[str, tuple[str, Config]] = {}
    for cell in wanted:
        if cell.rounds_needed == 0:
            continue
        with_true = cell.quantity == "delta_eps"
        for seed in _seeds(cell, seeds):
            config = terms.config(cell.setting, seed, with_true, cell.rounds_needed)
            name = key(tomllib.loads(to_toml(config)))
            if name not in found or found[name][1].training.rounds < config.training.rounds:
                found[name] = _folder_name(cell.setting, config, with_true), config
    return [Work(name, config) for name, config in found.values()]


def _folder_name(setting: Setting, config: Config, with_true: bool) -> str:
    parts = [setting.preset, setting.method]
    parts += [setting.client] if METHODS[setting.method].takes_client else []
    parts += [] if setting.alpha is None else [f"alpha{setting.alpha:g}"]
    parts += [f"{name}{value}" for name, value in setting.changes]
    parts += ["true-delta-eps"] if with_true else []
    parts += [] if config.fidelity == "paper" else [config.fidelity]
    return "-".join([*parts, f"seed{config.training.seed}"])


def _run(work: Sequence[Work], folder: Path, jobs: int | None, console: Console) -> None:
    """Start, go on with, or skip."""
    from ..reports.reproduction import key, runs_by_key, settled

    there = runs_by_key(folder) if folder.exists() else {}
    todo = []
    for one in work:
        path = next(iter(there.get(key(tomllib.loads(to_toml(one.config))), [])), folder / one.name)
        if not (path.exists() and settled(path, one.config.training.rounds)):
            todo.append(Started(one.name.rpartition("-seed")[0], path, one.config))
    if done := len(work) - len(todo):
        console.print(f"{done} of {len(work)} runs are there already")
    if not todo:
        return
    _require_data([one.config for one in todo])
    summaries = run_cells(todo, *shares(todo, jobs), console)
    if len(summaries) < len(todo) or any(summary["status"] == "interrupted" for summary in summaries):
        console.print("stopped; all is saved. The same command goes on.")
        raise SystemExit(130)


def _require_data(configs: Sequence[Config]) -> None:
    """What is missing is said before the first of many long runs, not after it."""
    from ..job import build_federation

    by_data = {(config.data.name, config.data.path): config for config in configs}
    missing = []
    for config in by_data.values() if len(by_data) > 1 else ():
        try:
            build_federation(config)
        except InvalidInput as error:
            missing.append(f"{error}; --cell takes other cells alone")
    if missing:
        raise InvalidInput("\n".join(missing))


def _finder(terms: Terms, folder: Path) -> Finder:
    from ..reports.reproduction import Finder

    content = cache(terms.content)

    def config_of(setting: Setting, seed: int, true_delta_eps: bool) -> dict[str, Any]:
        found = content(setting, true_delta_eps)
        return {**found, "training": {**found["training"], "seed": seed}}

    return Finder(folder, config_of)


def _there(terms: Terms, folder: Path) -> Finder:
    """The runs of a folder that is read and not added to: there must be some."""
    find = _finder(terms, folder)
    if find.empty:
        raise InvalidInput(f"{folder}: holds no run")
    return find


def _entries(wanted: Sequence[Cell], seeds: str | None, terms: Terms, find: Finder) -> list[Entry]:
    from ..reports.reproduction import entry

    return [entry(cell, _seeds(cell, seeds), find, scaled=terms.scale is not None) for cell in wanted]


# ---- what is measured on finished runs --------------------------------------------------------------------------


def _measure(wanted: Sequence[Cell], seeds: str | None, terms: Terms, folder: Path, console: Console) -> None:
    """Whatever the cells ask of finished models and is not there yet; what is, is found again."""
    from ..reports.reproduction import gradients

    find = _finder(terms, folder)
    for cell in wanted:
        if cell.quantity == "client_classes":
            _draw_distribution(cell, terms, folder)
            continue
        for seed in _seeds(cell, seeds):
            runs = find(cell.setting, seed, False)
            if runs and cell.quantity == "gradients":
                if all(gradients(run) is None for run in runs):
                    _count_gradients(runs[0].path, terms.config(cell.setting, seed, False))
            elif runs and runs[0].status == "finished":
                _measure_model(cell, runs[0].path, console)
    _interpolate([cell for cell in wanted if cell.quantity == "interpolation"], seeds, find, console)


def _interpolate(wanted: Sequence[Cell], seeds: str | None, find: Finder, console: Console) -> None:
    """The loss on the line through the two models of each column."""
    from ..flatness import MeasuredRun, measure_interpolation
    from ..flatness import Terms as Measured

    for column in dict.fromkeys(cell.column for cell in wanted):
        ends = [cell for cell in wanted if cell.column == column]
        runs = [find(cell.setting, seed, False)[:1] for cell in ends for seed in _seeds(cell, seeds)[:1]]
        finished = [MeasuredRun(run.path) for found in runs for run in found if run.status == "finished"]
        if len(ends) == len(finished) == 2:
            console.print(f"measuring the line from {finished[0].name} to {finished[1].name}")
            start, stop = ends[0].details["range"]
            how = [Measured(on=split) for split in ends[0].details["data"]]
            measure_interpolation(finished[0], finished[1], how, start=start, stop=stop)


def _measure_model(cell: Cell, path: Path, console: Console) -> None:
    """Curvature and surfaces of a run's final model."""
    quantity = cell.quantity
    if quantity not in ("lambda_1", "lambda_1_local", "lambda_1_global", "landscape", "local_landscape"):
        return
    from ..flatness import MeasuredRun, Measures, measure_flatness, measure_landscape, measure_local_landscapes

    console.print(f"measuring {quantity} of {path.name}")
    run = MeasuredRun(path)
    how = run.usual_terms(run.config.fidelity)
    few = replace(how, samples=run.most_samples(how.on))
    low, high = cell.details.get("range", (-1.0, 1.0))
    if quantity == "landscape":
        measure_landscape(run, few, span=(low, high))
    elif quantity == "local_landscape":
        measure_local_landscapes(run, replace(few, on="train"), span=(low, high))
    else:
        measure_flatness(run, how, Measures(top=1, bottom=0, method="power", local=quantity != "lambda_1"))


def _count_gradients(path: Path, config: Config) -> None:
    """Gradients per local step, counted in one client's training."""
    from ..job import build_job
    from ..plan import gradients_per_step
    from ..records import RunFolder, write_json
    from ..reports.reproduction import GRADIENTS

    folder = RunFolder(path).analysis
    folder.mkdir(exist_ok=True)
    write_json(folder / GRADIENTS, {"gradients_per_step": gradients_per_step(build_job(config))})


def _draw_distribution(cell: Cell, terms: Terms, folder: Path) -> None:
    from ..data.statistics import portrait
    from ..job import build_federation
    from ..reports.latex import write_division

    federation = build_federation(terms.config(cell.setting, cell.seeds[0], False))
    folder.mkdir(parents=True, exist_ok=True)
    write_division(portrait(federation), folder / f"{cell.id.replace('/', '-')}.pdf")


# ---- results ----------------------------------------------------------------------------------------------------


def _write(exhibit: Exhibit, entries: Sequence[Entry], folder: Path, terms: Terms) -> list[Path]:
    """The comparison as JSON, as Markdown, and as a page with the runs' own report."""
    from ..files import disk_errors, write_atomically
    from ..records import write_json
    from ..reports.html import page, page_data
    from ..reports.reproduction import table, to_json

    shown = table(exhibit, entries)
    paths = [folder / f"{shown.id}.{ending}" for ending in ("json", "md", "html")]
    runs = list({run.path: run for one in entries for run in one.runs}.values())
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(paths[0], to_json(exhibit, entries, **_about(terms)))
        write_atomically(paths[1], shown.to_markdown().encode())
        write_atomically(paths[2], page(page_data(runs, [], first=[shown])).encode())
    return paths


def _about(terms: Terms) -> dict[str, Any]:
    return {"fedgloss": version("fedgloss"), "command": sys.argv[1:], "scale": terms.scale, "rounds": terms.rounds}


def _write_page(path: Path, answers: Sequence[tuple[Exhibit, Sequence[Entry]]]) -> None:
    """The page, and beside it, in a folder of its name, the pictures it shows."""
    from ..files import disk_errors, write_atomically
    from ..reports.latex import write_courses
    from ..reports.reproduction_page import markdown, with_courses

    needs = {exhibit.label: str(Needs.of(exhibit)) for exhibit, _ in answers}
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    drawn = {
        setting.name: [f"{path.stem}/{one.name}" for one in write_courses(setting, path.with_suffix(""))]
        for setting in with_courses(answers)
    }
    with disk_errors(path):
        write_atomically(path, markdown(answers, needs, drawn).encode())


def _read_all(
    pattern: str,
    seeds: str | None,
    terms: Terms,
    folder: Path,
    markdown: Path | None,
    console: Console,
    as_json: bool,
) -> None:
    """Every exhibit of which a run is there; the others with what they would need."""
    from ..reports import paper
    from ..reports.reproduction import to_json

    paper.cells(pattern)  # refuses what matches none
    answers: list[tuple[Exhibit, Sequence[Entry]]] = []
    find = _there(terms, folder)
    for exhibit in paper.exhibits():
        wanted = [cell for cell in exhibit.cells if fnmatchcase(cell.id, pattern)]
        entries = _entries(wanted, seeds, terms, find)
        if entries:
            answers.append((exhibit, entries))
    if not any(one.runs for _, entries in answers for one in entries):
        raise InvalidInput(f"{folder}: holds no run of the paper's settings")
    telling = [(exhibit, found) for exhibit, all_of in answers if (found := [one for one in all_of if one.telling])]
    if markdown is not None:
        _write_page(markdown, answers)
    if as_json:
        print(json_module.dumps([to_json(exhibit, found, **_about(terms)) for exhibit, found in telling]))
        return
    for exhibit, found in telling:
        _print(console, exhibit, found)
    if markdown is not None:
        console.print(str(markdown), markup=False)


def _print(console: Console, exhibit: Exhibit, entries: Sequence[Entry]) -> None:
    from ..reports.reproduction import table

    shown = table(exhibit, entries)
    console.print(f"[bold]{exhibit.label}[/bold]")
    widest = max(len(row[0].text) for _, rows in shown.groups for row in rows)  # groups below each other line up
    for name, rows in shown.groups:
        grid = Table(title=name, title_justify="left", title_style="dim", box=None, pad_edge=False)
        grid.add_column(shown.columns[0].name, no_wrap=True, min_width=widest)
        for column in shown.columns[1:]:
            grid.add_column(column.name, justify="right" if column.numeric else "left")
        for row in rows:
            grid.add_row(*(found.text for found in row))
        console.print(grid, soft_wrap=False)
    if any(one.shortened for one in entries):
        console.print("shortened runs: these are not the paper's figures, and only compared where it gives some")


# ---- what it would take -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """What an exhibit takes, before anything is measured."""

    data: str
    presets: tuple[str, ...]
    runs: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.data}; {_count(self.runs)}, {self.rounds:,} rounds"

    @classmethod
    def of(cls, exhibit: Exhibit) -> Needs:
        from ..reports import paper

        runs = paper.runs(exhibit.cells)
        presets = tuple(dict.fromkeys(cell.setting.preset for cell in exhibit.cells))
        data = dict.fromkeys(preset.partition("-")[0] for preset in presets)
        return cls(", ".join(data), presets, len(runs), sum(runs.values()))


def _count(runs: int) -> str:
    return f"{runs:,} run{'' if runs == 1 else 's'}"


class Rates:
    """What a preset's runs take here, measured with FedAvg; a SAM client takes two gradients for one."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._found: dict[str, Forecast | str] = {}

    def of(self, preset: str) -> Forecast | str:
        """A forecast, or what is missing for it."""
        if preset not in self._found:
            try:
                options = {"algorithm.name": "fedavg", "fidelity": self._terms.fidelity}
                self._found[preset] = forecast_of(resolve(preset, options, self._terms.settings).config)
            except InvalidInput as error:
                self._found[preset] = str(error)
        return self._found[preset]

    def seconds(self, setting: Setting, rounds: int) -> float | None:
        found = self.of(setting.preset)
        if isinstance(found, str):
            return None
        evaluations = found.evaluations * rounds / found.rounds * found.seconds_per_evaluation
        gradients = 2 if setting.client == "sam" else 1
        exchanges = 2 if setting.method == "naive-fedgloss" else 1
        training = rounds * found.seconds_per_round * gradients
        if METHODS[setting.method].centralised:  # an epoch over everybody's samples
            return training * found.clients / found.cohort
        return training * exchanges + evaluations

    def disk(self, setting: Setting) -> int:
        found = self.of(setting.preset)
        if isinstance(found, str):
            return 0
        memories = found.clients * 4 * found.parameters if setting.method in WITH_MEMORY else 0
        return found.disk + memories


WITH_MEMORY = ("feddyn", "fedgloss", "naive-fedgloss", "scaffold", "fedgamma", "fedspeed", "fedsmoo")
"""Methods whose clients keep a vector of their own."""


def forecast_of(config: Config) -> Forecast:
    from ..job import build_execution, build_job, build_local
    from ..plan import forecast
    from ..transports import usable_workers

    execution = build_execution(config)
    workers = usable_workers(execution.workers, config.run.device)
    return forecast(build_job(config), build_local(config), execution, workers)


def _list(console: Console, terms: Terms, as_json: bool) -> None:
    """All exhibits with what each needs."""
    from ..reports import paper

    rates = Rates(terms)
    console.print("measuring a few steps of each network on this machine ...")
    rows: list[dict[str, Any]] = []
    for exhibit in paper.exhibits():
        needs = Needs.of(exhibit)
        missing = sorted({str(found) for p in needs.presets if isinstance(found := rates.of(p), str)})
        seconds = [rates.seconds(run.setting, rounds) for run, rounds in paper.runs(exhibit.cells).items()]
        known = sum(s for s in seconds if s is not None)
        disk = sum(rates.disk(run.setting) for run in paper.runs(exhibit.cells))
        rows.append(
            {
                "label": exhibit.label,
                "about": exhibit.about,
                "cells": len(exhibit.cells),
                "data": needs.data,
                "missing": missing,
                "runs": needs.runs,
                "rounds": needs.rounds,
                "seconds": known,
                "whole": None not in seconds,
                "disk": disk,
            }
        )
    if as_json:
        print(json_module.dumps(rows))
        return
    for row in rows:
        time = duration(row["seconds"]) + ("" if row["whole"] else " +")
        asks = [
            row["data"] + (" (missing)" if row["missing"] else ""),
            _count(row["runs"]),
            f"{row['rounds']:,} rounds",
            *([f"{time} here"] if row["seconds"] or row["whole"] else []),
            *([f"{size(row['disk'])} of disk"] if row["disk"] else []),
        ]
        console.print(f"[bold]{row['label']}[/bold]  {row['about']}", highlight=False)
        console.print(f"    [dim]{'; '.join(asks)}[/dim]", highlight=False)
    for reason in dict.fromkeys(reason for row in rows for reason in row["missing"]):
        console.print(f"missing: {reason}", markup=False)
    console.print("Runs are shared between tables. +: without what is missing. Do one: fedgloss reproduce LABEL")


def _plan(exhibit: Exhibit, work: Sequence[Work], folder: Path, console: Console, as_json: bool) -> None:
    """Every run with its time here; what is there already costs nothing."""
    from ..reports.reproduction import key, runs_by_key, settled

    there = runs_by_key(folder) if folder.exists() else {}
    rows: list[dict[str, Any]] = []
    missing: dict[str, bool] = {}
    measured: dict[str, Forecast | None] = {}
    for one in work:
        path = next(iter(there.get(key(tomllib.loads(to_toml(one.config))), [])), None)
        done = path is not None and settled(path, one.config.training.rounds)
        alike = one.name.rpartition("-seed")[0]
        if alike not in measured:
            try:
                measured[alike] = forecast_of(one.config)
            except InvalidInput as error:
                missing[str(error)] = True
                measured[alike] = None
        found = measured[alike]
        seconds = 0.0 if done else None if found is None else found.seconds
        disk = 0 if done or found is None else found.disk
        rounds = one.config.training.rounds
        rows.append({"run": one.name, "rounds": rounds, "done": done, "seconds": seconds, "disk": disk})
    total: dict[str, Any] = {
        "seconds": sum(row["seconds"] or 0 for row in rows),
        "disk": sum(row["disk"] for row in rows),
        "free": shutil.disk_usage(Path.cwd()).free,
        "missing": list(missing),
    }
    if as_json:
        print(json_module.dumps({"label": exhibit.label, "runs": rows, **total}))
    else:
        grid = Table("run", "rounds", "time here", "disk", box=None, pad_edge=False)
        for row in rows:
            time = "there already" if row["done"] else "?" if row["seconds"] is None else duration(row["seconds"])
            grid.add_row(row["run"], f"{row['rounds']:,}", time, size(row["disk"]))
        console.print(grid, soft_wrap=False)
        console.print(
            f"{_count(len(rows))}, {duration(total['seconds'])} one after another, {size(total['disk'])} of disk "
            f"({size(total['free'])} free here)" + (", without what is missing" if missing else "")
        )
        for reason in missing:
            console.print(f"missing: {reason}", markup=False)
    if missing:
        raise SystemExit(1)
