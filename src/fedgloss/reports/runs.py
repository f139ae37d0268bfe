"""Run folders as values: everything a report shows is read here, checked, and turned into columns."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..costs import Ledger, ledger
from ..errors import InvalidInput
from ..records import RunFolder, read_json, read_lines
from .measurements import MALFORMED, Measurement, read_measurements

Status: TypeAlias = Literal["finished", "diverged", "interrupted", "unfinished"]
Column: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Skipped:
    """A folder, or a file in one, that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it. Columns hold NaN where a line had no such figure.

    ``rounds`` has a column per figure of a round (``loss``, ``norms.params``, ``delta_eps.true``, ...), ``bytes``
    what had travelled by the end of it. ``evaluations`` has a column per metric, at the models after ``evaluated``
    rounds.
    """

    name: str
    path: Path
    status: Status
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    rounds: Mapping[str, Column]
    bytes: Column
    evaluated: npt.NDArray[np.int64]
    evaluations: Mapping[str, Column]
    seconds: Column
    traffic: Ledger
    model_bytes: int = 0
    """What one copy of the model takes on the wire."""
    federation: Mapping[str, Any] | None = None
    measurements: Sequence[Measurement] = ()
    written: float = 0.0
    """When its records last grew, in seconds since the epoch."""

    @property
    def length(self) -> int:
        return len(self.bytes)

    @property
    def seed(self) -> int:
        seed: int = self.section("training").get("seed", 0)
        return seed

    @property
    def planned(self) -> int:
        """The rounds it was to have."""
        rounds: int = self.section("training").get("rounds", self.length)
        return rounds

    @property
    def note(self) -> str:
        return str(self.section("run").get("note", ""))

    def section(self, name: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.config.get(name, {})
        return section

    def travelled(self, rounds: int) -> float:
        """Bytes that had travelled after so many rounds."""
        return float(self.bytes[min(rounds, self.length) - 1]) if rounds and self.length else 0.0

    def reported(self, metric: str) -> float | None:
        """The figure the run reports: a mean over its last rounds. None unless it finished."""
        value: float = self.summary.get("reported", {}).get(metric, math.nan)
        return value if self.status == "finished" and math.isfinite(value) else None


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[Skipped]]:
    """Every run in these folders, and what could not be read."""
    runs: list[Run] = []
    skipped: list[Skipped] = []
    folders, strangers = find_runs(paths)
    skipped += strangers
    names = short_names(folders)
    for folder, name in zip(folders, names, strict=True):
        try:
            run, problems = read_run(folder, name)
        except InvalidInput as error:
            skipped.append(Skipped(str(folder), _without(folder, str(error))))
            continue
        runs.append(run)
        skipped += problems
    return runs, skipped


def find_runs(paths: Iterable[Path]) -> tuple[list[Path], list[Skipped]]:
    """The run folders among these paths and, where a path is no run itself, below it."""
    found: dict[Path, Path] = {}
    skipped = []
    for path in paths:
        below = list(_runs_below(path))
        if not below:
            reason = "is not a run, nor a folder of runs" if path.exists() else "no such folder"
            skipped.append(Skipped(str(path), reason))
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    return list(found.values()), skipped


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(path):
        if "config.toml" in files:
            below.clear()  # a run's own folders may hold a million files
            yield Path(folder)
        below.sort()


def short_names(folders: Sequence[Path]) -> list[str]:
    """Paths without what they have in common.

    >>> short_names([Path("runs/a/one"), Path("runs/b/two")]), short_names([Path("runs/one")])
    (['a/one', 'b/two'], ['one'])
    """
    absolute = [folder.resolve() for folder in folders]
    if len(absolute) < 2:
        return [folder.name for folder in absolute]
    common = os.path.commonpath(absolute)
    return [os.path.relpath(folder, common) for folder in absolute]


def read_run(path: Path, name: str) -> tuple[Run, list[Skipped]]:
    """A run, and the files of its analysis that could not be read; InvalidInput where it is none."""
    folder = RunFolder(path).require()
    try:
        config = tomllib.loads(folder.config.read_text())
    except OSError as error:
        raise InvalidInput(f"{folder.config}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InvalidInput(f"{folder.config}: is not TOML ({error})") from None
    try:
        _check_config(config)
    except MALFORMED as error:
        raise InvalidInput(f"{folder.config}: is not a run's configuration ({error})") from None
    lines = _lines(folder.rounds)
    try:
        records = [line for line in lines if line["type"] == "round"]
        rounds, travelled, carried = _round_columns(records)
        model_bytes = _model_bytes(records)
        evaluated, evaluations = _evaluation_columns([line for line in lines if line["type"] == "evaluation"])
    except MALFORMED as error:
        raise InvalidInput(f"{folder.rounds}: is not the record of a run ({error!r})") from None
    try:
        seconds = np.array([float(line["seconds"]) for line in _lines(folder.timings)], dtype=np.float64)
    except MALFORMED as error:
        raise InvalidInput(f"{folder.timings}: is not the timing of a run ({error!r})") from None
    summary = _optional(folder.summary)
    try:
        summary |= {"reported": {k: float(v) for k, v in (summary.get("reported") or {}).items() if v is not None}}
    except MALFORMED as error:
        raise InvalidInput(f"{folder.summary}: is not the summary of a run ({error})") from None
    measurements, problems = read_measurements(folder.analysis)
    run = Run(
        name=name,
        path=path,
        status=_status(summary, len(travelled)),
        config=config,
        environment=read_json(folder.environment),
        summary=summary,
        rounds=rounds,
        bytes=travelled,
        evaluated=evaluated,
        evaluations=evaluations,
        seconds=seconds,
        traffic=carried,
        model_bytes=model_bytes,
        federation=_federation(folder),
        measurements=measurements,
        written=folder.rounds.stat().st_mtime if folder.rounds.exists() else 0.0,
    )
    return run, [Skipped(f"{path / 'analysis' / file}", reason) for file, reason in problems]


def _check_config(config: Mapping[str, Any]) -> None:
    sections = ("data", "model", "local", "algorithm", "training", "run")
    wrong = next((name for name in sections if not isinstance(config.get(name, {}), dict)), None)
    if wrong:
        raise TypeError(f"{wrong} is not a section")
    if not isinstance(config.get("algorithm", {}).get("name"), str):
        raise TypeError("algorithm.name is missing")
    for key, least in (("seed", 0), ("rounds", 1), ("eval_every", 1)):
        value = config.get("training", {}).get(key, 1)
        if not isinstance(value, int) or value < least:
            raise TypeError(f"training.{key} is no count")


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = read_lines(path) if path.exists() else []
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
    except (RecursionError, AttributeError):
        raise InvalidInput(f"{path}: is not a record") from None
    return lines


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _status(summary: Mapping[str, Any], length: int) -> Status:
    """A summary speaks for its run only while no later round has been recorded."""
    status = summary.get("status")
    if status in ("finished", "diverged", "interrupted") and summary.get("rounds") == length:
        found: Status = status
        return found
    return "unfinished"


def _round_columns(lines: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Column], Column, Ledger]:
    columns = _Columns(len(lines))
    travelled = np.zeros(len(lines))
    for index, line in enumerate(lines):
        if line["round"] != index:
            raise ValueError(f"round {line['round']} where {index} belongs")
        columns.put(index, "loss", line["loss"])
        columns.put(index, "mean_delta_norm", line["mean_delta_norm"])
        for name, value in line["norms"].items():
            columns.put(index, f"norms.{name}", value)
        for name, value in line["delta_eps"].items():
            columns.put(index, f"delta_eps.{name}", value)
        travelled[index] = line["down"]["bytes"] + line["up"]["bytes"]
    carried = ledger(lines)
    counts = (carried.down, carried.up, carried.factor, *carried.by_vector.values())
    if not all(0 <= float(count) < math.inf for count in counts):
        raise ValueError("vectors or bytes that are no count")
    return columns.found, np.cumsum(travelled), carried


def _model_bytes(lines: Sequence[Mapping[str, Any]]) -> int:
    down = lines[0]["down"] if lines else {}
    sent, copies = (down.get(key, {}).get("params", 0) for key in ("vector_bytes", "vectors"))
    return int(sent) // int(copies) if copies else 0


def _evaluation_columns(
    lines: Sequence[Mapping[str, Any]],
) -> tuple[npt.NDArray[np.int64], dict[str, Column]]:
    columns = _Columns(len(lines))
    for index, line in enumerate(lines):
        for name, value in line["metrics"].items():
            columns.put(index, name, value)
    evaluated = np.array([line["rounds"] for line in lines], dtype=np.int64)
    if np.any(np.diff(evaluated) <= 0):
        raise ValueError("evaluations out of order")
    return evaluated, columns.found


@dataclass
class _Columns:
    """Columns that appear when their first value does."""

    length: int
    found: dict[str, Column] = field(default_factory=dict)

    def put(self, index: int, name: str, value: float | None) -> None:
        if name not in self.found:
            self.found[name] = np.full(self.length, np.nan)
        self.found[name][index] = math.nan if value is None else value


def _federation(folder: RunFolder) -> dict[str, Any] | None:
    """The portrait of the data; None where the run has none (an older one) or it does not hold together."""
    found = _optional(folder.federation)
    try:
        clean: dict[str, Any] = {key: int(found[key]) for key in ("train", "test", "clients")}
        clean |= {key: [int(number) for number in found[key]] for key in ("shown", "sizes")}
        clean |= {"name": str(found["name"]), "classes": [str(name) for name in found["classes"]]}
        clean["counts"] = [[int(number) for number in client] for client in found["counts"]]
        division = found["division"] and {
            key: {end: float(found["division"][key][end]) for end in ("mean", "least", "most")}
            for key in ("sizes", "classes_per_client")
        }
    except MALFORMED:
        return None
    shown, counts, classes = len(clean["shown"]), clean["counts"], len(clean["classes"])
    inside = all(0 <= label < classes for client in counts for label in client[::2])
    positive = all(number >= 0 for client in counts for number in client[1::2])
    fits = len(clean["sizes"]) == shown and len(counts) in (0, shown) and all(len(c) % 2 == 0 for c in counts)
    return {**clean, "division": division or None} if fits and inside and positive else None


def _without(folder: Path, message: str) -> str:
    """A message without the folder that is named beside it."""
    return message.removeprefix(f"{folder}{os.sep}").removeprefix(f"{folder}: ")
