"""`reproduce`: a table or figure of the paper, cell by cell, beside the published numbers."""

from __future__ import annotations

import json as json_module
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..config import Config
from ..errors import InvalidInput, require
from .comparing import Cell as Started
from .comparing import run_cells, seeds_of, shares
from .options import Fidelity, Jobs, Json, Quiet, Settings
from .planning import duration
from .tables import size

if TYPE_CHECKING:
    from ..plan import Forecast
    from ..reports.paper import Cell, Exhibit
    from ..reports.reproduction import Entry, Finder
    from ..reproduction import Terms, Work


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
    from ..reproduction import Terms, finder, measure, work

    require(scale is None or 0 < scale < 1, "--scale", f"must lie between 0 and 1, got {scale}")
    require(scale is None or rounds is None, "--scale", "and --rounds exclude each other")
    require(not (read and plan), "--read", "and --plan exclude each other")
    chosen = None if seeds is None else tuple(seeds_of(seeds))
    terms = Terms(fidelity, tuple(settings or ()), rounds, scale, chosen)
    folder = out if scale is None else out / f"scale-{scale:g}"
    console = Console(stderr=json, quiet=quiet, highlight=False, soft_wrap=True)
    if label is None and read:
        _read_all(cell, terms, folder, markdown, console, json)
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
    needed = work(wanted, terms)
    if plan:
        _plan(exhibit, needed, folder, console, json)
        return
    if not read:
        _run(needed, folder, jobs, console)
        measure(wanted, terms, folder, lambda text: console.print(text, markup=False))
    entries = _entries(wanted, terms, _there(terms, folder) if read else finder(terms, folder))
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


def _run(needed: Sequence[Work], folder: Path, jobs: int | None, console: Console) -> None:
    """Start, go on with, or skip."""
    from ..reports.reproduction import runs_by_key, settled

    there = runs_by_key(folder) if folder.exists() else {}
    todo = []
    for one in needed:
        path = next(iter(there.get(one.key, [])), folder / one.name)
        if not (path.exists() and settled(path, one.config.training.rounds)):
            todo.append(Started(one.method, path, one.config))
    if done := len(needed) - len(todo):
        console.print(f"{done} of {len(needed)} runs are there already")
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


def _there(terms: Terms, folder: Path) -> Finder:
    """The runs of a folder that is read and not added to: there must be some."""
    from ..reproduction import finder

    find = finder(terms, folder)
    if find.empty:
        raise InvalidInput(f"{folder}: holds no run")
    return find


def _entries(wanted: Sequence[Cell], terms: Terms, find: Finder) -> list[Entry]:
    from ..reports.reproduction import entry

    return [entry(cell, terms.seeds_of(cell), find, scaled=terms.scale is not None) for cell in wanted]


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
    from ..reproduction import Needs

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
        entries = _entries(wanted, terms, find)
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


def _list(console: Console, terms: Terms, as_json: bool) -> None:
    """All exhibits with what each needs."""
    from ..reports import paper
    from ..reproduction import Needs, Rates, counted

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
            counted(row["runs"]),
            f"{row['rounds']:,} rounds",
            *([f"{time} here"] if row["seconds"] or row["whole"] else []),
            *([f"{size(row['disk'])} of disk"] if row["disk"] else []),
        ]
        console.print(f"[bold]{row['label']}[/bold]  {row['about']}", highlight=False)
        console.print(f"    [dim]{'; '.join(asks)}[/dim]", highlight=False)
    for reason in dict.fromkeys(reason for row in rows for reason in row["missing"]):
        console.print(f"missing: {reason}", markup=False)
    console.print("Runs are shared between tables. +: without what is missing. Do one: fedgloss reproduce LABEL")


def _plan(exhibit: Exhibit, needed: Sequence[Work], folder: Path, console: Console, as_json: bool) -> None:
    """Every run with its time here; what is there already costs nothing."""
    from ..reports.reproduction import runs_by_key, settled
    from ..reproduction import counted, forecast_of

    there = runs_by_key(folder) if folder.exists() else {}
    rows: list[dict[str, Any]] = []
    missing: dict[str, bool] = {}
    measured: dict[str, Forecast | None] = {}
    for one in needed:
        path = next(iter(there.get(one.key, [])), None)
        done = path is not None and settled(path, one.config.training.rounds)
        if one.method not in measured:
            try:
                measured[one.method] = forecast_of(one.config)
            except InvalidInput as error:
                missing[str(error)] = True
                measured[one.method] = None
        found = measured[one.method]
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
            f"{counted(len(rows))}, {duration(total['seconds'])} one after another, {size(total['disk'])} of disk "
            f"({size(total['free'])} free here)" + (", without what is missing" if missing else "")
        )
        for reason in missing:
            console.print(f"missing: {reason}", markup=False)
    if missing:
        raise SystemExit(1)
