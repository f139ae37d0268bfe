"""`federation`: what a real federation starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="federation", help="A real federation of sites, with Flower.", no_args_is_help=True)


@app.callback()
def federation() -> None: ...


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[int, typer.Option("--sites", help="How many sites there are.")] = 3,
    host: Annotated[str, typer.Option("--host", help="The name or address that sites know the server by.")] = (
        "localhost"
    ),
) -> None:
    """Write a ready Flower app, certificates and keys for a trial, and scripts that start it on loopback."""
    from ..federation.create import create

    create(folder, sites=sites, host=host)
    print(f"wrote {folder}")
    print(f"fill in {folder / 'app/federated/data.py'} (as it is, the sites share scikit-learn's digits)")
    print(f"start a trial on this machine with {folder / 'start.sh'}")
