from __future__ import annotations

import csv
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgloss.data import decoding, landmarks
from fedgloss.data.synthetic_landmarks import make_landmarks
from fedgloss.errors import InvalidInput

NAME = "landmarks-user-160k"
SMALL = {"users": 4, "classes": 3, "pictures": 30, "test_pictures": 8}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landmarks") / "set"
    make_landmarks(folder, **SMALL)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "set"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def picture(folder: Path, image: str) -> Path:
    return folder.joinpath("train", *image[:3], f"{image}.jpg")


def test_the_generator_writes_the_true_format(folder: Path) -> None:
    assert (folder / "federated_train.csv").read_text().startswith("user_id,image_id,class\n")
    assert (folder / "test.csv").read_text().startswith("image_id,class\n")
    train, test = rows(folder / "federated_train.csv"), rows(folder / "test.csv")
    assert (len(train), len(test)) == (30, 8)
    assert {row["user_id"] for row in train} == {"0", "1", "2", "3"}
    assert {row["class"] for row in train} == {"0", "1", "2"}
    images = [row["image_id"] for row in train + test]
    assert len(set(images)) == 38
    for image in images:
        assert len(image) == 16
        with Image.open(picture(folder, image)) as opened:
            assert opened.format == "JPEG"


def test_pictures_labels_and_users(folder: Path, loaded) -> None:
    data = loaded(NAME, path=folder, side=64, crop=56)
    train, test = rows(folder / "federated_train.csv"), rows(folder / "test.csv")
    assert data.train_labels.tolist() == [int(row["class"]) for row in train]
    assert data.test_labels.tolist() == [int(row["class"]) for row in test]
    assert data.owners.tolist() == [int(row["user_id"]) for row in train]
    pictures, _ = data.train.fetch(np.array([0, 29]))
    expected = decoding.square(picture(folder, train[29]["image_id"]).read_bytes(), 64, 3)
    assert (pictures[1].numpy() == expected).all()
    tested = decoding.square(picture(folder, test[7]["image_id"]).read_bytes(), 64, 3)
    assert (data.test.fetch(np.array([7]))[0][0].numpy() == tested).all()
    assert data.transform.test(pictures).shape == (2, 3, 56, 56)
    assert data.notes["published"] is False


def test_users_are_clients_in_the_order_of_their_numbers(tmp_path: Path, loaded) -> None:
    make_landmarks(tmp_path / "set", users=12, pictures=40, test_pictures=2)
    data = loaded(NAME, path=tmp_path / "set", side=16)
    assert data.owners.tolist() == [int(row["user_id"]) for row in rows(tmp_path / "set" / "federated_train.csv")]


def test_shards_a_flat_folder_and_a_tree_give_the_same(folder: Path, tmp_path: Path, loaded) -> None:
    make_landmarks(tmp_path / "shards", **SMALL, shards=True)
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in (folder / "train").rglob("*.jpg"):
        shutil.copy(file, flat)
    assert list((tmp_path / "shards" / "train").iterdir()) == [tmp_path / "shards" / "train" / "images_000.tar"]
    whole = np.arange(30)
    tree = loaded(NAME, path=folder, side=32).train.fetch(whole)
    for options in ({"path": tmp_path / "shards"}, {"path": folder, "images": flat}):
        pictures, labels = loaded(NAME, side=32, **options).train.fetch(whole)
        assert (pictures == tree[0]).all()
        assert (labels == tree[1]).all()


