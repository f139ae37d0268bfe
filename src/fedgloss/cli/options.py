"""Options that several commands share, and the configuration they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..algorithms import METHODS
from ..config import Resolved, presets, resolve


def _presets(incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def _methods(incomplete: str) -> list[str]:
    return [name for name in METHODS if name.startswith(incomplete)]


Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE", help="A preset (see fedgloss list) or a TOML file.", autocompletion=_presets
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", "-m", help="The method; the preset's choices for it apply.", autocompletion=_methods),
]
Client = Annotated[str | None, typer.Option("--client", help="The clients' optimiser: sgd or sam.")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="How skewed the clients are; 0: one class each.")]
Split = Annotated[str | None, typer.Option("--split", help="hsu, official, iid, shards, dirichlet or natural.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Go on without missing or corrupt pictures; decodes all first.")
]
Rounds = Annotated[int | None, typer.Option("--rounds", "-t", help="How many rounds.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The run's seed.")]
Fidelity = Annotated[
    str | None, typer.Option("--fidelity", help="paper (default) or released: see docs/fidelity.md.")
]
Workers = Annotated[str | None, typer.Option("--workers", "-w", help="Worker processes: a number, or auto.")]
Transport = Annotated[
    str | None, typer.Option("--transport", help="Where clients train: local (this machine) or ray (a cluster).")
]
Address = Annotated[
    str | None, typer.Option("--address", help="The Ray cluster: auto, local (one of its own) or HOST:PORT.")
]
OnFailure = Annotated[
    str | None, typer.Option("--on-failure", help="When a worker dies, its client: redo (default), drop or stop.")
]
ClientMemory = Annotated[
    str | None,
    typer.Option("--client-memory", help="RAM for the clients' memories, e.g. 2GB; the rest goes to disk."),
]
KeepEvery = Annotated[int | None, typer.Option("--keep-every", help="Keep a checkpoint every so many rounds.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any key of the configuration.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def number_or_text(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


def configured(source: str | Path, settings: list[str] | None = None, **options: Any) -> Resolved:
    """The configuration of a command: its options by their configuration keys (dots written as __)."""
    given = {key.replace("__", "."): value for key, value in options.items() if value is not None}
    return resolve(source, given, settings or ())
