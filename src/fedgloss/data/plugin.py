"""Data sets from elsewhere: ``my_package:make_federation``, or an entry point in the group ``fedgloss.data``."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from ..errors import InvalidInput
from .datasets import DATA_SETS

GROUP = "fedgloss.data"


def installed() -> dict[str, str]:
    """Names that installed packages offer, and what each stands for."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def find(name: str) -> Callable[..., Any]:
    """The function behind a name."""
    offered = installed()
    target = name if ":" in name else offered.get(name)
    if target is None:
        known = [*DATA_SETS, *offered]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}, and package:function"
        raise InvalidInput(f"data set {name!r}: unknown; {hint}")
    module_name, _, attribute = target.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a module beside the user's own files, as with `python -m`
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidInput(f"data set {name!r}: cannot import {module_name!r} ({error})") from error
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if function is None or not callable(function):
        raise InvalidInput(f"data set {name!r}: {module_name} has no function {attribute!r}")
    return function
