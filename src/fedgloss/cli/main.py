"""`fedgloss`: one application, assembled from its command groups."""

from __future__ import annotations

import sys

import typer

from ..errors import InvalidInput
from . import data

app = typer.Typer(
    name="fedgloss",
    help="Sharpness-aware federated learning: train, compare, measure flatness, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.add_typer(data.app)


@app.callback()
def root() -> None:
    """Global options come here."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
