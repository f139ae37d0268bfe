"""Data sets from elsewhere: ``my_package:make_federation``, or an entry point in the group ``fedgloss.data``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from .. import plugins
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
    return plugins.find(target, "data set")
