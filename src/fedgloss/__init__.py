"""Sharpness-aware federated learning: FedGloSS and the methods it is compared with."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .library import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Names are looked up when they are asked for: the command line has things to do before torch is loaded."""
    library = import_module(f"{__name__}.library")
    if name != "__all__" and name not in library.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(library, name)
