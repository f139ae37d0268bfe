"""NumPy archives: your own pictures in one ``.npz`` file."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput
from .datasets import DataSet, channel_statistics
from .federation import Indices
from .store import Writer, converted
from .transforms import PictureTransform

LAYOUTS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)
PIECE = 64 << 20
LARGEST_TABLE = 1 << 31  # of labels, clients or names


def npz(path: str | Path, *, flip: bool = True) -> DataSet:
    """Pictures and labels from ``train_images, train_labels, test_images, test_labels``, or as Keras names them.

    Pictures are uint8, (count, height, width) or (count, height, width, channels). ``train_clients``, a number or
    name per training picture, says whose each one is; ``classes`` names the classes.
    """
    store = converted("npz", [existing(path)], lambda writer: convert_archive(Path(path), writer))
    train, test = store.parts(store.notes["train"])
    classes = tuple(store.notes["classes"])
    owners = store.array("owners").astype(np.int64) if "owners" in store else None
    return DataSet(
        name="npz",
        train=train,
        test=test,
        train_labels=train.labels,
        test_labels=test.labels,
        classes=classes,
        transform=PictureTransform(*channel_statistics(train), flip=flip),
        owners=owners,
        notes=store.notes,
    )


def existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    return path


def convert_archive(
    path: Path, writer: Writer, *, classes: int | None = None, shape: tuple[int, int, int] | None = None
) -> None:
    """An archive into a store, its arrays streamed; ``classes`` and ``shape`` where the data set fixes them."""
    try:
        with zipfile.ZipFile(path) as archive:
            _convert(archive, path, writer, classes, shape)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InvalidInput(f"{path}: is damaged or no .npz archive ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror or error})") from error


def _convert(
    archive: zipfile.ZipFile, path: Path, writer: Writer, classes: int | None, shape: tuple[int, int, int] | None
) -> None:
    there = {name.removesuffix(".npy") for name in archive.namelist()}
    layout = next((names for names in LAYOUTS if there >= set(names)), None)
    if layout is None:
        raise InvalidInput(f"{path}: holds {', '.join(sorted(there)) or 'nothing'}; needs {', '.join(LAYOUTS[0])}")
    names = _whole(archive, path, "classes").astype(str).tolist() if "classes" in there else None
    highest = -1
    for part, images, labels in (("train", *layout[:2]), ("test", *layout[2:])):
        given = _labels(archive, path, labels)
        count = 0
        for piece in _pieces(archive, path, images):
            if shape is None:
                shape = piece.shape[1:]
            if piece.shape[1:] != shape:
                raise InvalidInput(f"{path}: {images} holds pictures of {piece.shape[1:]}, should be {shape}")
            writer.append("pictures", piece)
            count += len(piece)
        if count != len(given) or count == 0:
            raise InvalidInput(f"{path}: {count} pictures in {images}, {len(given)} labels in {labels}")
        writer.append("labels", given)
        writer.notes[part] = count
        highest = max(highest, int(given.max()))
    known = classes or (len(names) if names else highest + 1)
    if highest >= known:
        raise InvalidInput(f"{path}: label {highest} is not in 0-{known - 1}")
    writer.notes["classes"] = names or [str(label) for label in range(known)]
    if "train_clients" in there:
        whose = np.unique(_whole(archive, path, "train_clients"), return_inverse=True)[1].reshape(-1)
        if len(whose) != writer.notes["train"]:
            raise InvalidInput(f"{path}: {len(whose)} train_clients for {writer.notes['train']} pictures")
        writer.append("owners", whose.astype(np.int64))


def _labels(archive: zipfile.ZipFile, path: Path, name: str) -> Indices:
    labels = _whole(archive, path, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InvalidInput(f"{path}: {name} must be one whole number per picture, is {labels.dtype} {labels.shape}")
    labels = labels.astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise InvalidInput(f"{path}: {name} holds the label {labels.min()}")
    return labels


def _pieces(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[npt.NDArray[np.uint8]]:
    """Pictures of an array, a bounded number at a time, always with a channel dimension."""
    with archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _header(file, path, name)
        hint = "multiply by 255 and convert" if dtype.kind == "f" else "convert"
        if dtype != np.uint8:
            raise InvalidInput(f"{path}: {name} is {dtype}; {hint} it with .astype('uint8')")
        if len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 3):
            raise InvalidInput(f"{path}: {name} is {shape}, channels first; .transpose(0, 2, 3, 1) puts them last")
        if len(shape) not in (3, 4) or 0 in shape or (len(shape) == 4 and shape[3] > 4):
            raise InvalidInput(f"{path}: {name} is {shape}, should be (count, height, width[, channels])")
        if fortran:
            shape = shape[::-1]
        size = math.prod(shape[1:])
        step = max(1, PIECE // size) if not fortran else shape[0]
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            content = file.read(count * size)
            if len(content) != count * size:
                raise InvalidInput(f"{path}: {name} ends too early")
            piece = np.frombuffer(content, np.uint8).reshape(count, *shape[1:])
            if fortran:
                piece = piece.transpose()
            yield piece if piece.ndim == 4 else piece[..., None]


def _whole(archive: zipfile.ZipFile, path: Path, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _header(file, path, name)
        size = dtype.itemsize * math.prod(shape)
        if size > LARGEST_TABLE:
            raise InvalidInput(f"{path}: {name} claims {size} bytes")
        content = file.read(size + 1)
    if len(content) != size:
        raise InvalidInput(f"{path}: {name} is not as long as its header says")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"{path}: {name} is no NumPy array") from error
    if any(length < 0 for length in shape):
        raise InvalidInput(f"{path}: {name} claims the shape {shape}")
    if dtype.hasobject:
        raise InvalidInput(f"{path}: {name} holds Python objects, which are never loaded")
    return shape, fortran, dtype
