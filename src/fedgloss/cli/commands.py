"""`fedgloss`: one application, assembled from its command groups."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..errors import InvalidInput, WorkerLost
from . import data, federating
from .comparing import compare
from .inspecting import doctor, list_all, runs, show
from .measuring import flatness, interpolate, landscape
from .planning import plan
from .reporting import report, watch
from .reproducing import reproduce
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
app.add_typer(federating.app)
app.command("list")(list_all)
app.command()(show)
app.command()(plan)
app.command()(run)
app.command()(resume)
app.command()(compare)
app.command()(sweep)
app.command()(flatness)
app.command()(landscape)
app.command()(interpolate)
app.command()(runs)
app.command()(report)
app.command()(watch)
app.command()(reproduce)
app.command()(export)
app.command()(doctor)


USAGE_ERROR: Any = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps it


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except InvalidInput as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except WorkerLost as error:
        print(f"error: {error}; all up to the last checkpoint is saved, the same command goes on", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        if not isinstance(error, USAGE_ERROR):
            raise
        if error.format_message():  # none where there was no command at all: the help stands there already
            print(_usage(error), file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """A mistake in the words of the command line, in one line."""
    message = str(error.format_message())
    command = error.ctx.command_path if error.ctx is not None else "fedgloss"
    return f"error: {' '.join(message.split())} (see {command} --help)"
