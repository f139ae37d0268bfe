"""Files that are whole or not there at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InvalidInput


def cache_folder() -> Path:
    """``$FEDGLOSS_CACHE``, else the platform's place for caches."""
    chosen = os.environ.get("FEDGLOSS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedgloss" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedgloss"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgloss"


def write_atomically(path: Path, data: bytes) -> None:
    """Write, flush to the disk, rename: a crash leaves the old file or the new one, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        error.filename = str(path)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: is not text") from None


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full disk or a read-only folder is the user's to mend: say which, in one line."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{error.filename or path}: cannot write ({error.strerror or error})") from error
