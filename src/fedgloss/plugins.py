"""What users bring along: a function named as ``my_package:make_something``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from .errors import InvalidInput


def find(name: str, what: str) -> Callable[..., Any]:
    """The function behind ``my_package.module:function``, from an installed package or the current folder.

    ``what`` begins the message when there is none.

    >>> find("math:sqrt", "model")(9)
    3.0
    """
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: a file beside the user's own is found
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidInput(f"{what} {name!r}: cannot import {module_name!r} ({error})") from error
    except ValueError as error:  # an empty module name
        raise InvalidInput(f"{what} {name!r}: write it as package.module:function") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InvalidInput(f"{what} {name!r}: {module_name} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found
