"""A run on disk: one folder from which every number can be read again.

``config.toml`` (fully resolved), ``environment.json``, ``federation.json`` (which client has what),
``rounds.jsonl`` (a line a round, and a line an evaluation), ``timings.jsonl`` (what depends on the machine's mood,
so that ``rounds.jsonl`` does not), ``checkpoints/``, ``clients/`` and ``summary.json``. Readers need nothing but
this folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from io import RawIOBase
from pathlib import Path
from typing import Any

from .errors import Busy, InvalidInput
from .files import disk_errors, read_bytes, write_atomically
from .training import Evaluation, Round

FORMAT = 1


class RunFolder:
    """The places in a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.environment = path / "environment.json"
        self.federation = path / "federation.json"
        self.rounds = path / "rounds.jsonl"
        self.timings = path / "timings.jsonl"
        self.summary = path / "summary.json"
        self.lock = path / ".lock"
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.analysis = path / "analysis"

    @property
    def exists(self) -> bool:
        return self.config.is_file()

    @property
    def vacant(self) -> bool:
        """Whether a run may begin here: nothing is there but what one that died at once has left."""
        begun = {self.lock.name, self.environment.name, self.federation.name}
        return all(p.name in begun or p.name.endswith(".part") for p in self.path.iterdir())

    def require(self) -> RunFolder:
        """This folder, if it holds a run of a format we know."""
        if not self.exists:
            raise InvalidInput(f"{self.path}: is not a run (it has no config.toml)")
        found = read_json(self.environment).get("format")
        if found != FORMAT:
            raise InvalidInput(f"{self.environment}: run format {found!r}; this fedgloss reads format {FORMAT}")
        return self

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run against a second writer. The lock ends with the process, however that ends."""
        with disk_errors(self.path):
            file = self.lock.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(f"{self.path}: another process is writing to this run") from None
            yield

    @property
    def busy(self) -> bool:
        """Whether a process is writing to this run now. Asking leaves no trace."""
        if not self.lock.exists():
            return False
        try:
            with self.locked():
                return False
        except Busy:
            return True
        except InvalidInput:
            return False


class Journal:
    """A file of JSON lines that only grows, and can be cut back to a known length."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """Open for appending after ``length`` bytes; what lies beyond was written by a run that did not get to
        checkpoint it, and goes."""
        self.path = path
        self._file: RawIOBase = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.seek(max(0, length - 1))
        if length and self._file.read(1) != b"\n":
            self._file.close()
            raise InvalidInput(f"{path}: was changed after the run's checkpoint was made; put it back as it was")
        self._file.truncate(length)
        self._file.seek(length)

    def append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def sync(self) -> int:
        """Make all lines durable; returns the length to cut back to."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def round_line(record: Round) -> dict[str, Any]:
    line = {"type": "round", **asdict(record)}
    if not record.dropped:
        del line["dropped"]
    return line


def evaluation_line(evaluation: Evaluation) -> dict[str, Any]:
    return {"type": "evaluation", **asdict(evaluation)}


def read_lines(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The whole lines of a journal, of one ``type`` if given; a torn last line is left out."""
    found = []
    for number, text in enumerate(read_bytes(path).split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{path}: line {number} is not JSON") from None
        if not isinstance(line, dict):
            raise InvalidInput(f"{path}: line {number} is not a JSON object")
        if kind is None or line.get("type") == kind:
            found.append(line)
    return found


def torn_line(path: Path) -> bool:
    """Whether the last line was cut off in the middle of being written."""
    data = read_bytes(path) if path.exists() else b""
    return bool(data) and not data.endswith(b"\n")


def read_json(path: Path) -> dict[str, Any]:
    data = read_bytes(path)
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path}: is not JSON") from None
    if not isinstance(loaded, dict):
        raise InvalidInput(f"{path}: is not a JSON object")
    return loaded


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(_finite(content), indent=2) + "\n").encode())


def _finite(value: Any) -> Any:
    """JSON knows no NaN: a figure that is not a number becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
