"""Data flows one way through the folders: no module imports against the arrows."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedgloss

ROOT = Path(fedgloss.__file__).parent
MAY_IMPORT = {  # a module below fedgloss, as a rule by its first name -> what it may use
    "errors": set(),
    "compute": {"errors"},
    "forkserver": set(),
    "files": {"errors"},
    "randomness": set(),
    "vectors": {"errors"},
    "messages": {"vectors"},
    "schedules": {"errors"},
    "codec": {"errors", "messages"},
    "algorithm": {"errors", "messages", "vectors"},
    "gradients": {"algorithm", "errors", "schedules", "vectors"},
    "local": {"algorithm", "errors", "gradients", "messages", "schedules", "vectors"},
    "server_optimizers": {"errors", "messages", "vectors"},
    "algorithms": {
        "algorithm", "errors", "gradients", "local", "messages", "schedules", "server_optimizers", "vectors",
    },
    "plugins": {"errors"},
    "data": {"errors", "files", "plugins", "randomness"},
    "models": {"errors", "files", "plugins", "vectors"},
    "sampling": {"errors", "randomness"},
    "divergence": {"errors", "messages", "vectors"},
    "tasks": {"compute", "data", "errors", "messages", "randomness", "vectors"},
    "precision": {"compute", "errors", "models", "tasks", "vectors"},
    "transports": {
        "algorithm", "codec", "compute", "data", "divergence", "environment", "errors", "files", "forkserver",
        "messages", "precision",
        "tasks", "vectors",
    },
    "diagnostics": {"algorithm", "codec", "messages", "vectors"},
    "training": {
        "algorithm", "compute", "diagnostics", "divergence", "errors", "forkserver", "messages", "precision",
        "sampling", "tasks", "transports", "vectors",
    },
    "environment": set(),
    "records": {"errors", "files", "training"},
    "checkpoint": {"codec", "environment", "errors", "files", "messages", "records"},
    "costs": set(),
    "config": {"algorithms", "compute", "data", "errors", "files"},
    "run": {
        "algorithm", "algorithms", "checkpoint", "compute", "costs", "data", "environment", "errors", "files",
        "forkserver", "messages", "precision", "records", "tasks", "training", "transports", "vectors",
    },
    "reports": {"costs", "errors", "files", "records"},
    "plan": {
        "algorithm", "compute", "data", "diagnostics", "local", "messages", "run", "tasks", "transports", "vectors",
    },
    "trackers": {"errors", "plugins", "run", "training"},
    "job": {
        "algorithm", "algorithms", "compute", "config", "data", "divergence", "errors", "local", "models", "run",
        "sampling", "tasks", "training",
    },
    "federation": {
        "algorithm", "algorithms", "checkpoint", "codec", "compute", "config", "data", "environment", "errors",
        "files", "gradients", "job", "local", "messages", "records", "run", "sampling", "tasks", "training",
        "transports", "vectors",
    },
    "transports.flower": {"compute", "errors", "federation", "records"},  # an app around the whole
    "export": {"algorithms", "checkpoint", "config", "errors", "files", "job", "records", "vectors"},
    "sweep": {"config", "errors", "files"},
    "analysis": {"compute", "data", "errors", "files", "randomness", "tasks", "vectors"},
    "flatness": {
        "algorithm", "analysis", "checkpoint", "config", "data", "errors", "export", "files", "job", "messages",
        "records", "tasks", "transports", "vectors",
    },
    "reproduction": {
        "algorithms", "config", "data", "errors", "flatness", "job", "plan", "records", "reports", "transports",
    },
    "testing": {"algorithm", "codec", "errors", "messages", "sampling", "transports", "vectors"},
}  # fmt: skip
ANYTHING = {"__init__", "__main__", "cli", "library"}


def imports(path: Path) -> set[str]:
    """The first names below fedgloss that a file imports."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            found |= {target[0]} if target else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedgloss"):
            found.add((node.module or "").split(".")[1] if "." in (node.module or "") else "__init__")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    names = path.relative_to(ROOT).with_suffix("").parts
    unit = ".".join(names) if ".".join(names) in MAY_IMPORT else names[0]
    if unit in ANYTHING:
        return
    assert unit in MAY_IMPORT, f"{unit} has no place in the architecture yet: give it one here"
    assert imports(path) - {unit} <= MAY_IMPORT[unit]


def test_importing_fedgloss_loads_nothing_heavy() -> None:
    code = "import sys, fedgloss; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "torch",
        "ray",
        "flwr",
        "sklearn",
        "matplotlib",
        "plotly",
        "optuna",
        "pandas",
        "typer",
        "PIL",
        "pydantic",
    }
    assert heavy & set(loaded) == set()
