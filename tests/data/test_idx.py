from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedgloss.data.idx import FILES

TRAIN = np.random.default_rng(1).integers(0, 256, (6, 28, 28), dtype=np.uint8)
TEST = np.random.default_rng(2).integers(0, 256, (3, 28, 28), dtype=np.uint8)
TRAIN_LABELS, TEST_LABELS = bytes([9, 0, 3, 3, 1, 2]), bytes([4, 5, 9])


def images(pictures: np.ndarray) -> bytes:
    return struct.pack(">IIII", 0x00000803, *pictures.shape) + pictures.tobytes()


def labels(values: bytes) -> bytes:
    return struct.pack(">II", 0x00000801, len(values)) + values


def contents() -> dict[str, bytes]:
    return dict(zip(FILES, (images(TRAIN), labels(TRAIN_LABELS), images(TEST), labels(TEST_LABELS)), strict=True))


def write(folder: Path, files: dict[str, bytes], zipped: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("zipped", [True, False])
def test_pictures_and_labels(tmp_path: Path, loaded, zipped: bool) -> None:
    data = loaded("fashion-mnist", path=write(tmp_path / "files", contents(), zipped))
    pictures, targets = data.train.fetch(np.arange(6))
    assert (pictures.numpy()[..., 0] == TRAIN).all()
    assert pictures.shape == (6, 28, 28, 1)
    assert bytes(targets.tolist()) == TRAIN_LABELS
    assert (data.test.fetch(np.arange(3))[0].numpy()[..., 0] == TEST).all()
    assert data.test_labels.tolist() == list(TEST_LABELS)
    assert data.classes[9] == "ankle boot"
    assert data.notes["published"] is False


def truncated(content: bytes) -> bytes:
    return content[:-1]


def longer(content: bytes) -> bytes:
    return content + b"x"


def magic(content: bytes) -> bytes:
    return b"\0\0\x0d" + content[3:]


def empty(content: bytes) -> bytes:
    return content[:4] + bytes(4) + content[8:]


def huge(content: bytes) -> bytes:
    return content[:8] + b"\xff" * 8 + content[16:]


def many(content: bytes) -> bytes:
    return content[:4] + b"\xff" * 4 + content[8:]


def label_out_of_range(content: bytes) -> bytes:
    return content[:-1] + b"\x0a"


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        (0, truncated, "ends too early"),
        (0, many, "ends too early"),
        (1, truncated, "ends too early"),
        (2, longer, "longer than its header says"),
        (3, longer, "longer than its header says"),
        (0, magic, "no IDX file"),
        (1, magic, "no IDX file"),
        (0, empty, "holds nothing"),
        (0, huge, "pixels"),
        (3, label_out_of_range, "label 10 of picture 2"),
        (0, lambda content: b"", "ends too early"),
        (0, lambda content: labels(b"123"), "no IDX file"),
        (1, lambda content: labels(b"123"), "label 51"),
        (1, lambda content: labels(bytes(5)), "5 labels for the 6 pictures"),
        (2, lambda content: images(TEST[:, :14]), "14 x 28"),
    ],
)
def test_broken_files(tmp_path: Path, refused, file: int, harm, words: str, zipped: bool) -> None:
    files = contents()
    files[FILES[file]] = harm(files[FILES[file]])
    refused("fashion-mnist", FILES[file], words, path=write(tmp_path / "files", files, zipped))


def test_broken_compression(tmp_path: Path, refused) -> None:
    folder = write(tmp_path / "files", contents())
    path = folder / f"{FILES[0]}.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused("fashion-mnist", path.name, "is damaged", path=folder)
    path.write_bytes(whole[:40] + bytes(60) + whole[100:])
    refused("fashion-mnist", path.name, "is damaged", path=folder)


def test_absent_files_say_where_to_get_them(tmp_path: Path, refused) -> None:
    refused("fashion-mnist", "no train-images-idx3-ubyte", "dataset-fashion-mnist", path=tmp_path / "nowhere")
    folder = write(tmp_path / "files", contents())
    (folder / f"{FILES[3]}.gz").unlink()
    refused("fashion-mnist", "no t10k-labels-idx1-ubyte", path=folder)
