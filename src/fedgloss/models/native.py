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

from ..files import cache_folder, sync_folder

OPTIONS = ("-O3", "-ffp-contract=fast", "-shared", "-fPIC")
INSTRUCTIONS = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
}
"""By what torch uses on this machine, and with torch's own options: nothing here runs that torch would not run."""

PATIENCE = 60.0  # seconds; it takes a tenth of one
CHECKSUM = 32  # bytes


class Unavailable(Exception):
    """Why there is no such library here."""


def library(source: Path) -> ctypes.CDLL:
    """The compiled file, from the cache if it is there, whole, and nobody else's to write."""
    capability = torch.backends.cpu.get_cpu_capability()
    if sys.platform != "linux" or capability not in INSTRUCTIONS:
        raise Unavailable(f"made for Linux with AVX2 or AVX-512, here are {sys.platform} and {capability}")
    compiler = os.environ.get("CC") or "cc"
    try:
        command = [*shlex.split(compiler), *OPTIONS, *INSTRUCTIONS[capability]]
        made_of = [source.read_text(), *command, platform.machine()]
        key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
        path = cache_folder() / f"native-{os.getuid()}" / f"{source.stem}-{key}.so"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path.parent)
        if not _whole(path):
            _compile(command, source, path)
        _require_own(path)
        return ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"])[-1]
        raise Unavailable(f"{compiler} cannot compile {source.name}: {said}") from error
    except ValueError as error:  # of shlex
        raise Unavailable(f"CC={compiler}: {error}") from error
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # RuntimeError: no home, or no locks here
        raise Unavailable(str(error)) from error


def _require_own(path: Path) -> None:
    """What others could have written would run as this user."""
    facts = path.lstat()
    if facts.st_uid != os.getuid():
        raise Unavailable(f"{path} belongs to another user")
    if facts.st_mode & 0o022:
        raise Unavailable(f"{path} can be written by others; delete it")


def _whole(path: Path) -> bool:
    """Whether the file is there and ends with the checksum of all before: a damaged one would kill the process."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Workers that start together wait for the first one; a rename shows the others all of the file or nothing."""
    with FileLock(path.with_suffix(".lock"), timeout=PATIENCE):
        if _whole(path):
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
            content = temporary.read_bytes()
            temporary.chmod(0o700)
            with temporary.open("ab") as file:
                file.write(hashlib.sha256(content).digest())  # the loader reads nothing behind its sections
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
