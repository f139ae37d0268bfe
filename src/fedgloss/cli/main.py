"""`fedgloss`: one application, assembled from its command groups."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..errors import InvalidInput
from . import data
from .comparing import compare
from .inspecting import doctor, list_all, runs, show
from .planning import plan
from .running import export, resume, run
from .sweeping import sweep

app = typer.Typer(
    name="fedgloss",
    help="Sharpness-aware federated learning: train, compare, measure flatness, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


app.add_typer(data.app)
app.command("list")(list_all)
app.command()(show)
app.command()(plan)
app.command()(run)
app.command()(resume)
app.command()(compare)
app.command()(sweep)
app.command()(runs)
app.command()(export)
app.command()(doctor)


USAGE_ERROR = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps it


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except InvalidInput as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except USAGE_ERROR as error:
        context, message = getattr(error, "ctx", None), " ".join(str(error.format_message()).split())
        if "Usage:" in message:  # no command at all: the message is the help
            print(error.format_message())
        else:
            command = context.command_path if context is not None else "fedgloss"
            print(f"error: {message} (see {command} --help)", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
