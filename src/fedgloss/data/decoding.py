"""Picture files as one array of squares: whoever first asks for a picture decodes it and keeps it for everybody.

The squares lie in one file of the cache, and beside them a mark for each: to do, missing, corrupt, or the checksum
of a square that is there. A square counts when its checksum is right, so nobody needs a lock: two workers that
decode the same picture write the same bytes, and what a crash left half written is decoded again.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ..errors import InvalidInput, require
from ..files import write_atomically
from .datasets import Names
from .federation import Indices
from .progress import progress_bar
from .store import FORMAT, MappedArray, forget_others, locked, place, read_header, write_json, writing_cache

TO_DO, MISSING, CORRUPT = range(3)  # every other mark is a checksum
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MOST_PIXELS = 100_000_000
BATCH = 128

Square = npt.NDArray[np.uint8]


class Reader(Protocol):
    """Encoded pictures by number and name; FileNotFoundError where there is none. It travels to the workers."""

    def read(self, number: int, name: str) -> bytes: ...

    def size(self, number: int, name: str) -> int | None:
        """How many bytes it has; None where only reading it would tell."""


@dataclass(frozen=True)
class FileReader:
    """Pictures in files under one folder."""

    root: Path

    def read(self, number: int, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def size(self, number: int, name: str) -> int:
        return (self.root / name).stat().st_size


@dataclass(frozen=True)
class DecodedPictures:
    """The squares of picture files, decoded when they are first taken. It travels as paths, never as content."""

    what: str
    squares: MappedArray
    marks: MappedArray
    names: MappedArray
    reader: Reader

    @property
    def sound(self) -> Indices:
        """The pictures of which nothing bad is known."""
        return np.flatnonzero(~self._failed)

    def take(self, rows: Indices) -> Square:
        """Copies of these squares; a picture that cannot be had is an error."""
        taken = np.empty((len(rows), *self.squares.shape[1:]), np.uint8)
        absent = [place for place, number in enumerate(rows.tolist()) if not self._copy(number, taken[place])]
        if absent:
            with _without_remarks():
                for place in absent:
                    taken[place] = self._had(int(rows[place]))
        return taken

    def prepare(self, rows: Indices) -> None:
        """Decode now what of these is not decoded yet, on all cores; refuse if one cannot be had."""
        self.decode(rows[self.marks.array[rows] <= CORRUPT])
        if self._failed[rows].any():
            raise self.refusal()

    def look(self) -> None:
        """Mark what is missing or empty: quick, as no picture is opened but those found corrupt before."""
        marks, doubtful = self.marks.array, []
        unfinished = np.flatnonzero(marks <= CORRUPT).tolist()
        with progress_bar("Looking for pictures", len(unfinished)) as advance:
            for number in unfinished:
                seen = self._seen(number)
                if marks[number] == CORRUPT and seen == TO_DO:
                    doubtful.append(number)
                elif marks[number] != seen:
                    _write(self.marks, number, np.uint32(seen))
                advance(1)
        self.decode(np.array(doubtful, np.int64))

    def decode(self, numbers: Indices) -> None:
        """Decode these pictures on all cores; what fails is marked."""
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        with (
            _without_remarks(),
            ThreadPoolExecutor(threads) as pool,  # Pillow decodes and scales without the interpreter's lock
            progress_bar("Decoding pictures", len(numbers)) as advance,
        ):
            for start in range(0, len(numbers), BATCH):
                for _ in pool.map(self._decode, numbers[start : start + BATCH].tolist()):
                    advance(1)

    def refusal(self) -> InvalidInput:
        """Why there can be no run with all of these pictures."""
        failed = np.flatnonzero(self._failed)
        missing = int((self.marks.array == MISSING).sum())
        counts = f"{missing} missing and {len(failed) - missing} corrupt of {len(self.marks.array)} pictures"
        first = ", ".join(map(self._name, failed[:3].tolist())) + (", ..." if len(failed) > 3 else "")
        return InvalidInput(
            f"{self.what}: {counts} ({first}; all in {self._listed()}); "
            "mend them, or go on without them by --allow-missing (allow_missing=True)"
        )

    def left_out(self) -> dict[str, Any]:
        """For a run's records: how many pictures failed and where they are listed; nothing if none did."""
        missing, corrupt = (int((self.marks.array == mark).sum()) for mark in (MISSING, CORRUPT))
        if not missing + corrupt:
            return {}
        return {"left out": {"missing": missing, "corrupt": corrupt, "list": str(self._listed())}}

    @property
    def _failed(self) -> npt.NDArray[np.bool_]:
        return np.isin(self.marks.array, (MISSING, CORRUPT))

    def _name(self, number: int) -> str:
        return os.fsdecode(self.names.array[number])

    def _reason(self, number: int) -> str:
        return "missing" if self.marks.array[number] == MISSING else "corrupt"

    def _listed(self) -> Path:
        """Write the list of all that is known to have failed."""
        path, content = self.marks.path.with_name("failed.csv"), io.StringIO()
        rows = csv.writer(content, lineterminator="\n")
        rows.writerow(["picture", "reason"])
        rows.writerows(
            (self._name(number), self._reason(number)) for number in np.flatnonzero(self._failed).tolist()
        )
        with writing_cache():
            write_atomically(path, content.getvalue().encode(errors="surrogateescape"))
        return path

    def _seen(self, number: int) -> int:
        """What can be told of a picture without opening it."""
        try:
            return CORRUPT if self.reader.size(number, self._name(number)) == 0 else TO_DO
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except OSError:
            return CORRUPT

    def _copy(self, number: int, to: Square) -> bool:
        """Copy a square out of the cache, if it is there and right."""
        mark = int(self.marks.array[number])
        if mark <= CORRUPT:
            return False
        to[:] = self.squares.array[number]
        return _checksum(to) == mark

    def _had(self, number: int) -> Square:
        square = self._decode(number)
        if square is None:
            problem = f"{self._name(number)} is {self._reason(number)} (all found so far: {self._listed()})"
            raise InvalidInput(
                f"{self.what}: {problem}; mend it and resume, or begin anew with --allow-missing; "
                "`fedgloss data prepare` finds all such pictures beforehand"
            )
        return square

    def _decode(self, number: int) -> Square | None:
        """Decode a picture into the cache; None where that failed, and its mark says why."""
        _, side, _, channels = self.squares.shape
        try:
            decoded = square(self.reader.read(number, self._name(number)), side, channels)
        except (FileNotFoundError, NotADirectoryError):
            _write(self.marks, number, np.uint32(MISSING))
            return None
        except Exception:  # decoders raise whatever they like on broken input
            _write(self.marks, number, np.uint32(CORRUPT))
            return None
        _write(self.squares, number, decoded)
        _write(self.marks, number, np.uint32(_checksum(decoded)))
        return decoded


