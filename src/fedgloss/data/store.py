"""Pictures on disk: converted once into plain uint8 arrays, mapped into memory by every worker that reads them.

A store is a folder: ``header.json`` (format version, sources with their checksums, shapes) and one raw file per
array. It is built beside its place and moved there when complete, under a lock, so that it is whole or absent. Its
folder's name carries the sizes and times of its sources, so that changed sources get a new store.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from ..errors import InvalidInput
from ..files import cache_folder, sync_folder, write_atomically
from .federation import ArraySamples, Indices, Samples

FORMAT = 1
FEW = 1 << 30  # bytes of pictures that every worker may put on its device; CIFAR has 0.2 GB


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class MappedArray:
    """An array in a file, mapped read-only. It travels to other processes as its path, never as its content."""

    path: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize) * int(np.prod(self.shape, dtype=np.int64))

    @cached_property
    def array(self) -> npt.NDArray[Any]:
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise InvalidInput(f"{self.path}: the store is gone; load the data set again") from error
        if size != self.bytes:
            raise InvalidInput(f"{self.path}: {size} bytes instead of {self.bytes}; load the data set again")
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=self.shape).view(np.ndarray)

    def take(self, rows: Indices) -> npt.NDArray[Any]:
        return np.take(self.array, rows, axis=0)  # a copy: what is mapped stays as it is

    def prepare(self, rows: Indices) -> None:
        """They are at hand."""

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "dtype": self.dtype, "shape": self.shape}


class Pictures(Protocol):
    """Pictures by row: an array in a file, or picture files that are decoded when they are first taken."""

    def take(self, rows: Indices) -> npt.NDArray[Any]:
        """Copies, in the order asked for."""

    def prepare(self, rows: Indices) -> None:
        """Do now what taking these would do."""


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Pictures of a store: sample i is row ``rows[i]``, so that parts and replacements cost one index array."""

    pictures: Pictures
    rows: Indices
    labels: Indices

    @property
    def targets(self) -> Tensor:
        return torch.from_numpy(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, indices: Indices) -> StoredSamples:
        return StoredSamples(self.pictures, self.rows[indices], self.labels[indices])

    def prepare(self, indices: Indices) -> None:
        """Do now, on all cores, what fetching these would do."""
        self.pictures.prepare(self.rows[indices])

    def fetch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.pictures.take(self.rows[indices])), torch.from_numpy(self.labels[indices])

    def to(self, device: torch.device) -> Samples:
        """All of them on the device where they are at hand and few enough, else as they are."""
        if not isinstance(self.pictures, MappedArray) or self.pictures.bytes > FEW:
            return self
        return ArraySamples(*self.fetch(np.arange(len(self), dtype=np.int64))).to(device)


@dataclass(frozen=True)
class Store:
    """A complete store, open for reading."""

    folder: Path
    header: Mapping[str, Any]

    def mapped(self, name: str) -> MappedArray:
        facts = self.header["arrays"][name]
        return MappedArray(self.folder / f"{name}.bin", facts["dtype"], tuple(facts["shape"]))

    def array(self, name: str) -> npt.NDArray[Any]:
        return self.mapped(name).array

    def __contains__(self, name: str) -> bool:
        return name in self.header["arrays"]

    @property
    def notes(self) -> dict[str, Any]:
        """Provenance for a run's records."""
        return {"sources": self.header["sources"], **self.header["notes"]}

    @property
    def digest(self) -> str:
        """One checksum of pictures and labels, whatever file format they came from."""
        parts = [self.header["arrays"][name]["sha256"] for name in ("pictures", "labels")]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def parts(self, train: int) -> tuple[StoredSamples, StoredSamples]:
        """The first ``train`` pictures to train on, the others to test on."""
        pictures, labels = self.mapped("pictures"), self.array("labels").astype(np.int64)
        rows = np.arange(len(labels), dtype=np.int64)
        return (
            StoredSamples(pictures, rows[:train], labels[:train]),
            StoredSamples(pictures, rows[train:], labels[train:]),
        )


