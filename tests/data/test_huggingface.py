from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgloss.errors import InvalidInput

datasets = pytest.importorskip("datasets")
RNG = np.random.default_rng(4)
PICTURES = RNG.integers(0, 256, (18, 20, 20, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


def part(numbers: range, label: object = None, labels: list[object] | None = None) -> datasets.Dataset:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": label or datasets.ClassLabel(names=["cat", "dog", "emu"]),
            "writer": datasets.Value("string"),
        }
    )
    columns = {
        "image": [Image.fromarray(PICTURES[i]) for i in numbers],
        "label": labels or [i % 3 for i in numbers],
        "writer": [f"w{i % 4}" for i in numbers],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def save(folder: Path, **parts: datasets.Dataset) -> Path:
    datasets.DatasetDict(parts).save_to_disk(folder)
    return folder


def test_a_saved_data_set(tmp_path: Path, loaded) -> None:
    path = save(tmp_path / "set", train=part(range(12)), test=part(range(12, 18)))
    data = loaded("huggingface", path=path, side=20, client="writer")
    assert (data.train.fetch(np.arange(12))[0].numpy() == PICTURES[:12]).all()
    assert (data.test.fetch(np.arange(6))[0].numpy() == PICTURES[12:]).all()
    assert data.train_labels.tolist() == [i % 3 for i in range(12)]
    assert data.owners.tolist() == [i % 4 for i in range(12)]
    assert data.classes == ("cat", "dog", "emu")


def test_rows_that_were_selected_and_shuffled(tmp_path: Path, loaded) -> None:
    order = [5, 3, 11, 0]
    path = save(tmp_path / "set", train=part(range(12)).select(order), validation=part(range(12, 18)))
    data = loaded("huggingface", path=path, side=20, client="writer")
    assert (data.train.fetch(np.arange(4))[0].numpy() == PICTURES[order]).all()
    assert data.train_labels.tolist() == [i % 3 for i in order]
    assert len(data.test) == 6


def test_one_part_only_gives_a_test_share(tmp_path: Path, loaded) -> None:
    part(range(18)).save_to_disk(tmp_path / "set")
    data = loaded("huggingface", path=tmp_path / "set", side=20, test_share=0.5)
    assert np.bincount(data.train_labels).tolist() == np.bincount(data.test_labels).tolist() == [3, 3, 3]


def test_parquet_files(tmp_path: Path, loaded) -> None:
    (tmp_path / "files" / "data").mkdir(parents=True)
    part(range(12)).to_parquet(tmp_path / "files" / "data" / "train-0.parquet")
    part(range(12, 18)).to_parquet(tmp_path / "files" / "data" / "test-0.parquet")
    data = loaded("huggingface", path=tmp_path / "files", side=20)
    assert (data.test.fetch(np.arange(6))[0].numpy() == PICTURES[12:]).all()


@pytest.mark.parametrize(
    ("feature", "labels", "classes"),
    [("string", ["b", "a"] * 6, ("a", "b")), ("int64", [0, 2] * 6, ("0", "1", "2"))],
)
def test_labels_that_are_texts_or_plain_numbers(
    tmp_path: Path, loaded, feature: str, labels: list[object], classes: tuple[str, ...]
) -> None:
    path = save(tmp_path / "set", train=part(range(12), datasets.Value(feature), labels))
    assert loaded("huggingface", path=path, side=20).classes == classes


def test_what_does_not_fit(tmp_path: Path, refused) -> None:
    path = save(tmp_path / "set", train=part(range(12)), test=part(range(12, 18)))
    refused("huggingface", "no column 'picture'; there are image, label, writer", path=path, image="picture")
    refused("huggingface", "no column 'user'", path=path, client="user")
    refused("huggingface", "save_to_disk", path=tmp_path / "nowhere")
    refused("huggingface", "no split 'train'", path=save(tmp_path / "other", extra=part(range(3))))
    negative = part(range(12), datasets.Value("int64"), [-1] * 12)
    refused("huggingface", "class numbers from 0", path=save(tmp_path / "negative", train=negative))
    (tmp_path / "empty").mkdir()
    refused("huggingface", "cannot open it", path=tmp_path / "empty")


def test_a_column_that_holds_no_images(tmp_path: Path, loaded) -> None:
    path = save(tmp_path / "set", train=part(range(12)))
    with pytest.raises(InvalidInput, match=r"column 'writer' holds .* not images"):
        loaded("huggingface", path=path, image="writer")


def test_without_the_package_the_extra_is_named(tmp_path: Path, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("huggingface", "pip install 'fedgloss[hf]'", path=tmp_path)
