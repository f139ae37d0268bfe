"""Checkpoints: everything a run needs to go on to the same bits, written so that a crash can never spoil it.

A checkpoint is a server state, the versions of the clients' memories it belongs with, and how long the records
were. The small manifest is written last and renamed into place: it names only files that are already on the disk,
so a checkpoint with a manifest is a whole one. Client memories are saved incrementally: each checkpoint appends the
versions that changed to ``clients/versions.jsonl``, and a manifest says how much of that file is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from .codec import decode, encode
from .environment import code_fingerprint
from .errors import InvalidInput, require
from .files import write_atomically
from .messages import ServerState
from .records import FORMAT, Journal, RunFolder, read_json, read_lines, write_json


class VersionedMemories(Protocol):
    """The clients' memories as a checkpoint sees them: a version, the round of its making, for each client."""

    def flush(self) -> dict[int, int]:
        """Make every memory durable; returns the versions that changed since the last flush."""

    def collect(self, kept: Iterable[int]) -> None:
        """Let go of versions that none of the ``kept`` checkpoints (rounds done) needs any more."""

    def restore(self, kept: Sequence[Mapping[int, int]]) -> None:
        """Take up the versions of the newest of the ``kept`` checkpoints."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    round: int
    layout: str
    config: str
    lengths: Mapping[str, NonNegativeInt]
    studied: bool = False  # kept for studies over time, whatever is asked for later
    code: str = ""
    format: int = FORMAT


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: RunFolder, *, keep_every: int | None = None) -> None:
        self.folder = folder
        self.keep_every = keep_every
        self._versions = folder.clients / "versions.jsonl"
        self._journal: Journal | None = None
        self._studied: set[int] = set()

    def rounds(self) -> list[int]:
        """The rounds done at each whole checkpoint, in order."""
        try:
            names = [path for path in self.folder.checkpoints.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InvalidInput(f"{self.folder.checkpoints}: cannot be read ({error.strerror})") from None
        return sorted(int(path.stem) for path in names if path.stem.isdecimal())

    def newest(self) -> int | None:
        """The rounds done at the newest checkpoint, None before there is any.

        A run saves its first state before its first record: records without a checkpoint have lost theirs.
        """
        kept = self.rounds()
        if not kept and self.folder.rounds.exists() and self.folder.rounds.stat().st_size:
            raise InvalidInput(
                f"{self.folder.path}: has records but no checkpoint; put {self.folder.checkpoints.name}/ back, "
                "or choose another folder"
            )
        return max(kept, default=None)

    def manifest(self, done: int) -> Manifest:
        path = self._path(done, "json")
        content = read_json(path)
        if content.get("format", FORMAT) != FORMAT:
            raise InvalidInput(f"{path}: format {content['format']!r}; this fedgloss reads format {FORMAT}")
        try:
            found = TypeAdapter(Manifest).validate_python(content)
        except ValidationError:
            raise InvalidInput(f"{path}: is not a checkpoint's manifest") from None
        require({"rounds", "versions"} <= found.lengths.keys(), str(path), "is not a checkpoint's manifest")
        return found

    def state(self, done: int) -> ServerState:
        path = self._path(done, "safetensors")
        try:
            return decode(ServerState, path.read_bytes())
        except (OSError, InvalidInput) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidInput(f"{path}: the checkpoint cannot be read ({reason})") from error

    def versions(self, done: int) -> dict[int, int]:
        """Each client's version at a checkpoint."""
        if not self._versions.exists():
            return {}
        found: dict[int, int] = {}
        for line in read_lines(self._versions):
            if line["rounds"] > done:
                break
            found.update((int(client), version) for client, version in line["versions"].items())
        return found

    def open(self, done: int | None) -> None:
        """Get ready to save, after checkpoint ``done`` or from the start."""
        self.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        self.folder.clients.mkdir(parents=True, exist_ok=True)
        length = 0 if done is None else self.manifest(done).lengths["versions"]
        self._journal = Journal(self._versions, length)
        self._studied = {d for d in self.rounds() if self._is_due(d) or self.manifest(d).studied}

    def save(
        self,
        state: ServerState,
        store: VersionedMemories,
        *,
        layout: str,
        config: str,
        journals: Mapping[str, Journal],
    ) -> None:
        """Make ``state`` and all it belongs with durable, then let go of what only older checkpoints needed."""
        if self._journal is None:
            raise RuntimeError("open() comes before save()")
        changed = store.flush()
        if changed:
            self._journal.append({"rounds": state.round, "versions": changed})
        write_atomically(self._path(state.round, "safetensors"), encode(state))
        lengths = {name: journal.sync() for name, journal in journals.items()}
        lengths["versions"] = self._journal.sync()
        if self._is_due(state.round):
            self._studied.add(state.round)
        studied = state.round in self._studied
        manifest = Manifest(state.round, layout, config, lengths, studied, code_fingerprint())
        write_json(self._path(state.round, "json"), asdict(manifest))
        kept = [done for done in self.rounds() if self._is_kept(done, state.round)]
        for done in set(self.rounds()) - set(kept):
            self._path(done, "json").unlink()
            self._path(done, "safetensors").unlink(missing_ok=True)
        store.collect(kept)

    def restore(self, done: int | None, store: VersionedMemories) -> None:
        """Bring folder and store to the very state of checkpoint ``done`` (None: none), whatever a crash left."""
        kept = [] if done is None else [d for d in self.rounds() if d <= done and self._is_kept(d, done)]
        names = {f"{d:08d}" for d in kept}
        for path in self.folder.checkpoints.iterdir():
            if path.stem not in names:
                path.unlink()
        store.restore([self.versions(d) for d in kept])

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _is_kept(self, done: int, newest: int) -> bool:
        # the one before the newest stays too when it is the round before: local models are recomputed from it
        return done >= newest - 1 or done in self._studied

    def _is_due(self, done: int) -> bool:
        return self.keep_every is not None and done % self.keep_every == 0

    def _path(self, done: int, suffix: str) -> Path:
        return self.folder.checkpoints / f"{done:08d}.{suffix}"


def summary_of_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``key: old -> new`` for every value in which two configurations differ."""
    lines = []
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += summary_of_differences(before, after, f"{name}.")
        elif before != after:
            lines.append(f"{name}: {before!r} -> {after!r}")
    return lines
