"""The command line. Each command group is a module here; nothing imports this package."""

from .main import app, main

__all__ = ["app", "main"]
