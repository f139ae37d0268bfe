"""Landmarks-User-160k: photographs of landmarks, each owned by the user who took it (Hsu, Qi and Brown, 2020)."""

from __future__ import annotations

import csv
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import InvalidInput
from .datasets import DATA_SETS, DataSet, Names
from .decoding import Reader, decoded_pictures
from .federation import Indices
from .progress import progress_bar
from .store import MappedArray, StoredSamples, Writer, converted, sha256
from .transforms import LandmarksTransform

NAME = "landmarks-user-160k"
TRAIN, TEST = "federated_train.csv", "test.csv"
CLASSES = 2028
PUBLISHED = {"pictures": 164_172, "users": 1_262, "classes": CLASSES}
IMAGE = re.compile(r"[0-9A-Za-z_-]{1,64}")


def landmarks(
    path: str | Path,
    *,
    images: str | Path | None = None,
    allow_missing: bool = False,
    side: int = 256,
    crop: int = 224,
) -> DataSet:
    """The pictures that ``federated_train.csv`` (user_id, image_id, class) and ``test.csv`` in ``path`` name.

    ``images`` is their folder, by default ``train`` or ``images`` in ``path``, or ``path`` itself: files
    ``a/b/c/abc....jpg`` or ``abc....jpg``, or tar shards. Each picture is decoded once and kept as a square, its
    shorter side scaled to ``side`` and the longer one cut to the same; training and test crop ``crop`` from that.
    """
    folder = _with_lists(Path(path))
    train = _List.read(folder / TRAIN, with_users=True)
    test = _List.read(folder / TEST, with_users=False)
    root = _pictures_folder(Path(path), images)
    ids = np.concatenate([train.images, test.images])
    found = decoded_pictures(
        NAME,
        [str(folder.resolve()), str(root.resolve())],
        [train.checksum, test.checksum],
        names=ids,
        side=side,
        channels=3,
        reader=_reader(root, ids, [train.path, test.path]),
        allow_missing=allow_missing,
        what=NAME,
    )
    notes: dict[str, Any] = {
        "sources": [
            {"file": str(part.path), "bytes": part.path.stat().st_size, "sha256": part.checksum}
            for part in (train, test)
        ],
        "pictures": str(root),
        **found.left_out(),
    }
    sound = found.sound
    kept, tested = sound[sound < len(train.images)], sound[sound >= len(train.images)] - len(train.images)
    owners = _numbered(train.users[kept])
    labels, test_labels = train.labels[kept], test.labels[tested]
    if not len(labels) or not len(test_labels):
        raise InvalidInput(f"{root}: no picture of the training or test list is there")
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    counts = {
        "pictures": len(train.images),
        "users": len(np.unique(train.users)),
        "classes": len(np.unique(train.labels)),
    }
    notes["published"] = counts == PUBLISHED
    notes["users left out"] = counts["users"] - int(owners.max()) - 1
    notes["in both lists"] = len(np.intersect1d(train.images, test.images))
    return DataSet(
        name=NAME,
        train=StoredSamples(found, kept, labels),
        test=StoredSamples(found, tested + len(train.images), test_labels),
        train_labels=labels,
        test_labels=test_labels,
        classes=tuple(str(label) for label in range(classes)),
        transform=LandmarksTransform(crop),
        owners=owners,
        train_names=train.images[kept],
        test_names=test.images[tested],
        notes=notes,
    )


@dataclass(frozen=True)
class _List:
    """A CSV file's columns."""

    path: Path
    checksum: str
    images: Names
    labels: Indices
    users: Names

    @classmethod
    def read(cls, path: Path, *, with_users: bool) -> _List:
        wanted = ("user_id", "image_id", "class") if with_users else ("image_id", "class")
        images: dict[str, int] = {}
        labels: list[int] = []
        users: list[str] = []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file, strict=True)
                if rows.fieldnames is None or not set(wanted) <= set(rows.fieldnames):
                    raise InvalidInput(f"{path}: the first line must name the columns {', '.join(wanted)}")
                for row in rows:
                    line = rows.line_num
                    image, label = row["image_id"], row["class"]
                    if image is None or not IMAGE.fullmatch(image):
                        raise InvalidInput(f"{path}: line {line}: {image!r} is no image_id")
                    if images.setdefault(image, line) != line:
                        raise InvalidInput(f"{path}: line {line}: {image} is already in line {images[image]}")
                    if label is None or not (label.isascii() and label.isdigit() and int(label) < CLASSES):
                        raise InvalidInput(f"{path}: line {line}: class {label!r} is not in 0-{CLASSES - 1}")
                    if with_users and not row["user_id"]:
                        raise InvalidInput(f"{path}: line {line}: user_id is empty")
                    labels.append(int(label))
                    users.append(row["user_id"] if with_users else "")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidInput(f"{path}: cannot be read as CSV ({error})") from error
        if not labels:
            raise InvalidInput(f"{path}: names no picture")
        return cls(path, sha256(path), _bytes(images), np.array(labels, np.int64), _bytes(users))


