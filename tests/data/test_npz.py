from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgloss.data.npz import PIECE

RNG = np.random.default_rng(5)
ARRAYS = {
    "train_images": RNG.integers(0, 256, (9, 12, 10, 3), dtype=np.uint8),
    "train_labels": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]),
    "test_images": RNG.integers(0, 256, (4, 12, 10, 3), dtype=np.uint8),
    "test_labels": np.array([2, 1, 0, 0], np.uint8),
}


def save(path: Path, **changed: np.ndarray | None) -> Path:
    arrays = {name: value for name, value in {**ARRAYS, **changed}.items() if value is not None}
    np.savez_compressed(path, **arrays)
    return path


def test_pictures_labels_and_measured_constants(tmp_path: Path, loaded) -> None:
    data = loaded("npz", path=save(tmp_path / "own.npz"))
    pictures, targets = data.train.fetch(np.arange(9))
    assert (pictures.numpy() == ARRAYS["train_images"]).all()
    assert targets.tolist() == ARRAYS["train_labels"].tolist()
    assert (data.test.fetch(np.arange(4))[0].numpy() == ARRAYS["test_images"]).all()
    assert data.classes == ("0", "1", "2")
    assert data.owners is None
    scaled = ARRAYS["train_images"].reshape(-1, 3) / 255
    assert np.allclose(data.transform.mean, scaled.mean(0), atol=1e-4)
    assert np.allclose(data.transform.std, scaled.std(0), atol=1e-4)


def test_clients_classes_and_flip(tmp_path: Path, loaded) -> None:
    whose = np.array(["eva", "adam", "eva", "adam", "eva", "noah", "noah", "noah", "eva"])
    path = save(tmp_path / "own.npz", train_clients=whose, classes=np.array(["cat", "dog", "emu"]))
    data = loaded("npz", path=path, flip=False)
    assert data.owners.tolist() == [1, 0, 1, 0, 1, 2, 2, 2, 1]
    assert data.classes == ("cat", "dog", "emu")
    assert not data.transform.flip


def test_grey_pictures_and_other_orders_in_memory(tmp_path: Path, loaded) -> None:
    grey = {name: ARRAYS[name][..., 0] for name in ("train_images", "test_images")}
    data = loaded("npz", path=save(tmp_path / "grey.npz", **grey))
    assert (data.train.fetch(np.arange(9))[0].numpy()[..., 0] == grey["train_images"]).all()
    fortran = np.asfortranarray(ARRAYS["train_images"])
    data = loaded("npz", path=save(tmp_path / "fortran.npz", train_images=fortran))
    assert (data.train.fetch(np.arange(9))[0].numpy() == ARRAYS["train_images"]).all()


def test_large_arrays_come_in_pieces(tmp_path: Path, loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PIECE < 1 << 27
    monkeypatch.setattr("fedgloss.data.npz.PIECE", 1000)
    data = loaded("npz", path=save(tmp_path / "own.npz"))
    assert (data.train.fetch(np.arange(9))[0].numpy() == ARRAYS["train_images"]).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": None}, "needs train_images, train_labels"),
        ({"train_labels": np.arange(8)}, "9 pictures in train_images, 8 labels"),
        ({"train_labels": np.full(9, -1)}, "label -1"),
        ({"train_labels": np.linspace(0, 1, 9)}, "one whole number per picture"),
        ({"train_labels": np.zeros((9, 2), int)}, "one whole number per picture"),
        ({"classes": np.array(["a", "b"])}, "label 2 is not in 0-1"),
        ({"train_images": ARRAYS["train_images"] / 255}, "multiply by 255"),
        ({"train_images": ARRAYS["train_images"].astype(np.int64)}, ".astype('uint8')"),
        ({"train_images": ARRAYS["train_images"].transpose(0, 3, 1, 2)}, "channels first"),
        ({"train_images": ARRAYS["train_images"].reshape(9, -1)}, "should be (count, height, width"),
        ({"test_images": ARRAYS["test_images"][:, :5]}, "should be (12, 10, 3)"),
        ({"test_images": ARRAYS["test_images"][:0], "test_labels": np.array([], int)}, "test_images"),
        ({"train_clients": np.arange(3)}, "3 train_clients for 9 pictures"),
        ({"train_images": np.array([object()] * 9, dtype=object)}, "Python objects"),
        ({"train_labels": np.array([object()] * 9, dtype=object)}, "Python objects"),
    ],
)
def test_wrong_arrays(tmp_path: Path, refused, changed: dict[str, np.ndarray | None], words: str) -> None:
    refused("npz", "own.npz", words, path=save(tmp_path / "own.npz", **changed))


def test_broken_archives(tmp_path: Path, refused) -> None:
    whole = save(tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "own.npz"
    refused("npz", "no such file", path=path)
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:300] + bytes(80) + whole[380:]):
        path.write_bytes(content)
        refused("npz", "own.npz", "damaged", path=path)


def test_members_that_are_no_arrays_or_too_short(tmp_path: Path, refused) -> None:
    path = save(tmp_path / "own.npz")
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for name, harmed, words in (
        ("train_images.npy", b"nonsense", "is no NumPy array"),
        ("train_images.npy", contents["train_images.npy"][:-50], "ends too early"),
        ("train_labels.npy", contents["train_labels.npy"][:-1], "not as long as its header says"),
        ("train_labels.npy", contents["train_labels.npy"] + b"x", "not as long as its header says"),
        (
            "train_labels.npy",
            contents["train_labels.npy"].replace(b"(9,), }", b"(-9,),}"),
            "claims the shape (-9,)",
        ),
        (
            "train_labels.npy",
            contents["train_labels.npy"].replace(b"(9,), }" + b" " * 9, b"(999999999999,)}"),
            "claims",
        ),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for other, content in contents.items():
                archive.writestr(other, harmed if other == name else content)
        refused("npz", words, path=path)
