"""Other projects' simulators, at the same work in the same turns, each in an environment made for it."""

from __future__ import annotations

import shutil
import subprocess
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .engine import ours
from .harness import Line, Turns, Variant, running, take_turns, write

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = Path(__file__).parent / ".environments"
LONGEST_INSTALL = 1800  # seconds


@dataclass(frozen=True)
class Peer:
    """A project as PyPI has it, and the ways to run it that might be its fastest."""

    name: str
    requirements: Sequence[str]
    variants: Sequence[tuple[str, str, Sequence[str], float]]
    """(what it is, runner, arguments, how many times faster we mean to be)"""


PFL = Peer(
    "pfl",
    ["pfl"],
    [
        ("pfl, 1 process, 2 threads", "pfl_research", ["--threads", "2"], 1.7),
        ("pfl, 2 processes, 1 thread each", "pfl_research", ["--processes", "2", "--threads", "1"], 1.7),
    ],
)
FLOWER = Peer(
    "flwr",
    ["flwr[simulation]", "safetensors"],
    [
        ("Flower, 2 actors, clients running our loop", "flower", ["--loop", "ours"], 1.5),
        ("Flower, 2 actors, clients in plain PyTorch", "flower", ["--loop", "plain"], 2.2),
    ],
)


def environment(peer: Peer) -> tuple[str | None, str]:
    """The interpreter of the peer's environment, made if need be, and its version; or None and why not."""
    folder = ENVIRONMENTS / peer.name
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["-c", str(ROOT / "constraints.txt"), *peer.requirements, "torch", "pillow"]
        try:
            done = subprocess.run(install, capture_output=True, text=True, timeout=LONGEST_INSTALL)
        except subprocess.TimeoutExpired:
            return None, f"pip took more than {LONGEST_INSTALL} s"
        if done.returncode != 0:
            return None, (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        (folder / ".complete").touch()
    code = f"from importlib.metadata import version; print(version({peer.name!r}), version('torch'))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return str(python), "{} with torch {}".format(*found.stdout.split())


def against(peer: Peer) -> list[Line]:
    python, about = environment(peer)
    if python is None:
        lines = [Line(f"{peer.name}", f"absent: {about}")]
        write(peer.name, lines, None, {"absent": about})
        return lines
    variants = [Variant(name, runner, arguments, python) for name, runner, arguments, _ in peer.variants]
    try:
        with running([ours("fedgloss"), *variants]) as started:
            turns = take_turns(started)
    except RuntimeError as error:
        lines = [Line(f"{peer.name} {about}", f"absent: {error}")]
        write(peer.name, lines, None, {"absent": str(error), "version": about})
        return lines
    lines = [_line(turns, name, target, peer) for name, _, _, target in peer.variants]
    write(peer.name, lines, turns, {"version": about})
    return lines


def _line(turns: Turns, name: str, target: float, peer: Peer) -> Line:
    """A target holds against the fastest of the variants it is meant for."""
    ratio = turns.ratio(name, "fedgloss")
    alike = [other for other, runner, _, aim in peer.variants if aim == target]
    fastest = min(turns.ratio(other, "fedgloss").median for other in alike)
    if ratio.median > fastest:
        return Line(f"times faster than {name}", ratio.show())
    return Line(f"times faster than {name}", ratio.show(), f"at least {target}", ratio.median >= target)


def pfl() -> list[Line]:
    """pfl-research from PyPI."""
    return against(PFL)


def flower() -> list[Line]:
    """Flower's simulation from PyPI."""
    return against(FLOWER)
