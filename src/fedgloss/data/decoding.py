"""Picture files decoded once: each becomes a square of one size in a memory-mapped cache that fills as it goes.

Beside the pictures lies a byte for each: to do, ready, missing or corrupt. It is written after the picture is
safely on disk, so an interrupted conversion goes on where it stopped, and only what is wrong is looked at again.
"""

from __future__ import annotations

import io
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ..errors import InvalidInput, require
from ..files import write_atomically
from .federation import Indices
from .progress import progress_bar
from .store import (
    FORMAT,
    MappedArray,
    forget_others,
    locked,
    place,
    read_header,
    write_json,
    writing_cache,
)

TO_DO, READY, MISSING, CORRUPT = range(4)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MOST_PIXELS = 100_000_000
BATCH = 128


class Reader(Protocol):
    """Gives the encoded bytes of picture number so-and-so; FileNotFoundError where there is none."""

    def __call__(self, number: int, /) -> bytes: ...


@dataclass(frozen=True)
class FileReader:
    """Pictures in files under one folder."""

    root: Path
    names: npt.NDArray[np.bytes_]

    def __call__(self, number: int) -> bytes:
        return (self.root / os.fsdecode(self.names[number])).read_bytes()


@dataclass(frozen=True)
class Decoded:
    """The cache of decoded pictures, and what became of each."""

    pictures: MappedArray
    state: npt.NDArray[np.uint8]

    @property
    def ready(self) -> Indices:
        return np.flatnonzero(self.state == READY)

    @property
    def failed(self) -> Indices:
        return np.flatnonzero(self.state != READY)

    def reason(self, number: int) -> Literal["missing", "corrupt"]:
        return "missing" if self.state[number] == MISSING else "corrupt"


def decoded(
    name: str,
    made_of: Any,
    state: Any,
    *,
    count: int,
    side: int,
    channels: int,
    reader: Callable[[], Reader],
    retry: bool,
) -> Decoded:
    """The decoded pictures of what ``made_of`` names in that ``state``.

    ``reader`` is called when there is anything to decode. What failed before is tried again if ``retry``.
    """
    require(8 <= side <= 4096, "side", f"must lie between 8 and 4096, got {side}")
    require(channels in (1, 3), "channels", f"must be 1 (grey) or 3 (colour), got {channels}")
    folder = place(name, [made_of, side, channels], state)
    shape = (count, side, side, channels)
    pictures = MappedArray(folder / "pictures.bin", "|u1", shape)
    found = _found(pictures)
    if found is None or _unfinished(found, retry).size:
        with locked(folder):
            found = _found(pictures)  # another process may have been at work meanwhile
            if found is None:
                found = _begun(pictures)
                forget_others(folder)
            unfinished = _unfinished(found, retry)
            if unfinished.size:
                _fill(pictures, found, unfinished, reader())
    return Decoded(pictures, found)


def square(content: bytes, side: int, channels: int) -> npt.NDArray[np.uint8]:
    """Decode a picture, turn it upright, scale its shorter side to ``side`` and cut out the centre."""
    with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"{opened.width} x {opened.height} pixels")
        mode = "RGB" if channels == 3 else "L"
        opened.draft(mode, (2 * side, 2 * side))  # JPEG alone: decode at the smallest scale that still is larger
        image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("P", "PA", "LA", "RGBA"):
            image = image.convert("RGBA")
        image = ImageOps.fit(image.convert(mode), (side, side), Image.Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(side, side, channels)


def refuse_or_note(
    found: Decoded, names: Callable[[int], str], what: str, allow_missing: bool, notes: dict[str, Any]
) -> None:
    """Pictures that failed end the run, unless the user said otherwise: then they are noted. Either way, listed."""
    failed = found.failed
    if not len(failed):
        return
    missing = int((found.state == MISSING).sum())
    path = found.pictures.path.with_name("failed.csv")
    lines = ["picture,reason", *(f"{names(number)},{found.reason(number)}" for number in failed.tolist())]
    with writing_cache():
        write_atomically(path, ("\n".join(lines) + "\n").encode(errors="surrogateescape"))
    counts = f"{missing} missing and {len(failed) - missing} corrupt of {len(found.state)} pictures"
    if not allow_missing:
        first = ", ".join(names(number) for number in failed[:3].tolist())
        raise InvalidInput(
            f"{what}: {counts} ({first}{', ...' if len(failed) > 3 else ''}; all in {path}); "
            "mend them, or go on without them by --allow-missing (allow_missing=True)"
        )
    notes["left out"] = {"missing": missing, "corrupt": len(failed) - missing, "list": str(path)}


def _unfinished(state: npt.NDArray[np.uint8], retry: bool) -> Indices:
    return np.flatnonzero(state != READY if retry else state == TO_DO)


def _found(pictures: MappedArray) -> npt.NDArray[np.uint8] | None:
    """The state of an existing cache that is sound."""
    folder = pictures.path.parent
    if read_header(folder) is None:
        return None
    try:
        state = np.fromfile(folder / "state.bin", np.uint8)
        sound = len(state) == pictures.shape[0] and pictures.path.stat().st_size == pictures.bytes
    except OSError:
        return None
    return state if sound else None


def _begun(pictures: MappedArray) -> npt.NDArray[np.uint8]:
    """A new cache in which everything is to do. The header comes last: without it there is no cache."""
    folder = pictures.path.parent
    shutil.rmtree(folder, ignore_errors=True)
    state = np.zeros(pictures.shape[0], np.uint8)
    with writing_cache():
        folder.mkdir()
        free = shutil.disk_usage(folder).free
        if free < pictures.bytes:
            folder.rmdir()
            raise InvalidInput(
                f"{folder.parent.parent}: {pictures.shape[0]} pictures need {pictures.bytes / 1e9:.1f} GB, "
                f"{free / 1e9:.1f} GB are free; set FEDGLOSS_CACHE to a folder with room, or take a smaller side"
            )
        with pictures.path.open("wb") as file:
            file.truncate(pictures.bytes)
        state.tofile(folder / "state.bin")
        write_json(folder / "header.json", {"format": FORMAT, "shape": pictures.shape})
    return state


def _fill(pictures: MappedArray, state: npt.NDArray[np.uint8], numbers: Indices, reader: Reader) -> None:
    _, side, _, channels = pictures.shape
    size = side * side * channels

    def attempt(number: int) -> npt.NDArray[np.uint8] | int:
        try:
            return square(reader(number), side, channels)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except Exception:  # decoders raise whatever they like on broken input
            return CORRUPT

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with (
        warnings.catch_warnings(),
        ThreadPoolExecutor(threads) as pool,  # Pillow decodes and scales without the interpreter's lock
        pictures.path.open("r+b") as file,
        pictures.path.with_name("state.bin").open("r+b") as states,
        progress_bar("Decoding pictures", len(numbers)) as advance,
    ):
        warnings.simplefilter("ignore")  # Pillow's remarks about odd metadata
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH].tolist()
            results = list(pool.map(attempt, batch))
            with writing_cache():
                for number, result in zip(batch, results, strict=True):
                    if not isinstance(result, int):
                        file.seek(number * size)
                        file.write(result.data)
                        result = READY
                    state[number] = result
                file.flush()
                os.fsync(file.fileno())
                for number in batch:
                    states.seek(number)
                    states.write(state[number].tobytes())
                states.flush()
            advance(len(batch))
