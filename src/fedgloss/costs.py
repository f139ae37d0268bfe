"""What communication bought: rounds and bytes until a target was reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ledger:
    """All that travelled in a run, from its records: bytes as the codec writes them, down and up, by vector."""

    rounds: int
    down: int
    up: int
    vectors_down: float
    vectors_up: float
    by_vector: Mapping[str, int]

    @property
    def bytes(self) -> int:
        return self.down + self.up

    @property
    def factor(self) -> float:
        """Vectors per client and round in units of FedAvg's one down and one up."""
        return (self.vectors_down + self.vectors_up) / 2


def ledger(rounds: Lines) -> Ledger:
    """Summed over the ``round`` lines of a run."""
    by_vector: dict[str, int] = {}
    clients = sum(len(line["cohort"]) for line in rounds)
    carried = {"down": 0, "up": 0}
    for line in rounds:
        for way in ("down", "up"):
            carried[way] += sum(line[way]["vectors"].values())
            for name, size in line[way]["vector_bytes"].items():
                by_vector[f"{way}.{name}"] = by_vector.get(f"{way}.{name}", 0) + size
    return Ledger(
        rounds=len(rounds),
        down=sum(line["down"]["bytes"] for line in rounds),
        up=sum(line["up"]["bytes"] for line in rounds),
        vectors_down=carried["down"] / clients if clients else 0.0,
        vectors_up=carried["up"] / clients if clients else 0.0,
        by_vector=by_vector,
    )


@dataclass(frozen=True)
class Reached:
    """When a target was first reached: rounds done, and bytes that had travelled by then."""

    rounds: int
    bytes: int


def reach(
    evaluated: Sequence[int],
    values: Sequence[float],
    travelled: Sequence[float],
    target: float,
    *,
    every: int = 1,
) -> Reached | None:
    """The first evaluation at or above ``target``, on the grid of every ``every`` rounds; None if never.

    The evaluations are given as columns: the rounds done, the metric, and the bytes that had travelled by then. The
    value is the raw one of that evaluation, not a running mean.

    >>> reach([50, 100, 150, 200], [0.3, 0.5, 0.8, 0.7], [10, 20, 30, 40], target=0.6, every=100)
    Reached(rounds=200, bytes=40)
    """
    for done, value, sent in zip(evaluated, values, travelled, strict=True):
        if done % every == 0 and value >= target:
            return Reached(int(done), int(sent))
    return None


def size(count: float) -> str:
    """Bytes in words.

    >>> size(1_500_000_000), size(12)
    ('1.5 GB', '12 B')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
