"""From a data set to a federation: a split by name, and a validation share for whoever tunes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, require
from ..randomness import stream
from . import splits
from .datasets import DataSet
from .federation import Federation, Indices, Partition, Subset


@dataclass(frozen=True)
class Split:
    """A split by name: what it is, and which settings it takes beside the seed."""

    summary: str
    takes: tuple[str, ...]
    may_take: tuple[str, ...] = ()


SPLITS: Mapping[str, Split] = {
    "hsu": Split(
        "equal sizes, class shares from Dir(alpha * prior), filled one client after the other",
        ("clients", "alpha"),
        ("multinomial",),
    ),
    "official": Split("the authors' own lists, a file or the folder of a data set's files", ("path",), ("alpha",)),
    "iid": Split("random, equal sizes", ("clients",)),
    "shards": Split("exactly so many classes for every client", ("clients", "classes_per_client")),
    "dirichlet": Split("each class divided by Dir(alpha, ..., alpha), unequal sizes", ("clients", "alpha")),
    "natural": Split("the data set's own owners", ()),
}


def federate(
    dataset: DataSet,
    *,
    split: str = "hsu",
    clients: int | None = None,
    alpha: float | None = None,
    classes_per_client: int | None = None,
    multinomial: bool = False,
    path: Path | str | None = None,
    seed: int = 0,
    validation: float = 0.0,
) -> Federation:
    """Divide the training samples among clients.

    A setting that the split does not know is refused. ``validation`` is the share of every client's samples
    (rounded, and never all of them) that is kept out of training and collected in ``Federation.validation``; the
    test set is not touched.
    """
    given = {
        "clients": clients,
        "alpha": alpha,
        "classes_per_client": classes_per_client,
        "multinomial": multinomial or None,
        "path": path,
    }
    require(seed >= 0, "seed", f"must be 0 or more, got {seed}")
    partition = _partition(
        dataset, split, seed, {name: value for name, value in given.items() if value is not None}
    )
    held_out = None
    if validation:
        partition, held_out = hold_out(partition, validation, seed)
    return Federation(
        train=dataset.train,
        partition=partition,
        test=dataset.test,
        transform=dataset.transform,
        name=dataset.name,
        classes=dataset.classes,
        validation=None if held_out is None else Subset(dataset.train, held_out),
        notes=dataset.notes,
    )


def _partition(dataset: DataSet, name: str, seed: int, given: Mapping[str, Any]) -> Partition:
    split = SPLITS.get(name)
    if split is None:
        raise InvalidInput(f"split: unknown split {name!r}; there are {', '.join(SPLITS)}")
    for setting in split.takes:
        require(setting in given, setting, f"the split {name!r} needs it")
    for setting in given:
        require(setting in (*split.takes, *split.may_take), setting, f"the split {name!r} has no such setting")
    labels = dataset.train_labels
    if name == "natural":
        if dataset.owners is None:
            raise InvalidInput(
                f"split: {dataset.name} does not say who owns its samples, so it has no natural split; "
                "take hsu, iid, shards or dirichlet"
            )
        return splits.natural(dataset.owners)
    if name == "official":
        file = official_file(Path(given["path"]), dataset.name, given.get("alpha"))
        return splits.official(file, labels, dataset.train_names)
    if name == "iid":
        return splits.iid(len(labels), seed=seed, **given)
    if name == "shards":
        return splits.shards(labels, seed=seed, **given)
    if name == "dirichlet":
        return splits.dirichlet(labels, seed=seed, **given)
    return splits.hsu(labels, seed=seed, **given)


def official_file(path: Path, name: str, alpha: float | None) -> Path:
    """The file to read: ``path`` itself, or that of this alpha in the folder, or in its sub-folder ``name``."""
    if not path.is_dir():
        return path
    require(alpha is not None, "alpha", f"{path} is a folder: say which alpha's file in it")
    folders = [folder for folder in (path, path / name) if list(folder.glob("federated_train_alpha_*.json"))]
    for folder in folders:
        file = folder / f"federated_train_alpha_{alpha:.2f}.json"
        if file.is_file():
            return file
    there = sorted(
        float(f.stem.rsplit("_", 1)[1]) for folder in folders for f in folder.glob("federated_train_*.json")
    )
    raise InvalidInput(
        f"{path}: no official split of {name} for alpha {alpha:g}; "
        + (f"there are {', '.join(f'{a:g}' for a in there)}" if there else "there is none in this folder")
    )


def hold_out(partition: Partition, share: float, seed: int) -> tuple[Partition, Indices]:
    """Take a random share of every client's samples away: the smaller partition, and what was taken."""
    require(0 < share < 1, "validation", f"must lie in [0, 1), got {share}")
    sizes = partition.sizes
    away = np.minimum(np.floor(share * sizes + 0.5).astype(np.int64), sizes - 1)
    if not away.any():
        raise InvalidInput(f"validation: {share} of clients of at most {sizes.max()} samples is no sample at all")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    luck = stream(seed, "validation").random(len(owner))
    order = np.lexsort((luck, owner))  # client after client, each in random order
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(partition.offsets[:-1], sizes)
    taken = rank < np.repeat(away, sizes)
    kept = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes - away, out=kept[1:])
    return Partition(partition.indices[~taken], kept), partition.indices[taken]
