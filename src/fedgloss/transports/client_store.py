"""What clients remember between rounds: all in RAM, or on disk under a RAM budget."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from ..codec import decode, encode
from ..errors import InvalidInput
from ..files import sync_folder
from ..messages import ClientState


class ClientStore(Protocol):
    def get(self, client: int) -> ClientState | None:
        """The client's memory, or None if it never took part."""

    def put(self, client: int, memory: ClientState, round: int) -> None:
        """Remember what the client knew at the end of this round."""


class MemoryStore:
    """All memories in RAM; a client that never took part, or keeps nothing, costs nothing."""

    def __init__(self) -> None:
        self._memories: dict[int, ClientState] = {}

    def get(self, client: int) -> ClientState | None:
        return self._memories.get(client)

    def put(self, client: int, memory: ClientState, round: int) -> None:
        if memory:
            self._memories[client] = memory


class DiskStore:
    """The most recently used memories in RAM up to a budget, the others in immutable files.

    A version is named by client and round, and since a run is deterministic that name decides its content: a
    file that a crashed run left behind is what the resumed run would write again. Files are written when a
    memory is pushed out of RAM and when a checkpoint asks (``flush``), not at every participation. The store
    itself never deletes what a checkpoint may still need; ``collect`` is told what that is.
    """

    def __init__(
        self, folder: Path, *, size: int, budget: int | None = None, versions: Mapping[int, int] | None = None
    ) -> None:
        self.folder = folder
        self.size = size
        self.budget = budget
        self.versions: dict[int, int] = dict(versions or {})
        self._memories: OrderedDict[int, ClientState] = OrderedDict()
        self._bytes = 0
        self._unwritten: set[int] = set()
        self._unsynced: list[Path] = []
        self._changed: set[int] = set()
        self._superseded: list[tuple[int, int, int]] = []

    def get(self, client: int) -> ClientState | None:
        if client in self._memories:
            self._memories.move_to_end(client)
            return self._memories[client]
        if client not in self.versions:
            return None
        memory = self.read(client, self.versions[client])
        self._admit(client, memory)
        return memory

    def put(self, client: int, memory: ClientState, round: int) -> None:
        if not memory:
            return
        if client in self.versions and self.versions[client] != round:
            self._superseded.append((client, self.versions[client], round))
        self.versions[client] = round
        self._unwritten.add(client)
        self._changed.add(client)
        self._admit(client, memory)

    def flush(self) -> dict[int, int]:
        """Make every memory durable; returns the versions that changed since the last flush."""
        for client in sorted(self._unwritten):
            self._write(client, self._memories[client])
        self._unwritten.clear()
        folders = {path.parent for path in self._unsynced}
        for path in self._unsynced:
            _sync(path)
        for folder in sorted(folders):
            sync_folder(folder)
        self._unsynced.clear()
        changed = {client: self.versions[client] for client in sorted(self._changed)}
        self._changed.clear()
        return changed

    def collect(self, kept: Iterable[int]) -> None:
        """Delete versions that none of the ``kept`` checkpoints (rounds done) needs any more."""
        rounds = sorted(kept)
        still_needed = []
        for client, version, successor in self._superseded:
            if any(version < done <= successor for done in rounds):
                still_needed.append((client, version, successor))
            else:
                self.path(client, version).unlink(missing_ok=True)
        self._superseded = still_needed

    def sweep(self, needed: Iterable[tuple[int, int]]) -> None:
        """Delete every file but the ``needed`` (client, version) pairs: what a crashed run left behind."""
        wanted = {self.path(client, version) for client, version in needed}
        for path in self.folder.glob("*/*"):
            if path not in wanted:
                path.unlink()

    def path(self, client: int, version: int) -> Path:
        return self.folder / f"{client // 1000:04d}" / f"{client}-{version}.safetensors"

    def read(self, client: int, version: int) -> ClientState:
        path = self.path(client, version)
        try:
            return decode(ClientState, path.read_bytes(), size=self.size)
        except (OSError, InvalidInput) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidInput(f"{path}: the memory of client {client} cannot be read ({reason})") from error

    def _admit(self, client: int, memory: ClientState) -> None:
        if client in self._memories:
            self._bytes -= _bytes(self._memories.pop(client))
        self._memories[client] = memory
        self._bytes += _bytes(memory)
        while self.budget is not None and self._bytes > self.budget and len(self._memories) > 1:
            oldest, pushed_out = self._memories.popitem(last=False)
            self._bytes -= _bytes(pushed_out)
            if oldest in self._unwritten:
                self._write(oldest, pushed_out)
                self._unwritten.discard(oldest)

    def _write(self, client: int, memory: ClientState) -> None:
        path = self.path(client, self.versions[client])
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_bytes(encode(memory))
        temporary.replace(path)
        self._unsynced.append(path)


def _bytes(memory: ClientState) -> int:
    return sum(vector.numel() * vector.element_size() for vector in memory.vectors.values())


def _sync(path: Path) -> None:
    if not path.exists():  # superseded and collected before it was ever needed
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
