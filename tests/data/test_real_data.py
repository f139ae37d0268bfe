"""The real, complete data sets: CIFAR-10 through `fedgloss data get`, Fashion-MNIST from Debian's package."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from python_2 import array, entries, number, python_batch, text

from fedgloss.data import idx
from fedgloss.data.datasets import DataSet, channel_statistics, load
from fedgloss.data.download import get
from fedgloss.data.federate import federate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(autouse=True)
def cache(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGLOSS_CACHE", str(downloads))
    return downloads


@pytest.fixture
def cifar10() -> DataSet:
    get("cifar10")
    data = load("cifar10")
    assert isinstance(data, DataSet)
    return data


@pytest.fixture
def lists() -> Path:
    chosen = os.environ.get("FEDGLOSS_OFFICIAL_SPLITS")
    folder = Path(chosen) if chosen else Path(__file__).parents[3] / "shared" / "data" / "official_splits"
    if not folder.is_dir():
        pytest.skip("the authors' lists are not here; FEDGLOSS_OFFICIAL_SPLITS names their folder")
    return folder


def test_cifar10_is_complete(cifar10: DataSet) -> None:
    assert cifar10.notes["published"]
    assert np.bincount(cifar10.train_labels).tolist() == [5000] * 10
    assert np.bincount(cifar10.test_labels).tolist() == [1000] * 10
    mean, std = channel_statistics(cifar10.train, limit=50_000)
    assert mean == (0.4914, 0.4822, 0.4465) == cifar10.transform.mean
    assert np.abs(np.subtract(std, cifar10.transform.std)).max() < 2e-4


def test_cifar10_first_pictures(cifar10: DataSet) -> None:
    """What everyone sees first: a frog, two trucks, a deer, two cars."""
    names = [cifar10.classes[label] for label in cifar10.train_labels[:6]]
    assert names == ["frog", "truck", "truck", "deer", "automobile", "automobile"]
    assert [cifar10.classes[label] for label in cifar10.test_labels[:4]] == ["cat", "ship", "ship", "airplane"]
    frog = cifar10.train.fetch(np.array([0]))[0][0]
    assert frog[0, 0].tolist() == [59, 62, 63]
    assert frog[31, 31].tolist() == [123, 92, 72]


def test_the_authors_lists_of_cifar10(cifar10: DataSet, lists: Path) -> None:
    released = load("cifar10", lists=lists, emulate_leak=True)
    assert isinstance(released, DataSet)
    assert (len(released.train), len(released.test)) == (49_999, 9_999)
    for whole, listed, missing in (
        (cifar10.train_names, released.train_names, b"10100"),
        (cifar10.test_names, released.test_names, b"5852"),
    ):
        assert [name.split(b"_")[1] for name in set(whole.tolist()) - set(listed.tolist())] == [missing]
    assert released.notes["leaked test pictures"] == 1006
    rows = released.train.rows
    leaked = np.flatnonzero(rows >= 50_000)
    assert len(leaked) == 1006
    pictures, labels = released.train.fetch(leaked)
    originals, originally = cifar10.test.fetch(rows[leaked] - 50_000)
    assert (pictures == originals).all()
    assert (labels == originally).all(), "with the right labels"


@pytest.mark.parametrize("alpha", [0.0, 0.05, 1.0, 5.0, 10.0, 100.0])
def test_the_official_splits_resolve_on_clean_and_on_released_data(lists: Path, alpha: float) -> None:
    for options in ({}, {"lists": lists}):
        data = load("cifar10", **options)
        assert isinstance(data, DataSet)
        federation = federate(data, split="official", path=lists, alpha=alpha)
        assert federation.population == 100
        assert federation.partition.sizes.sum() == 49_999
        if alpha == 0:
            for client in range(100):
                assert len(set(data.train_labels[federation.partition[client]].tolist())) == 1


def test_the_authors_lists_of_cifar100(lists: Path, tmp_path: Path) -> None:
    """A python archive of full size with the true names and labels; only the pictures are made up."""
    for part, file in (("train", "federated_train_alpha_0.50.json"), ("test", "test.json")):
        users = json.loads((lists / "cifar100" / file).read_text())["users_data"].values()
        pairs = [pair for user in users for pair in zip(user["x"], user["y"], strict=True)]
        if part == "test":
            pairs.append(("left_out_s_000001.png", 7))
        pairs = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]
        assert len(pairs) == {"train": 50_000, "test": 10_000}[part]
        rows = np.zeros((len(pairs), 3072), np.uint8)
        rows[:, :2] = np.arange(len(pairs), dtype=np.uint16)[:, None].view(np.uint8)
        batch = python_batch(
            filenames=entries([text(name) for name, _ in pairs]),
            fine_labels=entries([number(label) for _, label in pairs]),
            data=array(rows),
        )
        (tmp_path / part).write_bytes(batch)
    data = load("cifar100", path=tmp_path, lists=lists, emulate_leak=True)
    assert isinstance(data, DataSet)
    assert (len(data.train), len(data.test)) == (50_000, 9_999)
    assert data.notes["leaked test pictures"] == 2
    clean = load("cifar100", path=tmp_path)
    assert isinstance(clean, DataSet)
    assert len(set(clean.train_names.tolist())) == 49_999
    assert np.bincount(clean.train_labels).tolist() == [500] * 100
    for alpha in (0, 0.5, 1000):
        federation = federate(clean, split="official", path=lists, alpha=alpha)
        assert federation.partition.sizes.tolist() == [500] * 100


def test_fashion_mnist_is_complete() -> None:
    if not idx.DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    data = load("fashion-mnist")
    assert isinstance(data, DataSet)
    assert data.notes["published"]
    assert np.bincount(data.train_labels).tolist() == [6000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert channel_statistics(data.train, limit=60_000) == (data.transform.mean, data.transform.std)
    assert [data.classes[label] for label in data.train_labels[:4]] == ["ankle boot", "t-shirt", "t-shirt", "dress"]
