"""`sweep`: search hyper-parameters on validation data."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config import Config
from ..errors import require
from ..records import RunFolder
from .comparing import seeds_of
from .options import KEYS, Asked, Json, Quiet, RunsFolder, Seeds, Source, configurable
from .progress import ShowProgress
from .tables import CROSS


def paper_grid(source: str, config: Config) -> dict[str, list[Any]]:
    """The values the paper tried for this preset and method."""
    from ..reports.paper import FIXED_CLIENTS, grid

    name = config.algorithm["name"]
    client = FIXED_CLIENTS.get(name, config.algorithm.get("client", "sgd"))
    return {f"algorithm.{key}": list(values) for key, values in grid(source, name, client).items()}


@configurable(*(name for name in KEYS if name != "seed"))
def sweep(
    source: Source,
    *,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", "-g", metavar="KEY=V1,V2", help="Values to try; give it several times."),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper-grid", help="The paper's own grid for this method.")] = False,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="At most so many points, chosen by TPE.")
    ] = None,
    seeds: Seeds = "0",
    asked: Asked,
    out: RunsFolder = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Search hyper-parameters. Points are judged on a validation share of the training data, never on the test set,
    by their mean over the seeds. Several processes may work on the same sweep, each with --workers; one that was
    stopped goes on."""
    from ..job import build_execution, build_job
    from ..run import execute
    from ..sweep import parse_grid, search, size_of

    console = Console(stderr=json, quiet=quiet)

    def make(point: Mapping[str, Any]) -> Config:
        judged = {**point, "training.evaluate_on": "validation"}
        config = asked.of(source, judged).config
        return config if config.data.validation else asked.of(source, {**judged, "data.validation": 0.1}).config

    def run_point(config: Config, folder: Path) -> Mapping[str, Any]:
        job = build_job(config)
        with ShowProgress(console, folder.name) as shown:
            summary = execute(job, RunFolder(folder), build_execution(config), [shown])
        if summary["status"] == "interrupted":
            console.print("stopped; all is saved. The same command goes on.")
            raise SystemExit(130)
        return summary

    chosen = seeds_of(seeds)
    base = make({"training.seed": chosen[0]})
    require(not (paper and grid), "--paper-grid", "is a grid already; leave out --grid")
    space = paper_grid(source, base) if paper else parse_grid(grid or [])
    require(bool(space), "--grid", "names nothing to try")
    require("training.seed" not in space, "--grid training.seed", "give the seeds by --seeds")
    for key, values in space.items():
        for value in values:
            make({key: value})  # a value that cannot be is refused before anything runs
    build_job(base)  # and so are data or clients that are not there
    folder = out or Path("runs") / f"{Path(source).stem}-{base.algorithm['name']}-sweep"
    found = search(space, make, run_point, folder, seeds=chosen, trials=trials)
    if json:
        rows = [
            {
                "settings": dict(t.settings),
                "value": t.value,
                "values": t.values,
                "runs": [str(f) for f in t.folders],
            }
            for t in found
        ]
        print(json_module.dumps({"out": str(folder), "seeds": chosen, "trials": rows}))
        return
    by_seed = [f"seed {seed}" for seed in chosen] if len(chosen) > 1 else []
    table = Table(*space, "validation accuracy %", *by_seed, "run", box=None, pad_edge=False)
    for trial in found:
        reached = (trial.value, *trial.values) if by_seed else (trial.value,)
        settings = (escape(str(trial.settings[key])) for key in space)
        shown = (CROSS if value is None else f"{100 * value:.2f}" for value in reached)
        table.add_row(*settings, *shown, " ".join(folder.name for folder in trial.folders))
    console.print(table)
    console.print(f"runs: {escape(str(folder / 'trials'))}", highlight=False, soft_wrap=True)
    missing = size_of(space) - len(found)
    if trials is None and missing:
        console.print(f"{missing} more with other processes; the same command shows them when they are done")
    if found and found[0].value is not None:
        best = " ".join(f"--set {key}={json_module.dumps(value)}" for key, value in found[0].settings.items())
        console.print(f"best on validation data: {escape(best)}", highlight=False)