def test_pictures_are_decoded_when_they_are_first_fetched(
    folder: Path, loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = decoding.square, []
    monkeypatch.setattr(decoding, "square", lambda *arguments: (calls.append(1), decode(*arguments))[1])
    first = loaded(NAME, path=folder, side=32)
    assert calls == []
    some = first.train.fetch(np.array([4, 0, 9]))[0]
    assert len(calls) == 3
    again = loaded(NAME, path=folder, side=32)
    assert (again.train.fetch(np.arange(10))[0][[4, 0, 9]] == some).all()
    assert len(calls) == 10


def test_lazily_or_beforehand_here_or_in_workers_the_bits_are_the_same(
    folder: Path, tmp_path: Path, loaded, cache: Path
) -> None:
    beforehand = loaded(NAME, path=folder, side=32).train
    beforehand.prepare(np.arange(30))
    whole = beforehand.fetch(np.arange(30))[0]
    shutil.rmtree(cache)
    make_landmarks(tmp_path / "shards", **SMALL, shards=True)
    shuffled = np.random.default_rng(0).permutation(30)
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        for path in (folder, tmp_path / "shards"):
            lazy = loaded(NAME, path=path, side=32).train
            assert len(pickle.dumps(lazy)) < 3000, "it travels as paths"
            batches = [shuffled[:20], shuffled[10:], shuffled]  # two workers want the same pictures
            for batch, (pictures, _) in zip(batches, workers.map(lazy.fetch, batches, chunksize=1), strict=True):
                assert (pictures == whole[batch]).all()
            assert (lazy.fetch(np.arange(30))[0] == whole).all()


def test_a_process_killed_while_it_decodes_harms_nothing(folder: Path, loaded, cache: Path) -> None:
    whole = loaded(NAME, path=folder, side=512).train.fetch(np.arange(30))[0]
    shutil.rmtree(cache)
    script = f"""
import numpy as np
from fedgloss.data.datasets import load
samples = load("{NAME}", path={str(folder)!r}, side=512).train
samples.fetch(np.arange(3))
print("begun", flush=True)
samples.fetch(np.arange(30))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.kill()
    process.communicate()
    marks = np.fromfile(next(cache.glob("stores/*/*/marks.bin")), "<u4")
    assert (marks[:3] > decoding.CORRUPT).all()
    assert (loaded(NAME, path=folder, side=512).train.fetch(np.arange(30))[0] == whole).all()


def test_a_square_that_a_crash_left_half_written_is_decoded_again(folder: Path, loaded, cache: Path) -> None:
    whole = loaded(NAME, path=folder, side=32).train.fetch(np.arange(30))[0]
    with next(cache.glob("stores/*/*/squares.bin")).open("r+b") as file:
        file.seek(7 * 32 * 32 * 3 + 1000)
        file.write(bytes(1500))
    assert (loaded(NAME, path=folder, side=32).train.fetch(np.arange(30))[0] == whole).all()
    assert (loaded(NAME, path=folder, side=32).train.pictures.squares.array[:30] == whole.numpy()).all()


@pytest.mark.parametrize("harm", ["truncated", "marks.bin", "names.bin", "header.json"])
def test_a_damaged_cache_is_made_again(folder: Path, cache: Path, loaded, harm: str) -> None:
    whole = loaded(NAME, path=folder, side=32).train.fetch(np.arange(30))[0]
    place = next(cache.glob("stores/*/*"))
    if harm == "truncated":
        os.truncate(place / "squares.bin", 1000)
    else:
        (place / harm).unlink()
    assert (loaded(NAME, path=folder, side=32).train.fetch(np.arange(30))[0] == whole).all()


def harmed(folder: Path) -> tuple[str, str, str]:
    """One training picture missing, one training picture cut off, one test picture that is none."""
    train, test = rows(folder / "federated_train.csv"), rows(folder / "test.csv")
    missing, cut, none = train[3]["image_id"], train[7]["image_id"], test[2]["image_id"]
    picture(folder, missing).unlink()
    os.truncate(picture(folder, cut), 1500)
    picture(folder, none).write_bytes(b"<html>not found</html>")
    return missing, cut, none


def test_missing_and_empty_pictures_are_refused_before_any_is_opened(
    folder: Path, loaded, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, _, none = harmed(folder)
    picture(folder, none).write_bytes(b"")
    monkeypatch.setattr(landmarks._TreeReader, "read", None)
    with pytest.raises(InvalidInput) as caught:
        loaded(NAME, path=folder, side=32)
    message = str(caught.value)
    assert "1 missing and 1 corrupt of 38 pictures" in message
    assert "--allow-missing" in message
    assert "\n" not in message
    listed = next(cache.glob("stores/*/*/failed.csv"))
    assert str(listed) in message
    assert listed.read_text() == f"picture,reason\n{missing},missing\n{none},corrupt\n"


def test_prepare_finds_all_that_is_corrupt(folder: Path, original: Path, loaded, cache: Path) -> None:
    missing, cut, none = harmed(folder)
    shutil.copy(picture(original, missing), picture(folder, missing))
    data = loaded(NAME, path=folder, side=32)
    with pytest.raises(InvalidInput, match=f"0 missing and 1 corrupt of 38 pictures .{cut}; all in"):
        data.train.prepare(np.arange(30))
    with pytest.raises(InvalidInput, match=f"0 missing and 2 corrupt of 38 pictures .{cut}, {none}; all in"):
        data.test.prepare(np.arange(8))
    listed = next(cache.glob("stores/*/*/failed.csv"))
    assert listed.read_text() == f"picture,reason\n{cut},corrupt\n{none},corrupt\n"
    with pytest.raises(InvalidInput, match="0 missing and 2 corrupt"):
        loaded(NAME, path=folder, side=32)


def test_a_picture_that_fails_when_it_is_fetched_is_one_clear_line(folder: Path, original: Path, loaded) -> None:
    missing, cut, _ = harmed(folder)
    shutil.copy(picture(original, missing), picture(folder, missing))
    data = loaded(NAME, path=folder, side=32)
    picture(folder, missing).unlink()
    data.train.fetch(np.array([0, 1, 2]))
    for row, image, why in ((3, missing, "missing"), (7, cut, "corrupt")):
        with pytest.raises(
            InvalidInput, match=f"{NAME}: {image} is {why} .*failed.csv.*mend it and resume"
        ) as caught:
            data.train.fetch(np.array([0, row]))
        assert "\n" not in str(caught.value)


def test_allow_missing_goes_on_and_says_so(folder: Path, loaded) -> None:
    everything = loaded(NAME, path=folder, side=32).train.fetch(np.arange(30))
    users = [row["user_id"] for row in rows(folder / "federated_train.csv")]
    harmed(folder)
    (folder / "test.csv").write_text((folder / "test.csv").read_text() + "\n")  # other lists, another cache
    data = loaded(NAME, path=folder, side=32, allow_missing=True)
    left = [i for i in range(30) if i not in (3, 7)]
    assert (data.train.fetch(np.arange(28))[0] == everything[0][left]).all()
    assert (data.train_labels == everything[1].numpy()[left]).all()
    assert data.owners.tolist() == [int(users[i]) for i in left]
    assert len(data.test) == 7
    facts = dict(data.notes["left out"])
    assert Path(facts.pop("list")).read_text().count("\n") == 4
    assert facts == {"missing": 1, "corrupt": 2}


def test_mended_pictures_are_found_the_next_time(folder: Path, original: Path, loaded) -> None:
    images = harmed(folder)
    counts = [(1, 2), (0, 2), (0, 1), (0, 0)]
    for image, (missing, corrupt) in zip([None, *images], counts, strict=True):
        if image is not None:
            shutil.copy(picture(original, image), picture(folder, image))
        data = loaded(NAME, path=folder, side=32, allow_missing=True)
        left = data.notes.get("left out", {"missing": 0, "corrupt": 0})
        assert (left["missing"], left["corrupt"]) == (missing, corrupt)
        assert len(data.train) + len(data.test) == 38 - missing - corrupt
    assert "left out" not in loaded(NAME, path=folder, side=32).notes


def test_a_user_without_pictures_is_no_client(folder: Path, loaded) -> None:
    for row in rows(folder / "federated_train.csv"):
        if row["user_id"] == "1":
            picture(folder, row["image_id"]).unlink()
    data = loaded(NAME, path=folder, side=32, allow_missing=True)
    assert sorted(set(data.owners.tolist())) == [0, 1, 2]
    assert data.notes["users left out"] == 1


def change(path: Path, line: int, text: str | None) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "line", "text", "words"),
    [
        ("federated_train.csv", 1, "user,image,class", "must name the columns user_id, image_id, class"),
        ("test.csv", 1, "image_id,label", "must name the columns image_id, class"),
        ("federated_train.csv", 5, "0,../../secret,1", "line 5: '../../secret' is no image_id"),
        ("federated_train.csv", 5, "0,abcdef,2028", "line 5: class '2028' is not in 0-2027"),
        ("federated_train.csv", 5, "0,abcdef,-1", "line 5: class '-1'"),
        ("federated_train.csv", 5, "0,abcdef,cat", "line 5: class 'cat'"),
        ("federated_train.csv", 5, "0,abcdef", "line 5: class None"),
        ("federated_train.csv", 5, ",abcdef,1", "line 5: user_id is empty"),
        ("test.csv", 3, "\x00\x00", "test.csv"),
        ("test.csv", 4, '"abc', "cannot be read as CSV"),
    ],
)
def test_broken_lists(folder: Path, refused, file: str, line: int, text: str, words: str) -> None:
    change(folder / file, line, text)
    refused(NAME, file, words, path=folder)


def test_a_picture_named_twice(folder: Path, refused) -> None:
    second = (folder / "federated_train.csv").read_text().splitlines()[1]
    change(folder / "federated_train.csv", 9, second)
    refused(NAME, "line 9", "is already in line 2", path=folder)


def test_empty_absent_and_binary_lists(folder: Path, refused) -> None:
    (folder / "test.csv").write_text("image_id,class\n")
    refused(NAME, "test.csv", "names no picture", path=folder)
    (folder / "test.csv").write_bytes(b"\xff\xfe\x00")
    refused(NAME, "test.csv", "cannot be read as CSV", path=folder)
    (folder / "test.csv").unlink()
    refused(NAME, "no federated_train.csv and test.csv", "google-landmark", path=folder)
    refused(NAME, "needs path")


def test_a_folder_without_pictures(folder: Path, refused, loaded) -> None:
    refused(NAME, "no such folder", path=folder, images=folder / "elsewhere")
    shutil.rmtree(folder / "train")
    with pytest.raises(InvalidInput, match="no picture of the training or test list is there"):
        loaded(NAME, path=folder, side=32, allow_missing=True)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def test_broken_shards(tmp_path: Path, loaded) -> None:
    make_landmarks(tmp_path / "set", **SMALL, shards=True)
    shard = tmp_path / "set" / "train" / "images_000.tar"
    whole = shard.read_bytes()
    with tarfile.open(shard, "a") as tar:
        add(tar, "../../escaped.jpg", b"x")
    with pytest.raises(InvalidInput, match=r"escaped.jpg.*points outside"):
        loaded(NAME, path=tmp_path / "set", side=32)
    assert not (tmp_path.parent / "escaped.jpg").exists()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"images_000.tar: is damaged"):
        loaded(NAME, path=tmp_path / "set", side=32)
    shard.write_bytes(b"no tar")
    with pytest.raises(InvalidInput, match=r"images_000.tar: is damaged"):
        loaded(NAME, path=tmp_path / "set", side=32)
    shard.write_bytes(whole)
    assert len(loaded(NAME, path=tmp_path / "set", side=32).train) == 30


def test_memory_stays_bounded_whatever_the_number_of_pictures(tmp_path: Path) -> None:
    """640 decoded pictures are 126 MB; at most a batch of them is ever held."""
    make_landmarks(tmp_path / "set", pictures=640, test_pictures=60)
    script = f"""
import resource, numpy as np
from fedgloss.data.datasets import load
from fedgloss.data import decoding, landmarks
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = load("{NAME}", path={str(tmp_path / "set")!r})
for start in range(0, 320, 20):
    data.train.fetch(np.arange(start, start + 20))
data.train.prepare(np.arange(640))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
assert (data.train.pictures.marks.array > decoding.CORRUPT).sum() == 640
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000, "kB"


def test_a_disk_without_room_is_said_before_anything_is_decoded(
    folder: Path, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    refused(NAME, "38 pictures need 0.0 GB", "smaller side", path=folder, side=32)


def test_the_generator_is_whole_or_absent(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidInput, match="is there already"):
        make_landmarks(tmp_path / "there")
    with pytest.raises(InvalidInput, match="too few"):
        make_landmarks(tmp_path / "few", pictures=5)
    make_landmarks(tmp_path / "one", **SMALL)
    make_landmarks(tmp_path / "two", **SMALL)
    make_landmarks(tmp_path / "other", **SMALL, seed=1)
    text = [(tmp_path / name / "federated_train.csv").read_text() for name in ("one", "two", "other")]
    assert text[0] == text[1] != text[2]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [
        "one",
        "other",
        "there",
        "two",
    ]


# ------------------------------------------------------------------------------------- any kind of picture


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def test_a_picture_becomes_its_central_square() -> None:
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, 30:70] = (200, 100, 50)
    square = decoding.square(encoded(Image.fromarray(wide)), 20, 3)
    assert square.shape == (20, 20, 3)
    assert (square[:, 1:-1] == (200, 100, 50)).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "I;16"])
def test_every_mode_becomes_grey_or_colour(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((30, 30), 0x8040, np.uint16))
    else:
        image = Image.new("RGB", (30, 30), (128, 128, 128)).convert(mode)
    content = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    for channels in (1, 3):
        square = decoding.square(content, 16, channels)
        assert square.shape == (16, 16, channels)
        if mode != "1":
            assert abs(square.astype(int) - 128).max() <= (8 if mode == "P" else 2)  # P is dithered


def test_a_photograph_is_turned_upright() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    square = decoding.square(encoded(Image.fromarray(pixels), "JPEG", exif=exif, quality=100), 32, 3)
    assert square[:12].max() < 20
    assert square[20:].min() > 235


def test_a_picture_too_large_to_decode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_PIXELS", 1000)
    with pytest.raises(ValueError, match="40 x 30 pixels"):
        decoding.square(encoded(Image.new("L", (40, 30))), 16, 1)
