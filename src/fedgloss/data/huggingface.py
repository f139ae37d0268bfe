"""Image data sets that Hugging Face ``datasets`` has on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput
from .datasets import DataSet, channel_statistics, held_out
from .decoding import decoded_pictures
from .federation import Indices
from .store import StoredSamples
from .transforms import PictureTransform


def huggingface(
    path: str | Path,
    *,
    image: str = "image",
    label: str = "label",
    client: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    side: int = 64,
    channels: int = 3,
    flip: bool = True,
    allow_missing: bool = False,
) -> DataSet:
    """A folder written by ``save_to_disk``, or one of data files (Parquet, say) that ``load_dataset`` understands.

    ``image``, ``label`` and ``client`` name columns; ``client`` says whose a picture is. Where there is no split
    "test" or "validation", ``test_share`` of each class, drawn with ``seed``, is the test set. Pictures become
    squares of ``side`` pixels as in imagefolder.
    """
    train, test = _opened(Path(path))
    parts = [part for part in (train, test) if part is not None]
    for part in parts:
        for column in (image, label, *([client] if client else [])):
            if column not in part.column_names:
                raise InvalidInput(f"{path}: no column {column!r}; there are {', '.join(part.column_names)}")
    _require_images(train, image, str(path))
    names, labels = _labels(parts, label, str(path))
    found = decoded_pictures(
        "huggingface",
        [str(Path(path).resolve()), image],
        [part._fingerprint for part in parts],
        names=np.array([f"row {number}".encode() for number in range(len(labels))]),
        side=side,
        channels=channels,
        reader=_Reader(Path(path).resolve(), image),
        allow_missing=allow_missing,
        what=str(path),
    )
    sources = [{"file": str(path), "fingerprint": part._fingerprint} for part in parts]
    notes: dict[str, Any] = {"sources": sources, **found.left_out()}
    sound = found.sound
    if test is None:
        is_test = np.isin(sound, sound[held_out(labels[sound], test_share, seed)])
        notes["test"] = f"{test_share} of each class, seed {seed}"
    else:
        is_test = sound >= len(train)
    kept, tested = sound[~is_test], sound[is_test]
    samples = StoredSamples(found, kept, labels[kept])
    return DataSet(
        name="huggingface",
        train=samples,
        test=StoredSamples(found, tested, labels[tested]),
        train_labels=labels[kept],
        test_labels=labels[tested],
        classes=names,
        transform=PictureTransform(*channel_statistics(samples), flip=flip),
        owners=None if client is None else _numbers(_column(train, client)[kept]),
        notes=notes,
    )


def _opened(path: Path) -> tuple[Any, Any]:
    """The training part, and the test part if there is one."""
    try:
        import datasets
    except ImportError as error:
        raise InvalidInput("huggingface: needs another package; pip install 'fedgloss[hf]'") from error
    if not path.is_dir():
        raise InvalidInput(
            f"{path}: no such folder; datasets.load_dataset(name).save_to_disk(folder) makes one of any data set"
        )
    saved = (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
    try:
        whole: Any = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
    except Exception as error:  # the package wraps whatever its readers raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"{path}: Hugging Face datasets cannot open it ({reason})") from error
    if isinstance(whole, datasets.Dataset):
        return whole, None
    if "train" not in whole:
        raise InvalidInput(f"{path}: no split 'train'; there are {', '.join(whole)}")
    return whole["train"], next((whole[name] for name in ("test", "validation") if name in whole), None)


def _require_images(part: Any, column: str, path: str) -> None:
    import datasets

    if not isinstance(part.features[column], datasets.Image):
        raise InvalidInput(f"{path}: column {column!r} holds {part.features[column]}, not images")


def _column(part: Any, name: str) -> npt.NDArray[Any]:
    return np.asarray(part[name][:])


def _labels(parts: list[Any], column: str, path: str) -> tuple[tuple[str, ...], Indices]:
    """Names of the classes, and the class of every picture."""
    values = np.concatenate([_column(part, column) for part in parts])
    named = getattr(parts[0].features[column], "names", None)
    if named is None and values.dtype.kind in "US":
        names, labels = np.unique(values, return_inverse=True)
        return tuple(names.tolist()), labels.reshape(-1).astype(np.int64)
    if values.dtype.kind not in "iu" or values.min() < 0:
        raise InvalidInput(f"{path}: column {column!r} must hold class numbers from 0 or names")
    labels = values.astype(np.int64)
    return tuple(named or map(str, range(int(labels.max()) + 1))), labels


def _numbers(whose: npt.NDArray[Any]) -> Indices:
    return np.unique(whose, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class _Reader:
    """Rows of the data set, which each process opens for itself."""

    path: Path
    image: str

    @cached_property
    def _parts(self) -> list[Any]:
        import datasets

        return [
            part.cast_column(self.image, datasets.Image(decode=False))
            for part in _opened(self.path)
            if part is not None
        ]

    def read(self, number: int, name: str) -> bytes:
        for part in self._parts:
            if number < len(part):
                entry = part[number][self.image]
                content: bytes | None = entry["bytes"]
                return content if content is not None else Path(entry["path"]).read_bytes()
            number -= len(part)
        raise IndexError(number)

    def size(self, number: int, name: str) -> None:
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "image": self.image}
