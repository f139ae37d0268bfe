from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgloss.errors import InvalidInput

COLOURS = {"cat": (200, 30, 30), "dog": (30, 200, 30), "emu": (30, 30, 200)}


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures of each class, the class's colour getting lighter."""
    root = tmp_path / "pets"
    for name, colour in COLOURS.items():
        for i in range(10):
            shade = tuple(channel + 4 * i for channel in colour)
            paint(root / name / f"{i}.png", shade, (30 + i, 50 - i))
    (root / "notes.txt").write_text("not a class")
    (root / "cat" / "Thumbs.db").write_text("not a picture")
    return root


def test_a_folder_per_class(folder: Path, loaded) -> None:
    data = loaded("imagefolder", path=folder, side=16)
    assert data.classes == ("cat", "dog", "emu")
    assert (len(data.train), len(data.test)) == (24, 6)
    assert np.bincount(data.test_labels).tolist() == [2, 2, 2]
    names = {name.decode() for name in np.concatenate([data.train_names, data.test_names])}
    assert names == {f"{label}/{i}.png" for label in COLOURS for i in range(10)}
    pictures, labels = data.train.fetch(np.arange(24))
    assert pictures.shape == (24, 16, 16, 3)
    for picture, label, name in zip(pictures.numpy(), labels.tolist(), data.train_names, strict=True):
        kind, number = name.decode().removesuffix(".png").split("/")
        assert data.classes[label] == kind
        assert (picture == [channel + 4 * int(number) for channel in COLOURS[kind]]).all()
    assert data.owners is None


def test_the_test_share_is_drawn_with_the_seed(folder: Path, loaded) -> None:
    names = [loaded("imagefolder", path=folder, side=16, seed=seed).test_names.tolist() for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    assert len(loaded("imagefolder", path=folder, side=16, test_share=0.5).test) == 15


def test_a_test_folder_of_its_own(folder: Path, tmp_path: Path, loaded, refused) -> None:
    root = tmp_path / "both"
    shutil.copytree(folder, root / "train")
    paint(root / "test" / "dog" / "sub" / "x.jpg", (1, 2, 3))
    data = loaded("imagefolder", path=root, side=16)
    assert (len(data.train), len(data.test)) == (30, 1)
    assert data.test_labels.tolist() == [1]
    paint(root / "test" / "yak" / "x.jpg", (1, 2, 3))
    refused("imagefolder", "yak", "no training folder for this class", path=root, side=16)


def test_clients_from_sub_folders(folder: Path, tmp_path: Path, loaded) -> None:
    root = tmp_path / "people"
    for person in ("adam", "eva"):
        shutil.copytree(folder, root / person, ignore=lambda *_: ["notes.txt", "Thumbs.db"])
    shutil.rmtree(root / "eva" / "emu")
    data = loaded("imagefolder", path=root, clients="folders", side=16)
    assert data.classes == ("cat", "dog", "emu")
    for owner, name in zip(data.owners.tolist(), data.train_names, strict=True):
        assert name.decode().startswith(("adam/", "eva/")[owner])


def test_clients_from_a_csv(folder: Path, tmp_path: Path, loaded) -> None:
    path = tmp_path / "clients.csv"
    lines = [f"{label}/{i}.png,{'north' if i < 5 else 'south'}" for label in COLOURS for i in range(10)]
    path.write_text("\n".join(["image,client", *lines]))
    data = loaded("imagefolder", path=folder, clients=path, side=16)
    for owner, name in zip(data.owners.tolist(), data.train_names, strict=True):
        assert owner == int(int(name.decode()[4]) >= 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("picture,client\n", "must name the columns image, client"),
        ("image,client\ncat/0.png,a\ncat/0.png,b\n", "line 3: cat/0.png is named twice"),
        ("image,client\ncat/99.png,a\n", "line 2: 'cat/99.png' is not in"),
        ("image,client\n../secret.png,a\n", "'../secret.png' is not in"),
        ("image,client\ncat/0.png,\n", "line 2: client is empty"),
        ("image,client\ncat/0.png,a\n", "does not say whose cat/1.png is (29 are not named)"),
    ],
)
def test_broken_csv(folder: Path, tmp_path: Path, loaded, text: str, words: str) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        loaded("imagefolder", path=folder, clients=path, side=16)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_wrong_folders(folder: Path, tmp_path: Path, refused) -> None:
    refused("imagefolder", "no such folder", path=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused("imagefolder", "must hold a folder per class", path=tmp_path / "empty")
    refused("imagefolder", "must hold a folder per client", path=tmp_path / "empty", clients="folders")
    (folder / "yak").mkdir()
    refused("imagefolder", "yak", "holds no picture", path=folder)
    (folder / "yak").rmdir()
    refused("imagefolder", "side", path=folder, side=3)
    refused("imagefolder", "channels", path=folder, channels=2)


def test_a_changed_picture_is_decoded_again(folder: Path, loaded, stored) -> None:
    loaded("imagefolder", path=folder, side=16)
    paint(folder / "cat" / "3.png", (9, 9, 9))
    os.utime(folder / "cat" / "3.png", (1, 1))
    data = loaded("imagefolder", path=folder, side=16)
    pictures = np.concatenate([part.fetch(np.arange(len(part)))[0].numpy() for part in (data.train, data.test)])
    assert (pictures == 9).all((1, 2, 3)).sum() == 1
    assert len(stored()) == 4, "the former state is forgotten"


def test_corrupt_pictures_are_refused_or_left_out(folder: Path, loaded) -> None:
    (folder / "dog" / "4.png").write_bytes(b"no picture")
    (folder / "dog" / "5.png").unlink()
    (folder / "dog" / "5.png").symlink_to(folder / "gone.png")
    with pytest.raises(InvalidInput, match=r"1 missing and 0 corrupt of 30 pictures \(dog/5.png; all in"):
        loaded("imagefolder", path=folder, side=16)
    data = loaded("imagefolder", path=folder, side=16, allow_missing=True)
    assert len(data.train) + len(data.test) == 28
    assert data.notes["left out"]["missing"] == data.notes["left out"]["corrupt"] == 1
    paint(folder / "gone.png", (1, 2, 3))
    with pytest.raises(InvalidInput, match=r"0 missing and 1 corrupt of 30 pictures \(dog/4.png; all in"):
        loaded("imagefolder", path=folder, side=16)


def test_grey(folder: Path, loaded) -> None:
    data = loaded("imagefolder", path=folder, side=16, channels=1)
    assert data.train.fetch(np.arange(2))[0].shape == (2, 16, 16, 1)
    assert len(data.transform.mean) == 1


def test_names_of_any_kind(tmp_path: Path, loaded) -> None:
    root = tmp_path / "names"
    for label in ("ä b", "c,d"):
        for i in range(5):
            paint(root / label / f"{i} é'\".png", (i, i, i))
    os.rename(root / "c,d" / "0 é'\".png", os.fsencode(root / "c,d") + b"/\xff.png")
    data = loaded("imagefolder", path=root, side=16)
    assert len(data.train) + len(data.test) == 10
    (root / "c,d" / "1 é'\".png").write_bytes(b"no picture")
    (root / "c,d" / os.fsdecode(b"\xff.png")).write_bytes(b"no picture")
    listed = loaded("imagefolder", path=root, side=16, allow_missing=True).notes["left out"]["list"]
    with open(listed, newline="", errors="surrogateescape") as file:
        assert [row["picture"] for row in csv.DictReader(file)] == ["c,d/1 é'\".png", os.fsdecode(b"c,d/\xff.png")]
