"""How skewed a division among clients is, in a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import require
from .federation import Federation, Indices, Partition

MOST_CELLS = 400
"""More clients or classes than this cannot be told apart on a page."""


@dataclass(frozen=True)
class Spread:
    """A quantity over all clients."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: npt.NDArray[np.integer] | npt.NDArray[np.floating]) -> Spread:
        return cls(float(values.mean()), float(values.min()), float(values.max()))


@dataclass(frozen=True)
class SplitStatistics:
    """Sizes and class mixtures of the clients.

    ``largest_share`` is the share of a client's most frequent class; ``entropy`` is that of its class shares in
    nats: 0 for one class, ``ln(classes)`` for an even mixture.
    """

    clients: int
    samples: int
    classes: int
    sizes: Spread
    classes_per_client: Spread
    largest_share: Spread
    entropy: Spread


def describe(partition: Partition, labels: Indices, classes: int) -> SplitStatistics:
    """The statistics of a partition; ``labels`` are those of all samples, of 0 .. classes - 1.

    >>> facts = describe(Partition.of([[0, 1], [2, 3]]), np.array([0, 0, 1, 2]), classes=3)
    >>> facts.classes_per_client, round(facts.entropy.most, 4)
    (Spread(mean=1.5, least=1.0, most=2.0), 0.6931)
    """
    clients, sizes = len(partition), partition.sizes
    cells, counts = np.unique(_cells(partition, labels, classes), return_counts=True)
    client = cells // classes
    shares = counts / sizes[client]
    largest = np.zeros(clients)
    np.maximum.at(largest, client, shares)
    return SplitStatistics(
        clients=clients,
        samples=len(partition.indices),
        classes=classes,
        sizes=Spread.of(sizes),
        classes_per_client=Spread.of(np.bincount(client, minlength=clients)),
        largest_share=Spread.of(largest),
        entropy=Spread.of(np.bincount(client, weights=-shares * np.log(shares), minlength=clients) + 0.0),
    )


def class_counts(partition: Partition, labels: Indices, classes: int) -> Indices:
    """How many samples of each class each client has: (clients, classes)."""
    cells = _cells(partition, labels, classes)
    return np.bincount(cells, minlength=len(partition) * classes).reshape(len(partition), classes)


def portrait(federation: Federation) -> dict[str, Any]:
    """What a run keeps of its data, so that a reader without the samples can still draw the division.

    ``counts`` lists each shown client's classes and how many samples it has of each: class, count, class, count.

    >>> federation = Federation.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=[[0, 1], [2]])
    >>> kept = portrait(federation)
    >>> kept["classes"], kept["sizes"], kept["counts"]
    (['0', '1'], [2, 1], [[0, 1, 1, 1], [1, 1]])
    """
    partition, targets = federation.partition, federation.train.targets
    shown = evenly_spaced(len(partition))
    facts: dict[str, Any] = {
        "name": federation.name,
        "train": len(federation.train),
        "test": 0 if federation.test is None else len(federation.test),
        "validation": 0 if federation.validation is None else len(federation.validation),
        "clients": len(partition),
        "shown": shown.tolist(),
        "sizes": partition.sizes[shown].tolist(),
        "classes": [],
        "counts": [],
        "division": None,
    }
    if targets.ndim == 1 and not targets.is_floating_point():
        labels = targets.numpy().astype(np.int64)
        classes = federation.classes or tuple(str(label) for label in range(int(labels.max()) + 1))
        owned = [np.unique(labels[partition[client]], return_counts=True) for client in shown]
        facts["classes"] = list(classes)
        facts["counts"] = [np.stack(pair, axis=1).ravel().tolist() for pair in owned]
        facts["division"] = asdict(describe(partition, labels, len(classes)))
    return facts


def evenly_spaced(clients: int) -> Indices:
    """All clients, or as many as a picture can show."""
    return np.unique(np.linspace(0, clients - 1, min(clients, MOST_CELLS)).round().astype(np.int64))


def _cells(partition: Partition, labels: Indices, classes: int) -> Indices:
    """``client * classes + label`` of every sample that a client owns."""
    kinds = labels[partition.indices]
    inside = bool(kinds.min() >= 0 and kinds.max() < classes)
    require(inside, "labels", f"must lie in 0..{classes - 1}, got {kinds.min()}..{kinds.max()}")
    owners = np.repeat(np.arange(len(partition), dtype=np.int64), partition.sizes)
    cells: Indices = owners * classes + kinds
    return cells