def _numbered(users: Names) -> Indices:
    """Users as 0, 1, 2, ... in the order of their ids, which are numbers in the published files."""
    ids = users.astype(np.int64) if np.char.isdigit(users).all() else users
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _bytes(texts: Sequence[str] | dict[str, int]) -> Names:
    return np.array([text.encode() for text in texts], np.bytes_)


def _with_lists(path: Path) -> Path:
    for folder in (path, path / NAME):
        if (folder / TRAIN).is_file() and (folder / TEST).is_file():
            return folder
    raise InvalidInput(f"{path}: no {TRAIN} and {TEST} there; {DATA_SETS[NAME].by_hand}")


def _pictures_folder(path: Path, images: str | Path | None) -> Path:
    candidates = [Path(images)] if images is not None else [path / "train", path / "images", path]
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise InvalidInput(f"{candidates[0]}: no such folder of pictures")


def _reader(root: Path, images: Names, lists: Sequence[Path]) -> Reader:
    """For files or, where there are any, tar shards, which are searched once for where each picture lies."""
    shards = sorted(root.glob("*.tar"))
    if not shards:
        return _TreeReader(root.resolve())
    index = converted(f"{NAME}-shards", [*lists, *shards], lambda w: _index(shards, images, w), hashed=False)
    return _ShardReader(index.mapped("shards"), index.mapped("places"))


@dataclass(frozen=True)
class _TreeReader:
    """``a/b/c/abc....jpg`` or ``abc....jpg``."""

    root: Path

    def read(self, number: int, name: str) -> bytes:
        try:
            return self._nested(name).read_bytes()
        except FileNotFoundError:
            return self._flat(name).read_bytes()

    def size(self, number: int, name: str) -> int:
        try:
            return self._nested(name).stat().st_size
        except FileNotFoundError:
            return self._flat(name).stat().st_size

    def _nested(self, image: str) -> Path:
        return self.root.joinpath(*image[:3], f"{image}.jpg")

    def _flat(self, image: str) -> Path:
        return self.root / f"{image}.jpg"


@dataclass(frozen=True)
class _ShardReader:
    """Where each picture's bytes lie (shard, offset, size); they are read from there and nothing is unpacked."""

    shards: MappedArray
    places: MappedArray

    def read(self, number: int, name: str) -> bytes:
        shard, offset, size = self._place(number)
        with open(self.shards.array[shard], "rb") as file:
            file.seek(offset)
            return file.read(size)

    def size(self, number: int, name: str) -> int:
        return self._place(number)[2]

    def _place(self, number: int) -> tuple[int, int, int]:
        shard, offset, size = self.places.array[number].tolist()
        if shard < 0:
            raise FileNotFoundError
        return shard, offset, size


def _index(shards: Sequence[Path], images: Names, writer: Writer) -> None:
    numbers = {image: number for number, image in enumerate(images.tolist())}
    places = np.full((len(images), 3), -1, np.int64)
    with progress_bar("Searching tar shards", len(shards)) as advance:
        for shard, path in enumerate(shards):
            try:
                with tarfile.open(path, "r:") as tar:
                    for member in tar:
                        name = PurePosixPath(member.name)
                        if name.is_absolute() or ".." in name.parts:
                            raise InvalidInput(f"{path}: holds {member.name!r}, which points outside; not used")
                        number = numbers.get(name.stem.encode()) if member.isfile() else None
                        if number is not None:
                            places[number] = shard, member.offset_data, member.size
            except tarfile.TarError as error:
                raise InvalidInput(f"{path}: is damaged or no tar file ({error}); get it again") from error
            advance(1)
    writer.append("places", places)
    writer.append("shards", np.array([os.fsencode(path.resolve()) for path in shards], np.bytes_))
