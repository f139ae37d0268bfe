"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from ..config import DataSection
from ..costs import size as size

CROSS = "✗"


def division(data: DataSection) -> str:
    """Which data, divided how."""
    parts = [data.name, f"split {data.split}"]
    parts += [] if data.alpha is None else [f"alpha {data.alpha:g}"]
    parts += [] if data.classes_per_client is None else [f"{data.classes_per_client} classes a client"]
    return ", ".join([*parts, f"split seed {data.seed}"])


def percent(values: Sequence[float]) -> str:
    """``71.3`` for one value, ``71.3 ± 0.4`` for several: mean and sample standard deviation (ddof = 1)."""
    if not values:
        return "-"
    middle = f"{100 * mean(values):.1f}"
    return middle if len(values) == 1 else f"{middle} ± {100 * stdev(values):.1f}"


def accuracy_cell(summaries: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> str:
    """The paper's way: a cross for runs that diverged, the mean over seeds otherwise."""
    if any(s["status"] == "diverged" for s in summaries):
        return CROSS
    if any(s["status"] != "finished" for s in summaries):
        return "unfinished"
    return percent([s["reported"][metric] for s in summaries if metric in s["reported"]])


def comparison(rows: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> Table:
    """One row a method, over its seeds' summaries."""
    table = Table(title=title, title_justify="left")
    for name, justify in (("method", "left"), ("accuracy %", "right"), ("communication", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("bytes", "rounds", "seeds", "time"):
        table.add_column(name, justify="right")
    for label, summaries in rows.items():
        first = summaries[0]
        table.add_row(
            label,
            accuracy_cell(summaries),
            f"{first['traffic']['factor']:g}x",
            size(mean(s["traffic"]["bytes"] for s in summaries)),
            str(first["rounds"]),
            str(len(summaries)),
            f"{mean(s['seconds'] for s in summaries):.0f} s",
        )
    return table
