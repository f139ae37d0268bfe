"""Figures over the rounds: which there are, their means over seeds, and as many points as a screen can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .runs import Column, Run
from .study import Repeats

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quantity:
    """Something recorded over the rounds. ``source`` says in which records, ``key`` under which name."""

    id: str
    title: str
    axis: str
    source: str
    key: str
    percent: bool = False


NORMS: Mapping[str, tuple[str, str]] = {
    "params": ("Norm of the model", "‖w‖"),
    "update": ("Norm of the server's step", "‖w⁺ − w‖"),
    "dual": ("Norm of the server's dual", "‖dual‖"),
    "pseudo_gradient": ("Norm of the pseudo-gradient", "‖pseudo-gradient‖"),
    "params_before_dual": ("Norm of the model before the dual is taken off", "‖w + dual‖"),
}


def quantities(runs: Sequence[Run]) -> list[Quantity]:
    """Everything these runs recorded, in the order in which it is shown."""
    metrics = _names(run.evaluations for run in runs)
    rounds = _names(run.rounds for run in runs)
    found = [_metric(name) for name in metrics if name != "loss" and not name.startswith("client_")]
    found += [Quantity("test_loss", "Test loss", "test loss", "evaluations", "loss")] if "loss" in metrics else []
    if "loss" in rounds:
        found.append(Quantity("train_loss", "Training loss of the cohort", "training loss", "rounds", "loss"))
    norms = [name.removeprefix("norms.") for name in rounds if name.startswith("norms.")]
    for name in sorted(norms, key=lambda n: list(NORMS).index(n) if n in NORMS else len(NORMS)):
        title, axis = NORMS.get(name, (f"Norm of the server's {name.replace('_', ' ')}", f"‖{name}‖"))
        found.append(Quantity(f"norm_{name}", title, axis, "rounds", f"norms.{name}"))
    if "mean_delta_norm" in rounds:
        title = "Mean norm of a client's update"
        found.append(Quantity("norm_client_update", title, "mean ‖client update‖", "rounds", "mean_delta_norm"))
    readings = {"consecutive": "against the round before", "true": "against the unperturbed model"}
    for name, text in readings.items():
        if f"delta_eps.{name}" in rounds:
            title, axis = f"Ascent directions, {text}", "δ_ε / ρ"
            found.append(Quantity(f"delta_eps_{name}", title, axis, "rounds", f"delta_eps.{name}"))
    found += [_metric(name) for name in metrics if name.startswith("client_")]
    return found


def _names(tables: Iterator[Mapping[str, Column]] | Sequence[Mapping[str, Column]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _metric(name: str) -> Quantity:
    words = name.replace("_", " ")
    percent = "accuracy" in name
    title = words[0].upper() + words[1:]
    return Quantity(name, title, f"{words} (%)" if percent else words, "evaluations", name, percent)


@dataclass(frozen=True)
class Curve:
    """Values after ``rounds``, when ``bytes`` had travelled; ``sd`` is over seeds, where the values are means."""

    rounds: Integers
    bytes: Column
    values: Column
    sd: Column | None = None

    def thinned(self, points: int) -> Curve:
        """At most about so many points: the least and greatest value of every stretch, so that no spike is lost.

        >>> many = np.arange(1, 10_001)
        >>> curve = Curve(many, many * 8.0, np.where(many == 7_777, 99.0, 1.0)).thinned(100)
        >>> len(curve.rounds) <= 102, int(curve.rounds[curve.values == 99.0][0])
        (True, 7777)
        """
        if len(self.values) <= points:
            return self
        chosen = _extremes(self.values, max(1, points // 2))
        sd = None if self.sd is None else self.sd[chosen]
        return Curve(self.rounds[chosen], self.bytes[chosen], self.values[chosen], sd)


def _extremes(values: Column, stretches: int) -> Integers:
    """The places of the first and last value, and of the least and greatest in each of so many stretches."""
    width = -(-len(values) // stretches)
    rows = -(-len(values) // width)
    padded = np.full(rows * width, np.nan)
    padded[: len(values)] = values
    table = padded.reshape(rows, width)
    known = ~np.isnan(table)
    starts = np.arange(rows) * width
    least = starts + np.where(known, table, np.inf).argmin(axis=1)
    greatest = starts + np.where(known, table, -np.inf).argmax(axis=1)
    return np.unique(np.concatenate([[0, len(values) - 1], least, greatest])).astype(np.int64)


def curve_of(run: Run, quantity: Quantity) -> Curve | None:
    """A run's curve; None where it did not record the quantity."""
    values = getattr(run, quantity.source).get(quantity.key)
    if values is None or not np.any(np.isfinite(values)):
        return None
    if quantity.source == "evaluations":
        rounds = run.evaluated
        travelled = run.bytes[np.clip(rounds - 1, 0, run.length - 1)] if run.length else np.zeros(len(rounds))
    else:
        rounds, travelled = np.arange(1, run.length + 1), run.bytes
    values = np.where(np.isfinite(values), values, np.nan)
    return Curve(rounds, travelled, 100 * values if quantity.percent else values)


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean and sample standard deviation (ddof = 1) at the rounds all curves have; None for fewer than two."""
    if len(curves) < 2:
        return None
    common = curves[0].rounds
    for curve in curves[1:]:
        common = np.intersect1d(common, curve.rounds, assume_unique=True)
    if not len(common):
        return None
    places = [np.searchsorted(curve.rounds, common) for curve in curves]
    values = np.stack([curve.values[place] for curve, place in zip(curves, places, strict=True)])
    travelled = np.stack([curve.bytes[place] for curve, place in zip(curves, places, strict=True)])
    return Curve(common, travelled.mean(axis=0), values.mean(axis=0), values.std(axis=0, ddof=1))


def curves_of(method: Repeats, quantity: Quantity) -> tuple[Curve | None, list[tuple[int, Curve]]]:
    """The mean over seeds, where there are several, and each seed's own curve."""
    each = [(run.seed, curve) for run in method.runs if (curve := curve_of(run, quantity)) is not None]
    return mean_curve([curve for _, curve in each]), each
