"""Options that several commands share, and the configuration they add up to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..algorithms import FIDELITIES, METHODS
from ..config import Resolved, parse_setting, presets, resolve
from ..data.federate import SPLITS
from ..errors import require

CLIENTS = ("sgd", "sam")


def _presets(incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def _one_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def complete_methods(incomplete: str) -> list[str]:
    """The last of several methods with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(last)]


def number_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE", help="A preset (see fedgloss list) or a TOML file.", autocompletion=_presets
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Any key of the configuration.")
]
Fidelity = Annotated[
    str | None,
    typer.Option(
        "--fidelity",
        help="paper (default) or released: see docs/fidelity.md.",
        autocompletion=_one_of(FIDELITIES),
    ),
]
AllowMissing = Annotated[
    bool | None,
    typer.Option("--allow-missing", help="Go on without missing or corrupt pictures; decodes all first."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
RunsFolder = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the runs; default runs/<name>.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds, with commas between them.")]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one a core.")]


def _option(key: str, kind: Any, *flags: str, **details: Any) -> tuple[str, Any]:
    return key, Annotated[kind | None, typer.Option(*flags, **details)]


KEYS: Mapping[str, tuple[str, Any]] = {
    "method": _option(
        "algorithm.name",
        str,
        "--method",
        "-m",
        help="The method; the preset's choices for it apply.",
        autocompletion=_one_of(METHODS),
    ),
    "client": _option(
        "algorithm.client", str, help="The clients' optimiser: sgd or sam.", autocompletion=_one_of(CLIENTS)
    ),
    "alpha": _option("data.alpha", float, help="How skewed the clients are; 0: one class each."),
    "split": _option(
        "data.split",
        str,
        help="hsu, official, iid, shards, dirichlet or natural.",
        autocompletion=_one_of(SPLITS),
    ),
    "allow_missing": ("data.options.allow_missing", AllowMissing),
    "rounds": _option("training.rounds", int, "--rounds", "-t", help="How many rounds."),
    "seed": _option("training.seed", int, help="The run's seed."),
    "fidelity": ("fidelity", Fidelity),
    "workers": _option(
        "run.workers", int, "--workers", "-w", help="Worker processes.", metavar="N|auto", parser=number_or_text
    ),
    "transport": _option(
        "run.transport", str, help="Where clients train: local (this machine) or ray (a cluster)."
    ),
    "address": _option("run.address", str, help="The Ray cluster: auto, local (one of its own) or HOST:PORT."),
    "on_failure": _option(
        "run.on_failure", str, help="When a worker dies, its client: redo (default), drop or stop."
    ),
    "client_memory": _option(
        "run.client_memory", str, help="RAM for the clients' memories, e.g. 2GB; the rest goes to disk."
    ),
    "keep_every": _option("run.keep_every", int, help="Keep a checkpoint every so many rounds."),
}
"""Options that stand for a key of the configuration."""


@dataclass(frozen=True)
class Asked:
    """What a command line asks of the configuration: options by their keys, and the texts of ``--set``."""

    options: Mapping[str, Any]
    settings: Sequence[str] = ()

    def of(self, source: str | Path, more: Mapping[str, Any] | None = None) -> Resolved:
        """The configuration of a preset or file with this over it; ``more`` is what the command itself decides."""
        decided = {key: value for key, value in (more or {}).items() if value is not None}
        for text in self.settings:
            key, _ = parse_setting(text)
            require(key not in decided, f"--set {text}", f"this command decides {key} itself")
        return resolve(source, {**self.options, **decided}, self.settings)


Command = Callable[..., None]


def configurable(*names: str, settings: bool = True) -> Callable[[Command], Command]:
    """A command with the options of these ``names`` (all of ``KEYS`` by default) and ``--set``.

    They stand where the command has its parameter ``asked``, which brings it what they were given.
    """
    keys = {name: KEYS[name] for name in names or KEYS}
    shared = [_parameter(name, annotation) for name, (_, annotation) in keys.items()]
    shared += [_parameter("settings", Settings)] if settings else []

    def with_options(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for place in own.parameters.values()
            for parameter in (shared if place.name == "asked" else [place])
        ]

        def carry_out(**given: Any) -> None:
            options = {key: given.pop(name) for name, (key, _) in keys.items()}
            command(asked=Asked(options, tuple(given.pop("settings", None) or ())), **given)

        carry_out.__name__, carry_out.__doc__ = command.__name__, command.__doc__
        carry_out.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(carry_out)["__signature__"] = own.replace(parameters=parameters)
        return carry_out

    return with_options


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
