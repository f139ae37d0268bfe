"""Exceptions that cross from the process where they happened to the one that must be told."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass


@dataclass(frozen=True)
class Failed:
    """What went wrong, and where in the worker."""

    error: Exception
    trace: str


def failure(error: Exception) -> Failed:
    """An exception made ready to travel."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception of a kind that cannot travel
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failed(error, trace)


def explained(failed: Failed, where: str) -> Exception:
    """The worker's exception, with where it happened: for whoever reads the traceback."""
    failed.error.add_note(where)
    failed.error.__cause__ = _InWorker(failed.trace)
    return failed.error


class _InWorker(Exception):
    """Carries the traceback that stayed behind in a worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
