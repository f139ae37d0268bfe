"""What was measured on a finished run: the files of its ``analysis`` folder.

A result is known by its fields, wherever in a file it stands; its place in the file becomes part of its name. What
is not known, or does not hold together, is left out and named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal[
    "eigenvalues", "surface", "interpolation", "density", "local", "trace", "worst_case", "average_case", "drift"
]

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a file raises that is JSON but no record of ours."""


@dataclass(frozen=True)
class Measurement:
    """One result: what it is, where it was found, its figures, and on what they were taken."""

    kind: Kind
    name: str
    content: Mapping[str, Any]

    @property
    def subject(self) -> Mapping[str, Any]:
        """Split, samples, weights: what the figures are of."""
        subject: Mapping[str, Any] = self.content.get("subject") or {}
        return subject


def read_measurements(folder: Path) -> tuple[list[Measurement], list[tuple[str, str]]]:
    """All results in a folder's JSON files, and (file, reason) for what could not be read."""
    found: list[Measurement] = []
    problems: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            found += _walk(content, path.stem)
        except OSError as error:
            problems.append((path.name, f"cannot be read ({error.strerror})"))
        except MALFORMED as error:
            problems.append((path.name, f"is not the result of an analysis ({error})"))
    return _lines_once(found), problems


def _lines_once(found: Sequence[Measurement]) -> list[Measurement]:
    """A line between two models may have been measured on one split alone, and again on all."""
    kept: dict[str, Measurement] = {}
    for one in found:
        same = str(len(kept))
        if one.kind == "interpolation":
            same = repr((one.content["to"] or one.name, one.subject, one.content["coefficients"].tolist()))
        kept.setdefault(same, one)
    return list(kept.values())


def _walk(content: Any, name: str) -> Iterator[Measurement]:
    if isinstance(content, dict):
        for kind, (fields, check) in _KINDS.items():
            if fields <= content.keys():
                yield Measurement(kind, name, check(content))
                return
        for key, value in content.items():
            yield from _walk(value, f"{name} {key}")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            if isinstance(value, dict | list):
                yield from _walk(value, f"{name} {index}" if len(content) > 1 else name)


def _numbers(values: Any, *shape: int) -> npt.NDArray[np.float64]:
    """An array of this shape, null being NaN."""
    array = np.array(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"an array of shape {array.shape} where {shape} belongs")
    return array


def _number(value: Any) -> float:
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return math.nan if value is None else float(value)


def _estimates(values: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    return [{key: _number(one.get(key)) for key in ("value", "residual", "spread")} for one in values]


def _eigenvalues(content: Mapping[str, Any]) -> dict[str, Any]:
    top, bottom = _estimates(content["top"]), _estimates(content["bottom"])
    if not top and not bottom:
        raise ValueError("no eigenvalue in it")
    return {
        "top": top,
        "bottom": bottom,
        "method": str(content["method"]),
        "products": int(content["products"]),
        "converged": bool(content["converged"]),
        "subject": _subject(content),
    }


def _surface(content: Mapping[str, Any]) -> dict[str, Any]:
    x, y = _numbers(content["x"], len(content["x"])), _numbers(content["y"], len(content["y"]))
    grids = {str(k): _numbers(grid, len(y), len(x)) for k, grid in content["grids"].items()}
    if min(len(x), len(y)) < 2 or "loss" not in grids or not np.isfinite(grids["loss"]).any():
        raise ValueError("no surface of the loss in it")
    return {
        "x": x,
        "y": y,
        "grids": grids,
        "centre": {str(k): _number(value) for k, value in content["centre"].items()},
        "directions": str(content.get("directions", "")),
        "seed": content.get("seed"),
        "subject": _subject(content),
    }


def _interpolation(content: Mapping[str, Any]) -> dict[str, Any]:
    places = _numbers(content["coefficients"], len(content["coefficients"]))
    curves = {str(k): _numbers(curve, len(places)) for k, curve in content["curves"].items()}
    ends = {"to": str(content.get("to", "")), "barrier": _number(content.get("barrier"))}
    return {"coefficients": places, "curves": curves, **ends, "subject": _subject(content)}


def _density(content: Mapping[str, Any]) -> dict[str, Any]:
    probes = [
        (_numbers(points, len(points)), _numbers(masses, len(points)))
        for points, masses in zip(content["points"], content["masses"], strict=True)
    ]
    if not probes or not all(np.isfinite(points).all() and (masses >= 0).all() for points, masses in probes):
        raise ValueError("no density in it")
    return {"probes": probes, "subject": _subject(content)}


def _local(content: Mapping[str, Any]) -> dict[str, Any]:
    here, union = _eigenvalues(content["local"]), _eigenvalues(content["union"])
    return {"client": int(content["client"]), "local": here, "union": union, "subject": union["subject"]}


def _scalars(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def check(content: Mapping[str, Any]) -> dict[str, Any]:
        return {**{name: _number(content[name]) for name in names}, "subject": _subject(content)}

    return check


def _subject(content: Mapping[str, Any]) -> dict[str, Any]:
    subject = content.get("subject") or {}
    return {str(key): value for key, value in subject.items() if isinstance(value, str | int | float)}


_KINDS: Mapping[Kind, tuple[frozenset[str], Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "local": (frozenset({"client", "local", "union"}), _local),
    "eigenvalues": (frozenset({"top", "bottom", "method"}), _eigenvalues),
    "surface": (frozenset({"x", "y", "grids"}), _surface),
    "interpolation": (frozenset({"coefficients", "curves"}), _interpolation),
    "density": (frozenset({"points", "masses"}), _density),
    "worst_case": (frozenset({"value", "rho", "steps"}), _scalars("value", "rho", "steps", "loss")),
    "average_case": (frozenset({"value", "error", "sigma"}), _scalars("value", "error", "sigma", "loss")),
    "trace": (frozenset({"value", "error", "products"}), _scalars("value", "error", "products")),
    "drift": (
        frozenset({"drift", "agreement", "pairwise"}),
        _scalars("drift", "agreement", "pairwise", "mean_update_norm"),
    ),
}
