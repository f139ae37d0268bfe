"""Image data sets that Hugging Face ``datasets`` has on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput
from .datasets import DataSet, channel_statistics, held_out
from .decoding import decoded, refuse_or_note
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
    names, labels = _labels(parts, label, str(path))
    found = decoded(
        "huggingface",
        [str(Path(path).resolve()), image],
        [part._fingerprint for part in parts],
        count=len(labels),
        side=side,
        channels=channels,
        reader=lambda: _Reader.of(parts, image, str(path)),
        retry=not allow_missing,
    )
    notes: dict[str, Any] = {"sources": [{"file": str(path), "fingerprint": part._fingerprint} for part in parts]}
    refuse_or_note(found, lambda number: f"row {number}", str(path), allow_missing, notes)
    ready = found.ready
    if test is None:
        is_test = np.isin(ready, ready[held_out(labels[ready], test_share, seed)])
        notes["test"] = f"{test_share} of each class, seed {seed}"
    else:
        is_test = ready >= len(train)
    kept, tested = ready[~is_test], ready[is_test]
    samples = StoredSamples(found.pictures, kept, labels[kept])
    return DataSet(
        name="huggingface",
        train=samples,
        test=StoredSamples(found.pictures, tested, labels[tested]),
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
    parts: list[Any]
    image: str

    @classmethod
    def of(cls, parts: list[Any], image: str, path: str) -> _Reader:
        import datasets

        if not isinstance(parts[0].features[image], datasets.Image):
            raise InvalidInput(f"{path}: column {image!r} holds {parts[0].features[image]}, not images")
        return cls([part.cast_column(image, datasets.Image(decode=False)) for part in parts], image)

    def __call__(self, number: int) -> bytes:
        for part in self.parts:
            if number < len(part):
                entry = part[number][self.image]
                content: bytes | None = entry["bytes"]
                return content if content is not None else Path(entry["path"]).read_bytes()
            number -= len(part)
        raise IndexError(number)
