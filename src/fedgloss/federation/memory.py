"""What a site remembers between rounds, on its own disk: right whatever dies, and never ahead of the server.

A version is what the site knew after its update of a round. The server's next message says which of the site's
updates was taken last; that version counts, and others go: one from before it is of no more use, one from after it
belongs to an update that the server never used.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..codec import decode, encode
from ..errors import InvalidInput
from ..files import sync_folder, write_atomically
from ..messages import ClientState

NEVER = -1  # the round of a site's last update that was taken, when none was
_RUN = re.compile(r"[0-9a-f]{32}")


class SiteMemory:
    """The versions of one site's memory in one run; ``size`` is the number of the model's parameters."""

    def __init__(self, folder: Path, run: str, *, size: int) -> None:
        if not _RUN.fullmatch(run):
            raise InvalidInput(f"message: {run[:40]!r} does not name a run")
        self.folder = folder / run
        self.size = size

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One message at a time, whatever delivers them."""
        if not self.folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)  # else a power cut could take the folder with all that is in it
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())

    def settle(self, taken: int, round: int) -> ClientState | None:
        """The memory for a message of ``round``, the server having taken the update of round ``taken`` last."""
        found = self.versions()
        if found and found[-1] > round:
            raise InvalidInput(f"message: of round {round}, but this site has worked on round {found[-1]} already")
        if taken != NEVER and taken not in found:
            raise InvalidInput(
                f"{self.folder}: the server used this site's update of round {taken}, but its memory of it is gone "
                f"(there is {found or 'none'}); restore the folder from a backup"
            )
        for version in found:
            if version != taken:
                self._path(version).unlink()
        if taken == NEVER:
            return None
        try:
            return decode(ClientState, self._path(taken).read_bytes(), size=self.size)
        except (OSError, InvalidInput) as error:
            raise InvalidInput(f"{self._path(taken)}: this site's memory cannot be read ({error})") from error

    def keep(self, round: int, memory: ClientState) -> None:
        """On the disk for good when this returns, and so before the reply leaves."""
        write_atomically(self._path(round), encode(memory))

    def _path(self, version: int) -> Path:
        return self.folder / f"{version}.safetensors"
