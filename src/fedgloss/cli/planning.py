"""`plan`: what a run would take, before anything runs."""

from __future__ import annotations

import json as json_module
import shutil
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..errors import InvalidInput
from .options import Asked, Json, Source, configurable
from .tables import size


def duration(seconds: float) -> str:
    """Two units are enough: 3 h 20 min."""
    for unit, length, smaller in (("d", 86400, "h"), ("h", 3600, "min"), ("min", 60, "s")):
        if seconds >= length:
            rest = {"h": 3600, "min": 60, "s": 1}[smaller]
            return f"{int(seconds // length)} {unit} {int(seconds % length // rest)} {smaller}"
    return f"{seconds:.1f} s"


@configurable()
def plan(source: Source, asked: Asked, json: Json = False) -> None:
    """What a run would take: time (measured on a few real steps), RAM, disk, bytes, and what is missing."""
    from ..job import build_execution, build_job, build_local
    from ..plan import forecast
    from ..transports import usable_workers

    resolved = asked.of(source)
    console = Console(highlight=False)
    execution = build_execution(resolved.config)
    try:
        job = build_job(resolved.config)
    except InvalidInput as error:
        if json:
            print(json_module.dumps({"missing": str(error)}))
        else:
            console.print(f"[yellow]missing:[/yellow] {escape(str(error))}")
        raise SystemExit(1) from None
    workers = usable_workers(execution.workers, resolved.config.run.device)
    found = forecast(job, build_local(resolved.config), execution, workers)
    free = shutil.disk_usage(Path.cwd()).free
    if json:
        print(json_module.dumps({**asdict(found), "seconds": found.seconds, "missing": None}))
        return
    traffic = found.bytes_down + found.bytes_up
    console.print(f"network     {escape(resolved.config.model.name)}, {found.parameters:,} parameters")
    console.print(f"federation  {found.clients:,} clients, {found.cohort:g} a round, {found.rounds:,} rounds")
    console.print(
        f"time        [bold]{duration(found.seconds)}[/bold]: {found.seconds_per_round:.3g} s a round, "
        f"{found.evaluations} evaluations of {found.seconds_per_evaluation:.3g} s, {found.workers} workers"
    )
    console.print(f"memory      about {size(found.memory)}")
    console.print(f"disk        {size(found.disk)} at the end ({size(free)} free here)")
    console.print(f"wire        {size(traffic)}: {size(found.bytes_down)} down, {size(found.bytes_up)} up")
    console.print("missing     nothing")
    if found.disk > free:
        console.print("[yellow]note:[/yellow] this is more disk than there is")
