"""From a data set to a federation, its statistics and its picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedgloss import InvalidInput, Partition
from fedgloss.data import ArraySamples, splits
from fedgloss.data.datasets import DataSet
from fedgloss.data.federate import SPLITS, federate, hold_out
from fedgloss.data.pictures import draw_split, split_figure
from fedgloss.data.statistics import class_counts, describe
from fedgloss.data.transforms import PictureTransform

LABELS = np.arange(600, dtype=np.int64) % 6


def dataset(**changes) -> DataSet:
    """Pictures whose single pixel is their number (modulo 251), so that a sample can be told by its content."""
    pixels = torch.from_numpy((np.arange(600) % 251).astype(np.uint8)).reshape(600, 1, 1, 1)
    facts = {
        "name": "toy",
        "train": ArraySamples(pixels, torch.from_numpy(LABELS)),
        "test": ArraySamples(pixels[:30], torch.from_numpy(LABELS[:30])),
        "train_labels": LABELS,
        "test_labels": LABELS[:30],
        "classes": tuple("abcdef"),
        "transform": PictureTransform((0.5,), (0.5,), padding=0),
    }
    return DataSet(**(facts | changes))


def official(tmp_path, alpha="0.50"):
    data = {str(user): {"x": [f"img_{i}_label_{i % 6}.png" for i in range(user, 590, 10)]} for user in range(10)}
    for user, entry in data.items():
        entry["y"] = [i % 6 for i in range(int(user), 590, 10)]
    content = {"users": list(range(10)), "num_samples": [59] * 10, "users_data": data}
    (tmp_path / "toy").mkdir(exist_ok=True)
    file = tmp_path / "toy" / f"federated_train_alpha_{alpha}.json"
    file.write_text(json.dumps(content))
    return file


def test_every_split_by_name(tmp_path):
    owners = np.repeat(np.arange(12), 50)
    settings_of = {
        "hsu": {"clients": 12, "alpha": 0.5},
        "official": {"path": official(tmp_path)},
        "iid": {"clients": 12},
        "shards": {"clients": 12, "classes_per_client": 2},
        "dirichlet": {"clients": 12, "alpha": 0.5},
        "natural": {},
    }
    assert set(settings_of) == set(SPLITS)
    for name, given_ in settings_of.items():
        source = dataset(owners=owners)
        federation = federate(source, split=name, **given_)
        assert federation.population == (10 if name == "official" else 12)
        assert len(federation.partition.indices) == (590 if name == "official" else 600)
        assert federation.train is source.train
        assert federation.test is source.test
        assert federation.transform is source.transform
        assert (federation.name, federation.classes) == ("toy", tuple("abcdef"))
        assert federation.validation is None


def test_the_split_is_the_function_of_that_name():
    drawn = federate(dataset(), split="hsu", clients=12, alpha=1.0, multinomial=True, seed=5).partition
    expected = splits.hsu(LABELS, 12, 1.0, seed=5, multinomial=True)
    assert drawn.indices.tolist() == expected.indices.tolist()


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"split": "random"}, "split: unknown split 'random'; there are hsu, official"),
        ({"clients": 5}, "alpha: the split 'hsu' needs it"),
        ({"split": "iid", "clients": 5, "alpha": 1.0}, "alpha: the split 'iid' has no such setting"),
        ({"split": "iid", "clients": 5, "multinomial": True}, "multinomial: the split 'iid' has no such setting"),
        ({"split": "natural", "clients": 5}, "clients: the split 'natural' has no such setting"),
        ({"split": "natural"}, "split: toy does not say who owns its samples"),
        ({"split": "shards", "clients": 5}, "classes_per_client: the split 'shards' needs it"),
        ({"split": "official"}, "path: the split 'official' needs it"),
        ({"clients": 601, "alpha": 1.0}, "clients: 601 clients cannot share 600 samples"),
        ({"clients": 0, "alpha": 1.0}, "clients: must be at least 1, got 0"),
        ({"clients": 6, "alpha": 1.0, "seed": -1}, "seed: must be 0 or more"),
        ({"clients": 6, "alpha": 1.0, "validation": 1.0}, "validation: must lie in"),
        ({"clients": 6, "alpha": 1.0, "validation": -0.1}, "validation: must lie in"),
        ({"clients": 600, "alpha": 1.0, "validation": 0.1}, "validation: 0.1 of clients of at most 1 samples"),
    ],
)
def test_what_does_not_fit_is_said(given_, message):
    with pytest.raises(InvalidInput, match=message):
        federate(dataset(), **given_)


def test_the_official_file_is_found_in_its_folder(tmp_path):
    official(tmp_path)
    official(tmp_path, "10.00")
    for folder in (tmp_path, tmp_path / "toy"):
        assert federate(dataset(), split="official", path=folder, alpha=0.5).population == 10
    with pytest.raises(InvalidInput, match=r"no official split of toy for alpha 0.7; there are 0.5, 10$"):
        federate(dataset(), split="official", path=tmp_path, alpha=0.7)
    with pytest.raises(InvalidInput, match=r"alpha: .* is a folder"):
        federate(dataset(), split="official", path=tmp_path)
    with pytest.raises(InvalidInput, match="authors' repository"):
        federate(dataset(), split="official", path=tmp_path / "absent", alpha=0.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="there is none in this folder"):
        federate(dataset(), split="official", path=tmp_path / "empty", alpha=0.5)


# ----------------------------------------------------------------------------------------------- validation


def test_a_validation_share_of_every_client():
    source = dataset()
    whole = federate(source, split="dirichlet", clients=12, alpha=1.0, seed=3)
    part = federate(source, split="dirichlet", clients=12, alpha=1.0, seed=3, validation=0.1)
    held = part.validation.indices
    assert part.test is source.test
    for client in range(12):
        before, after = set(whole.partition[client].tolist()), set(part.partition[client].tolist())
        away = before - after
        assert after < before
        assert away <= set(held.tolist())
        assert len(away) == min(int(0.1 * len(before) + 0.5), len(before) - 1)
    assert sorted([*held, *part.partition.indices]) == list(range(600))
    inputs, targets = part.validation.fetch(np.arange(len(held)))
    assert inputs.flatten().tolist() == (held % 251).tolist()
    assert targets.tolist() == LABELS[held].tolist()
    again = federate(source, split="dirichlet", clients=12, alpha=1.0, seed=3, validation=0.1)
    other = federate(source, split="dirichlet", clients=12, alpha=1.0, seed=4, validation=0.1)
    assert again.validation.indices.tolist() == held.tolist()
    assert other.validation.indices.tolist() != held.tolist()


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=20), share=st.floats(0.01, 0.99))
def test_holding_out_loses_no_sample(sizes, share):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    partition = Partition(np.random.default_rng(0).permutation(offsets[-1]), offsets)
    try:
        kept, away = hold_out(partition, share, seed=0)
    except InvalidInput:
        assert all(min(int(share * size + 0.5), size - 1) == 0 for size in sizes)
        return
    assert sorted([*kept.indices, *away]) == list(range(offsets[-1]))
    assert (kept.sizes >= 1).all()
    for client, size in enumerate(sizes):
        mine = partition[client].tolist()
        assert set(kept[client].tolist()) <= set(mine)
        assert len(kept[client]) == size - min(int(np.floor(share * size + 0.5)), size - 1)


def test_what_is_held_out_is_random():
    partition = Partition.of([np.arange(1000), np.arange(1000, 2000)])
    _, away = hold_out(partition, 0.5, seed=0)
    assert 400 < (away % 1000 < 500).sum() < 600


# ----------------------------------------------------------------------------------------------- statistics


def test_statistics_by_hand():
    labels = np.array([0, 0, 0, 1, 2, 2])
    facts = describe(Partition.of([[0, 1, 2, 3], [4], [5]]), labels, classes=4)
    assert (facts.clients, facts.samples, facts.classes) == (3, 6, 4)
    assert (facts.sizes.mean, facts.sizes.least, facts.sizes.most) == (2, 1, 4)
    assert (facts.classes_per_client.mean, facts.classes_per_client.most) == (4 / 3, 2)
    assert facts.largest_share.least == 0.75
    assert facts.entropy.most == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert facts.entropy.least == 0
    table = class_counts(Partition.of([[0, 1, 2, 3], [4], [5]]), labels, 4)
    assert table.tolist() == [[3, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    with pytest.raises(InvalidInput, match=r"labels: must lie in 0\.\.1"):
        describe(Partition.of([[0], [5]]), labels, 2)


# ------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize(("clients", "classes"), [(2, 3), (100, 10), (100, 100), (1262, 2028), (1, 1)])
def test_the_picture_is_written_as_png_and_svg(tmp_path, clients, classes):
    labels = np.arange(max(clients, classes) * 5, dtype=np.int64) % classes
    partition = splits.iid(len(labels), clients)
    names = [f"class {i}" for i in range(classes)]
    png, svg = draw_split(partition, labels, names, tmp_path / "figures" / "split_alpha_0.05", "toy, alpha 0.05")
    assert (png.name, svg.name) == ("split_alpha_0.05.png", "split_alpha_0.05.svg")
    image = Image.open(png)
    assert image.width == 1500
    assert len(set(image.convert("L").tobytes())) > 3
    root = ElementTree.parse(svg).getroot()
    text = " ".join("".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "toy, alpha 0.05" in text
    assert f"{clients:,} clients of" in text
    assert ("evenly spaced" in text) == (clients > 400)
    assert sorted(f.name for f in png.parent.iterdir()) == [png.name, svg.name]
    before = svg.read_bytes(), png.read_bytes()
    draw_split(partition, labels, names, tmp_path / "figures" / "split_alpha_0.05", "toy, alpha 0.05")
    assert (svg.read_bytes(), png.read_bytes()) == before


def test_the_picture_shows_the_shares():
    labels = np.array([0, 0, 0, 1, 1])
    figure = split_figure(Partition.of([[0, 1, 2, 3], [4]]), labels, ["cat", "dog"], "two")
    cells = figure.axes[1].images[0].get_array()
    assert cells.filled(0).tolist() == [[0.75, 0.0], [0.25, 1.0]]
    assert cells.mask.tolist() == [[False, True], [False, False]]
    assert [bar.get_height() for bar in figure.axes[0].patches] == [4, 1]
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] == ["cat", "dog"]


def test_a_picture_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        draw_split(Partition.of([[0], [1]]), np.array([0, 1]), ["a", "b"], tmp_path / "file" / "picture", "two")
