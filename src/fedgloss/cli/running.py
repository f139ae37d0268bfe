"""`run`, `resume` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..config import Config, Resolved
from ..errors import InvalidInput
from ..records import RunFolder
from .options import Asked, Json, Quiet, RunPath, Source, configurable

Track = Annotated[
    list[str] | None, typer.Option("--track", help="tensorboard, wandb or your own package:function.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; default runs/<name>.")]


def default_folder(config: Config, source: str) -> Path:
    """``runs/<preset>-<method>[-<client>]-alpha<a>-seed<n>``: the same command finds the same run again."""
    algorithm, data = config.algorithm, config.data
    parts = [Path(source).stem, algorithm["name"]]
    parts += [algorithm["client"]] if "client" in algorithm else []
    parts += (
        [f"alpha{data.alpha:g}"]
        if data.split in ("hsu", "official", "dirichlet") and data.alpha is not None
        else []
    )
    parts += [] if data.split == "hsu" else [data.split]
    parts += [] if config.fidelity == "paper" else [config.fidelity]
    return Path("runs") / "-".join([*parts, f"seed{config.training.seed}"])


def carry_out(resolved: Resolved, folder: Path, *, quiet: bool, as_json: bool, track: list[str] | None) -> None:
    """Run or go on with a run, with progress on the terminal."""
    from ..job import build_execution, build_job
    from ..run import execute
    from ..trackers import make_tracker
    from .progress import ShowProgress

    console = Console(stderr=as_json, quiet=quiet)
    job = build_job(resolved.config)
    trackers = [make_tracker(name, folder) for name in track or ()]
    with ShowProgress(console, folder.name) as shown:
        summary = execute(job, RunFolder(folder), build_execution(resolved.config), [shown, *trackers])
    if as_json:
        print(json.dumps({"run": str(folder), **summary}))
    else:
        report(console, folder, summary, resolved.config)
    if summary["status"] == "interrupted":
        raise SystemExit(130)


def report(console: Console, folder: Path, summary: dict[str, Any], config: Config) -> None:
    """What became of the run, in words."""
    from .tables import CROSS, division, size

    traffic = summary["traffic"]
    console.print()
    if summary["status"] == "diverged":
        where = summary["divergence"]
        console.print(
            f"[red]{CROSS} diverged[/red] in round {where['round']}: {escape(where['reason'])}",
            highlight=False,
            soft_wrap=True,
        )
    elif summary["status"] == "interrupted":
        console.print(
            f"stopped after round {summary['rounds']} of {summary['planned_rounds']}, all is saved", soft_wrap=True
        )
        console.print(f"go on with: fedgloss resume {escape(str(folder))}", highlight=False, soft_wrap=True)
    for name, value in summary["reported"].items():
        shown = f"{value:.2%}" if "accuracy" in name else f"{value:.4f}"
        console.print(f"{name}: [bold]{shown}[/bold]", highlight=False, soft_wrap=True)
    console.print(f"data: {escape(division(config.data))}", highlight=False, soft_wrap=True)
    console.print(f"protocol: {summary['protocol']}", highlight=False, soft_wrap=True)
    console.print(
        f"traffic: {size(traffic['bytes'])} in {summary['rounds']} rounds, {traffic['factor']:g}x FedAvg's vectors",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"run: {escape(str(folder))}", highlight=False, soft_wrap=True)


@configurable()
def run(
    source: Source,
    asked: Asked,
    out: Out = None,
    track: Track = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train. The same command again goes on where it stopped, to the same bits."""
    resolved = asked.of(source)
    carry_out(resolved, out or default_folder(resolved.config, source), quiet=quiet, as_json=json, track=track)


@configurable("rounds", "workers", "transport", "address", "on_failure", "client_memory", settings=False)
def resume(path: RunPath, asked: Asked, track: Track = None, quiet: Quiet = False, json: Json = False) -> None:
    """Go on with a run to the same bits, or for more rounds."""
    resolved = asked.of(RunFolder(path).require().config)
    carry_out(resolved, path, quiet=quiet, as_json=json, track=track)


def export(
    path: RunPath,
    to: Annotated[Path, typer.Option("--to", help="model.safetensors, or a plain state dict as .pt.")],
    average: Annotated[bool, typer.Option("--average", help="The mean of the last models instead.")] = False,
) -> None:
    """Write a run's model for use elsewhere, in torch's own names and order."""
    from ..export import export_model, run_config
    from ..records import read_json

    if to.suffix not in (".safetensors", ".pt"):
        raise InvalidInput(f"{to}: ends in neither .safetensors nor .pt")
    folder = RunFolder(path).require()
    done, planned = export_model(folder, to, average=average), run_config(folder).training.rounds
    status = read_json(folder.summary).get("status") if folder.summary.exists() else "unfinished"
    seen = f"after {done} rounds" if done == planned else f"after {done} of {planned} rounds: the run is {status}"
    print(f"wrote {to}, the model {seen}")
