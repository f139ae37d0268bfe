"""`report` and `watch`: runs as a page to look at."""

from __future__ import annotations

import signal
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import InvalidInput

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold such folders.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    paths: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    open: Open = False,
    latex: Annotated[
        Path | None,
        typer.Option("--latex", metavar="DIR", help="Also write tables as .tex and figures as .pdf there."),
    ] = None,
) -> None:
    """Write one self-contained HTML page with every table and figure of these runs."""
    from ..files import disk_errors, write_atomically
    from ..reports.html import page, page_data
    from ..reports.runs import read_runs
    from ..reports.study import once

    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    runs, skipped = read_runs(paths)
    if not runs:
        raise InvalidInput("\n".join(f"{item.path}: {item.reason}" for item in skipped))
    runs, repeated = once(runs)
    skipped += repeated
    for item in skipped:
        errors.print(f"skipped {item.path}: {item.reason}", markup=False)
    content = page(page_data(runs, skipped)).encode()
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    if latex is not None:
        from ..reports.latex import write_latex

        written = write_latex(runs, latex)
        print(f"{latex}: {len(written)} tables and figures")
    if open:
        webbrowser.open(out.resolve().as_uri())
    print(out)


def watch(
    paths: Runs,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 0,
    every: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between looks at the runs.")] = 2.0,
    open: Open = False,
) -> None:
    """Show the report while runs go on, on this machine alone; runs appear as they start. Ctrl-C ends it."""
    from ..reports.server import Server

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    server = Server(paths, port=port, seconds=every)
    before = signal.signal(signal.SIGTERM, end)
    print(f"{server.address}  (Ctrl-C ends)", flush=True)
    if open:
        webbrowser.open(server.address)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
        signal.signal(signal.SIGTERM, before)