def decoded_pictures(
    name: str,
    made_of: Any,
    state: Any,
    *,
    names: Names,
    side: int,
    channels: int,
    reader: Reader,
    allow_missing: bool,
    what: str,
) -> DecodedPictures:
    """The pictures of what ``made_of`` names in that ``state``; what is missing has been looked for.

    A corrupt picture shows when it is decoded. Who allows pictures to be missing must know beforehand which those
    are, as a federation does not change during a run: then all of them are decoded now.
    """
    require(8 <= side <= 4096, "side", f"must lie between 8 and 4096, got {side}")
    require(channels in (1, 3), "channels", f"must be 1 (grey) or 3 (colour), got {channels}")
    folder, count = place(name, [made_of, side, channels], state), len(names)
    found = DecodedPictures(
        what,
        MappedArray(folder / "squares.bin", "|u1", (count, side, side, channels)),
        MappedArray(folder / "marks.bin", "<u4", (count,)),
        MappedArray(folder / "names.bin", names.dtype.str, (count,)),
        reader,
    )
    if not _is_whole(found):
        with locked(folder):
            if not _is_whole(found):  # another process may have been faster
                _begin(found, names)
                forget_others(folder)
    found.look()
    if allow_missing:
        found.decode(np.flatnonzero(found.marks.array == TO_DO))
    elif len(found.sound) < count:
        raise found.refusal()
    return found


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


def _checksum(square: Square) -> int:
    return max(zlib.crc32(square.data), CORRUPT + 1)


def _write(to: MappedArray, number: int, value: Square | np.uint32) -> None:
    with writing_cache(), to.path.open("r+b") as file:
        file.seek(number * value.nbytes)
        file.write(value.tobytes())


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Pillow warns of odd metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _is_whole(found: DecodedPictures) -> bool:
    """Whether there is such a cache, of the right sizes."""
    if read_header(found.marks.path.parent) is None:
        return False
    try:
        return all(part.path.stat().st_size == part.bytes for part in (found.squares, found.marks, found.names))
    except OSError:
        return False


def _begin(found: DecodedPictures, names: Names) -> None:
    """A new cache in which everything is to do. The header comes last: without it there is no cache."""
    folder, squares = found.marks.path.parent, found.squares
    shutil.rmtree(folder, ignore_errors=True)
    with writing_cache():
        folder.mkdir()
        free = shutil.disk_usage(folder).free
        if free < squares.bytes:
            folder.rmdir()
            raise InvalidInput(
                f"{folder.parent.parent}: {squares.shape[0]} pictures need {squares.bytes / 1e9:.1f} GB, "
                f"{free / 1e9:.1f} GB are free; set FEDGLOSS_CACHE to a folder with room, or take a smaller side"
            )
        for empty in (squares, found.marks):
            with empty.path.open("wb") as file:
                file.truncate(empty.bytes)
        names.tofile(found.names.path)
        write_json(folder / "header.json", {"format": FORMAT, "shape": squares.shape})
