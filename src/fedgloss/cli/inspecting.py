"""`list`, `show`, `runs` and `doctor`: what there is, and what it is set to."""

from __future__ import annotations

import importlib.util
import json as json_module
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..algorithms import METHODS
from ..checkpoint import Checkpoints
from ..config import presets, resolve
from ..errors import InvalidInput
from ..files import disk_errors
from ..records import RunFolder, read_json
from .options import KEYS, Asked, Json, Source, configurable
from .tables import CROSS, size

EXTRAS = {
    "sweep": ("optuna", "fedgloss sweep"),
    "tensorboard": ("tensorboard", "--track tensorboard"),
    "wandb": ("wandb", "--track wandb"),
    "hf": ("datasets", "data sets of Hugging Face"),
    "ray": ("ray", "--transport ray"),
    "flower": ("flwr", "real federations"),
}


def list_all() -> None:
    """Methods, data sets, networks and presets, each with one line."""
    from ..data.datasets import DATA_SETS
    from ..data.federate import SPLITS
    from ..models import MODELS

    console = Console()
    groups = {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "data sets": {name: entry.summary for name, entry in DATA_SETS.items()},
        "splits": {name: split.summary for name, split in SPLITS.items()},
        "networks": {name: model.summary for name, model in MODELS.items()},
        "presets": presets(),
    }
    width = max(len(name) for group in groups.values() for name in group)
    for title, group in groups.items():
        console.print(f"[bold]{title}[/bold]")
        for name, summary in group.items():
            console.print(f"  {name:{width}}  {summary}", highlight=False, soft_wrap=True)
        console.print()


@configurable()
def show(source: Source, asked: Asked, json: Json = False) -> None:
    """The resolved configuration, and where each value comes from."""
    resolved = asked.of(source)
    if json:
        print(json_module.dumps(resolved.config.model_dump(mode="json"), indent=2))
        return
    table = Table("key", "value", "from", box=None, pad_edge=False)
    flags = {key: f"--{name.replace('_', '-')}" for name, (key, _) in KEYS.items()}
    for key, value, origin in resolved.rows():
        origin = flags[key] if origin == "option" else origin
        shown = "-" if value is None else json_module.dumps(value)
        table.add_row(*map(escape, (key, shown, origin)), style="dim" if origin == "default" else None)
    Console().print(table)


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")] = Path("runs"),
    delete: Annotated[list[str] | None, typer.Option("--delete", help="Delete the run of this name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    json: Json = False,
) -> None:
    """List the runs in a folder with their state and size; or delete some."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: no such folder")
    found = {str(p.parent.relative_to(folder)): RunFolder(p.parent) for p in sorted(folder.rglob("config.toml"))}
    unwanted = list(dict.fromkeys(delete or ()))
    for name in unwanted:
        if name not in found:
            raise InvalidInput(f"{folder / name}: is not a run")
        found[name].require()
        if found[name].busy:
            raise InvalidInput(f"{folder / name}: a process is writing to this run; stop it first")
    for name in unwanted:
        if yes or typer.confirm(f"Delete {folder / name} ({size(_size(found[name].path))})?"):
            with disk_errors(found[name].path):
                shutil.rmtree(found.pop(name).path.resolve())
    rows = [_row(name, run) for name, run in found.items()]
    if json:
        print(json_module.dumps(rows, indent=2))
        return
    table = Table("run", "state", "rounds", "accuracy", "size", box=None, pad_edge=False)
    for row in rows:
        accuracy = "-" if row["accuracy"] is None else f"{row['accuracy']:.2%}"
        table.add_row(escape(row["run"]), escape(row["state"]), row["rounds"], accuracy, size(row["bytes"]))
    Console().print(table if rows else f"no runs in {folder}")


def _row(name: str, run: RunFolder) -> dict[str, Any]:
    row: dict[str, Any] = {"run": name, "state": "unfinished", "rounds": "-", "accuracy": None}
    row["bytes"] = _size(run.path)
    try:
        run.require()
        if run.summary.exists():
            summary = read_json(run.summary)
            row["state"] = f"{CROSS} diverged" if summary["status"] == "diverged" else str(summary["status"])
            row["rounds"] = f"{summary['rounds']}/{summary['planned_rounds']}"
            row["accuracy"] = summary["reported"].get("accuracy")
        else:
            saved = max(Checkpoints(run).rounds(), default=0)
            row["rounds"] = f"{saved}/{resolve(run.config).config.training.rounds}"
    except InvalidInput as error:
        return row | {"state": f"unreadable: {error}"}
    except (KeyError, AttributeError):
        return row | {"state": f"unreadable: {run.summary}: is not a run's summary"}
    if run.busy:
        row["state"] = "running"
    return row


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a run that goes on lets go of files meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def doctor(json: Json = False) -> None:
    """What this machine has: versions, cores, data found, extras present."""
    import torch

    from ..data.datasets import DATA_SETS, where
    from ..environment import describe_environment
    from ..models.products import which_products
    from ..precision import try_bfloat16

    facts = describe_environment() | {
        "threads": torch.get_num_threads(),
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "bfloat16": str(try_bfloat16()).removeprefix("bfloat16 "),
        "matrix products": which_products(),
        "data": {name: where(name) for name in DATA_SETS},
        "extras": {name: importlib.util.find_spec(module) is not None for name, (module, _) in EXTRAS.items()},
    }
    facts.pop("command")
    if json:
        print(json_module.dumps(facts, indent=2))
        return
    console = Console(highlight=False)
    for key, value in facts.items():
        if not isinstance(value, dict):
            console.print(f"{key:16} {escape(str(value))}", soft_wrap=True)
    console.print("\n[bold]data[/bold]")
    for name, place in facts["data"].items():
        console.print(f"  {name:22} {escape(place) if place else '[dim]not found[/dim]'}", soft_wrap=True)
    console.print("\n[bold]extras[/bold]")
    for name, present in facts["extras"].items():
        hint = (
            "present" if present else f"[dim]absent: pip install 'fedgloss\\[{name}]' for {EXTRAS[name][1]}[/dim]"
        )
        console.print(f"  {name:22} {hint}", soft_wrap=True)
