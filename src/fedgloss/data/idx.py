"""IDX files, the format of MNIST and its successors: Fashion-MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np

from ..errors import InvalidInput
from .datasets import DATA_SETS, DataSet
from .store import Writer, converted
from .transforms import PictureTransform

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN, STD = (0.2860,), (0.3530,)
PUBLISHED = "c4b2ea55c13cffbc4d02ad37bb90fc330fbc913bf6fae883a5dd4792acb24860"
UINT8 = 8
PIECE = 4096


def where(name: str) -> str | None:
    return str(DEBIAN) if (DEBIAN / f"{FILES[0]}.gz").is_file() else None


def fashion_mnist(path: str | Path | None = None) -> DataSet:
    """60,000 training and 10,000 test pictures of 28 x 28 grey pixels, from four IDX files, gzipped or not."""
    files = [_found(Path(path) if path else DEBIAN, name) for name in FILES]

    def convert(writer: Writer) -> None:
        for part, (images, labels) in zip(("train", "test"), (files[:2], files[2:]), strict=True):
            count = _append_images(writer, images)
            given = _read_labels(labels)
            if len(given) != count:
                raise InvalidInput(f"{labels}: {len(given)} labels for the {count} pictures of {images.name}")
            writer.append("labels", given)
            writer.notes[part] = count

    store = converted("fashion-mnist", files, convert)
    train, test = store.parts(store.notes["train"])
    return DataSet(
        name="fashion-mnist",
        train=train,
        test=test,
        train_labels=train.labels,
        test_labels=test.labels,
        classes=CLASSES,
        transform=PictureTransform(MEAN, STD),
        notes={**store.notes, "published": store.digest == PUBLISHED},
    )


def _found(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise InvalidInput(f"fashion-mnist: no {name} or {name}.gz in {folder}; {DATA_SETS['fashion-mnist'].by_hand}")


def _append_images(writer: Writer, path: Path) -> int:
    with _opened(path, dimensions=3) as (file, (count, height, width)):
        if not 1 <= height * width <= 1 << 16:
            raise InvalidInput(f"{path}: pictures of {height} x {width} pixels")
        if "shape" in writer.notes and writer.notes["shape"] != [height, width]:
            raise InvalidInput(f"{path}: pictures of {height} x {width} pixels beside {writer.notes['shape']}")
        writer.notes["shape"] = [height, width]
        for start in range(0, count, PIECE):
            piece = min(PIECE, count - start)
            content = _exactly(file, piece * height * width, path)
            writer.append("pictures", np.frombuffer(content, np.uint8).reshape(piece, height, width, 1))
        _ends(file, path)
    return count


def _read_labels(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    with _opened(path, dimensions=1) as (file, (count,)):
        labels = np.frombuffer(_exactly(file, count, path), np.uint8).astype(np.int64)
        _ends(file, path)
    if labels.max() >= len(CLASSES):
        raise InvalidInput(f"{path}: label {labels.max()} of picture {labels.argmax()} is not in 0-9")
    return labels


@contextmanager
def _opened(path: Path, dimensions: int) -> Iterator[tuple[IO[bytes], tuple[int, ...]]]:
    """The file after its header, and the sizes that the header states."""
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            file: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=plain)) if zipped else plain
            magic = _exactly(file, 4, path)
            if magic != bytes((0, 0, UINT8, dimensions)):
                raise InvalidInput(f"{path}: starts with {magic.hex()}; no IDX file of bytes in {dimensions}-D")
            sizes = np.frombuffer(_exactly(file, 4 * dimensions, path), ">u4")
            if math.prod(sizes.tolist()) == 0:
                raise InvalidInput(f"{path}: holds nothing")
            yield file, tuple(sizes.tolist())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: is damaged ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror or error})") from error


def _exactly(file: IO[bytes], count: int, path: Path) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise InvalidInput(f"{path}: ends too early")
    return content


def _ends(file: IO[bytes], path: Path) -> None:
    if file.read(1):
        raise InvalidInput(f"{path}: is longer than its header says")
