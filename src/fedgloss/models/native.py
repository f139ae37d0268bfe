"""C files of this package, compiled on first use and kept in the cache; who finds no compiler does without."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch
from filelock import FileLock

from ..files import cache_folder

OPTIONS = ("-O3", "-ffp-contract=fast", "-shared", "-fPIC")
INSTRUCTIONS = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
}
"""By what torch uses on this machine, and with torch's own options: nothing here runs that torch would not run."""

PATIENCE = 60.0  # seconds; it takes a tenth of one


class Unavailable(Exception):
    """Why there is no such library here."""


def library(source: Path) -> ctypes.CDLL:
    """The compiled file, from the cache if it is there."""
    capability = torch.backends.cpu.get_cpu_capability()
    if sys.platform != "linux" or capability not in INSTRUCTIONS:
        raise Unavailable(f"made for Linux with AVX2 or AVX-512, here are {sys.platform} and {capability}")
    command = [*shlex.split(os.environ.get("CC") or "cc"), *OPTIONS, *INSTRUCTIONS[capability]]
    made_of = [source.read_text(), *command, platform.machine(), str(os.getuid())]
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    path = cache_folder() / "native" / f"{source.stem}-{key}.so"
    try:
        if not path.exists():
            _compile(command, source, path)
        if path.stat().st_uid != os.getuid():  # in a shared cache: it would run as this user
            raise Unavailable(f"{path} belongs to another user")
        return ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"])[-1]
        raise Unavailable(f"{command[0]} cannot compile {source.name}: {said}") from error
    except (OSError, NotImplementedError, subprocess.TimeoutExpired) as error:  # NotImplementedError: no locks here
        raise Unavailable(str(error)) from error


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Workers that start together wait for the first one; a rename shows the others all of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock"), timeout=PATIENCE):
        if path.exists():
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            subprocess.run(
                [*command, "-o", str(temporary), str(source)],
                check=True,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