class Writer:
    """Arrays under construction: each is appended to piece by piece, so memory stays small."""

    def __init__(self, folder: Path) -> None:
        self.notes: dict[str, Any] = {}
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, Any] = {}

    def append(self, name: str, piece: npt.NDArray[Any]) -> None:
        if name not in self._files:
            with writing_cache():
                self._files[name] = (self._folder / f"{name}.bin").open("wb")
            self._arrays[name] = {"dtype": piece.dtype.str, "shape": [0, *piece.shape[1:]]}
            self._digests[name] = hashlib.sha256()
        facts = self._arrays[name]
        assert [piece.dtype.str, *piece.shape[1:]] == [facts["dtype"], *facts["shape"][1:]], name
        content = np.ascontiguousarray(piece).view(np.uint8).reshape(-1).data
        with writing_cache():
            self._files[name].write(content)
        self._digests[name].update(content)
        facts["shape"][0] += len(piece)

    def finish(self, sources: Sequence[Path], hashed: bool) -> None:
        for name, digest in self._digests.items():
            self._arrays[name]["sha256"] = digest.hexdigest()
        files = [
            {"file": str(s), "bytes": s.stat().st_size} | ({"sha256": sha256(s)} if hashed else {}) for s in sources
        ]
        header = {"format": FORMAT, "sources": files, "arrays": self._arrays, "notes": self.notes}
        with writing_cache():
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            write_json(self._folder / "header.json", header)

    def abandon(self) -> None:
        """Close the files of a conversion that failed; what could not be written no longer matters."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()


def converted(
    name: str, sources: Sequence[Path], convert: Callable[[Writer], None], *, hashed: bool = True
) -> Store:
    """The store of these sources; ``convert`` fills it when it is absent, stale or damaged.

    Its header has the sources' checksums if they are to be ``hashed``, which means to read them whole.
    """
    paths = [str(source.resolve()) for source in sources]
    states = [(s.stat().st_size, s.stat().st_mtime_ns) for s in sources]
    folder = place(name, paths, states)
    store = _opened(folder)
    if store is not None:
        return store
    with locked(folder):
        store = _opened(folder)  # another process may have been faster
        if store is not None:
            return store
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with writing_cache():
            partial.mkdir()
        writer = Writer(partial)
        try:
            convert(writer)
            writer.finish(sources, hashed)
            with writing_cache():
                shutil.rmtree(folder, ignore_errors=True)  # whoever has it mapped keeps what is mapped
                partial.rename(folder)
                sync_folder(folder.parent)
        except BaseException:
            writer.abandon()
            shutil.rmtree(partial, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()
            raise
        forget_others(folder)
        store = _opened(folder)
        assert store is not None
        return store


def place(name: str, made_of: Any, state: Any) -> Path:
    """``<cache>/stores/<name and what it is made of>/<the state that is in>``."""
    return cache_folder() / "stores" / f"{name}-{_short(made_of)}" / _short([FORMAT, state])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder of the cache, whose parent is made."""
    with writing_cache():
        folder.parent.mkdir(parents=True, exist_ok=True)
        locks = cache_folder() / "locks"
        locks.mkdir(exist_ok=True)
        lock = FileLock(locks / f"{folder.parent.name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing_cache() -> Iterator[None]:
    """A cache that cannot be written is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"{cache_folder()}: cannot be written ({error.strerror or error}); "
            "set FEDGLOSS_CACHE to a folder with room"
        ) from error


def forget_others(folder: Path) -> None:
    """Remove the stores of former states of the same sources."""
    for sibling in folder.parent.iterdir():
        if sibling != folder:
            shutil.rmtree(sibling, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True).encode())


def read_header(folder: Path) -> dict[str, Any] | None:
    try:
        header = json.loads((folder / "header.json").read_bytes())
    except (OSError, ValueError):
        return None
    return header if isinstance(header, dict) and header.get("format") == FORMAT else None


def _opened(folder: Path) -> Store | None:
    header = read_header(folder)
    if header is None:
        return None
    store = Store(folder, header)
    try:
        for name in header["arrays"]:
            mapped = store.mapped(name)
            if mapped.path.stat().st_size != mapped.bytes:
                return None
    except (OSError, KeyError, TypeError, ValueError):
        return None
    return store


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]
