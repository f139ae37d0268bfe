"""A small federation in the format of Landmarks-User-160k, for tests and for trying things out."""

from __future__ import annotations

import csv
import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import InvalidInput, require
from ..randomness import stream
from .landmarks import TEST, TRAIN

MEAN_LOG_SIZE, SPREAD_LOG_SIZE = 0.0, 0.8  # users differ in how much they photograph
USER_CONCENTRATION = 0.3  # and in what
PER_SHARD = 100


def make_landmarks(
    folder: str | Path,
    *,
    users: int = 12,
    classes: int = 10,
    pictures: int = 240,
    test_pictures: int = 60,
    seed: int = 0,
    shards: bool = False,
) -> None:
    """Write ``federated_train.csv``, ``test.csv`` and JPEG files under ``train/a/b/c/``, or tar shards of them.

    Every class is a colour and a stripe pattern, so that a network can learn it. The users' numbers of pictures and
    shares of classes are as uneven as people's. The folder is complete or not there.
    """
    require(1 <= classes <= 2028, "classes", f"must lie between 1 and 2028, got {classes}")
    enough = pictures >= max(users, classes) and test_pictures >= 1 and users >= 1
    require(enough, "pictures", f"{pictures} are too few for {users} users and {classes} classes")
    folder = Path(folder)
    if folder.exists():
        raise InvalidInput(f"{folder}: is there already; name a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, users, classes, pictures, test_pictures, seed, shards)
        partial.rename(folder)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    folder: Path, users: int, classes: int, pictures: int, test_pictures: int, seed: int, shards: bool
) -> None:
    draw = stream(seed, "landmarks")
    weights = draw.lognormal(MEAN_LOG_SIZE, SPREAD_LOG_SIZE, users)
    owners = np.concatenate([np.arange(users), draw.choice(users, pictures - users, p=weights / weights.sum())])
    tastes = draw.dirichlet(np.full(classes, USER_CONCENTRATION), users)
    labels = np.array([draw.choice(classes, p=tastes[owner]) for owner in owners])
    labels[draw.permutation(pictures)[:classes]] = np.arange(classes)  # no class without a picture
    labels = np.concatenate([labels, draw.integers(classes, size=test_pictures)])
    names = [f"{number:016x}" for number in draw.choice((1 << 63) - 1, len(labels), replace=False)]
    looks = [stream(seed, "landmark", client=label) for label in range(classes)]
    styles = [(look.uniform(40, 215, 3), look.uniform(0.05, 0.4), look.uniform(0, np.pi)) for look in looks]

    encoded = (_jpeg(draw, *styles[label]) for label in labels)
    if shards:
        (folder / "train").mkdir()
        for start in range(0, len(names), PER_SHARD):
            with tarfile.open(folder / "train" / f"images_{start // PER_SHARD:03d}.tar", "w") as tar:
                for name, content in zip(names[start : start + PER_SHARD], encoded, strict=False):
                    member = tarfile.TarInfo("/".join((*name[:3], f"{name}.jpg")))
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    else:
        for name, content in zip(names, encoded, strict=True):
            place = folder.joinpath("train", *name[:3])
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.jpg").write_bytes(content)

    with (folder / TRAIN).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["user_id", "image_id", "class"])
        rows.writerows(zip(owners.tolist(), names[:pictures], labels[:pictures].tolist(), strict=True))
    with (folder / TEST).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["image_id", "class"])
        rows.writerows(zip(names[pictures:], labels[pictures:].tolist(), strict=True))


def _jpeg(draw: np.random.Generator, colour: np.ndarray, frequency: float, angle: float) -> bytes:
    """A photograph of the landmark: its colour and stripes, from a random place, in a random light."""
    height, width = draw.integers(72, 144, 2)
    y, x = np.mgrid[:height, :width]
    turn = angle + draw.normal(0, 0.1)
    stripes = np.sin(frequency * (x * np.cos(turn) + y * np.sin(turn)) + draw.uniform(0, 2 * np.pi))
    light = draw.uniform(0.7, 1.2)
    picture = colour * light + 40 * stripes[..., None] + draw.normal(0, 12, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()
