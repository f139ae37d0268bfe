"""Your own pictures: one folder per class; whose they are is in a CSV file, in the folders, or left to a split."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput
from .datasets import DataSet, Names, channel_statistics, held_out
from .decoding import FileReader, decoded_pictures
from .federation import Indices
from .store import StoredSamples
from .transforms import PictureTransform

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
FOLDERS = "folders"


def imagefolder(
    path: str | Path,
    *,
    clients: str | Path | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    side: int = 64,
    channels: int = 3,
    flip: bool = True,
    allow_missing: bool = False,
) -> DataSet:
    """Pictures ``path/<class>/...``, or ``path/train/<class>/...`` with ``path/test/<class>/...`` beside them.

    ``clients`` is a CSV file with the columns image (``<class>/...``) and client, or ``"folders"`` when the
    training pictures lie in ``<client>/<class>/...``; without it a split divides them. Without a test folder,
    ``test_share`` of each class, drawn with ``seed``, is the test set. Every picture is turned upright, its shorter
    side scaled to ``side``, the longer one cut to the same.
    """
    root = Path(path)
    if not root.is_dir():
        raise InvalidInput(f"{root}: no such folder")
    train_root = root / "train" if (root / "train").is_dir() else root
    with_clients = clients == FOLDERS
    listing = _Listing.of(train_root, with_clients)
    test_root = root / "test"
    separate = train_root != root and test_root.is_dir()
    tests = _Listing.of(test_root, False) if separate else None
    classes = sorted(set(listing.classes))
    strangers = sorted(set(tests.classes) - set(classes)) if tests else []
    if strangers:
        raise InvalidInput(f"{test_root / strangers[0]}: no training folder for this class")
    parts = [(listing, train_root)] + ([(tests, test_root)] if tests else [])
    names = _bytes([(base / name).relative_to(root).as_posix() for part, base in parts for name in part.names])
    found = decoded_pictures(
        "imagefolder",
        str(root.resolve()),
        [part.state for part, _ in parts],
        names=names,
        side=side,
        channels=channels,
        reader=FileReader(root.resolve()),
        allow_missing=allow_missing,
        what=str(root),
    )
    notes: dict[str, Any] = {"sources": [{"file": str(root)}], **found.left_out()}

    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number[name] for part, _ in parts for name in part.classes], np.int64)
    owners = _owners(listing, clients)
    sound = found.sound
    is_test = np.zeros(len(labels), bool)
    if tests:
        is_test[len(listing.names) :] = True
    else:
        is_test[sound[held_out(labels[sound], test_share, seed)]] = True
        notes["test"] = f"{test_share} of each class, seed {seed}"
    kept, tested = sound[~is_test[sound]], sound[is_test[sound]]
    train = StoredSamples(found, kept, labels[kept])
    return DataSet(
        name="imagefolder",
        train=train,
        test=StoredSamples(found, tested, labels[tested]),
        train_labels=labels[kept],
        test_labels=labels[tested],
        classes=tuple(classes),
        transform=PictureTransform(*channel_statistics(train), flip=flip),
        owners=None if owners is None else np.unique(owners[kept], return_inverse=True)[1].astype(np.int64),
        train_names=names[kept],
        test_names=names[tested],
        notes=notes,
    )


@dataclass(frozen=True)
class _Listing:
    """Picture files under a folder, in the order of their names."""

    root: Path
    names: list[str]
    classes: list[str]
    clients: list[str]
    state: str

    @classmethod
    def of(cls, root: Path, with_clients: bool) -> _Listing:
        names: list[str] = []
        classes: list[str] = []
        clients: list[str] = []
        state = hashlib.sha256()
        for client in _folders(root) if with_clients else [""]:
            for label in _folders(root / client):
                start = len(names)
                for name, facts in _pictures(root, root / client / label):
                    names.append(name)
                    state.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
                if len(names) == start:
                    raise InvalidInput(f"{root / client / label}: holds no picture ({', '.join(SUFFIXES)})")
                classes += [label] * (len(names) - start)
                clients += [client] * (len(names) - start)
        if not names:
            what = "a folder per client, each with a folder per class" if with_clients else "a folder per class"
            raise InvalidInput(f"{root}: must hold {what}")
        return cls(root, names, classes, clients, state.hexdigest())


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def _pictures(root: Path, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Names relative to ``root``, with size and time."""
    for place, inner, files in os.walk(folder):
        inner.sort()
        for file in sorted(files):
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                whole = Path(place, file)
                yield whole.relative_to(root).as_posix(), whole.lstat()


def _owners(listing: _Listing, clients: str | Path | None) -> Indices | None:
    if clients is None:
        return None
    whose = listing.clients if clients == FOLDERS else _from_csv(Path(clients), listing)
    return np.unique(np.array(whose), return_inverse=True)[1].astype(np.int64)


def _from_csv(path: Path, listing: _Listing) -> list[str]:
    owner: dict[str, str] = {}
    there = set(listing.names)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, strict=True)
            if rows.fieldnames is None or not {"image", "client"} <= set(rows.fieldnames):
                raise InvalidInput(f"{path}: the first line must name the columns image, client")
            for row in rows:
                image, client = row["image"], row["client"]
                if image in owner:
                    raise InvalidInput(f"{path}: line {rows.line_num}: {image} is named twice")
                if image not in there:
                    raise InvalidInput(f"{path}: line {rows.line_num}: {image!r} is not in {listing.root}")
                if not client:
                    raise InvalidInput(f"{path}: line {rows.line_num}: client is empty")
                owner[image] = client
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as CSV ({error})") from error
    for image in listing.names:
        if image not in owner:
            raise InvalidInput(f"{path}: does not say whose {image} is ({len(there) - len(owner)} are not named)")
    return [owner[image] for image in listing.names]


def _bytes(texts: list[str]) -> Names:
    return np.array([os.fsencode(text) for text in texts], np.bytes_)
