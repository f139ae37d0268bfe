"""Runs put in order: settings, the methods compared in each, and the seeds each was repeated with.

Two runs share a setting if they differ at most in method and seed; they are repeats of one method if they differ in
the seed alone. Nothing here touches files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, TypeAlias

import numpy as np

from ..costs import Reached, reach
from .measurements import Kind, Measurement
from .paper import FIXED_CLIENTS
from .runs import Run, Skipped, Status

METHOD_NAMES: Mapping[str, str] = {
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedprox": "FedProx",
    "fedsam": "FedSAM",
    "fedasam": "FedASAM",
    "feddyn": "FedDyn",
    "scaffold": "SCAFFOLD",
    "fedspeed": "FedSpeed",
    "fedgamma": "FedGamma",
    "fedcm": "FedCM",
    "mofedsam": "MoFedSAM",
    "fedlesam": "FedLESAM",
    "adabest": "AdaBest",
    "fedsmoo": "FedSMOO",
    "server-sam": "Server SAM",
    "naive-fedgloss": "NaiveFedGloSS",
    "fedgloss": "FedGloSS",
    "wima": "WIMA",
    "swa": "SWA",
    "sgd": "centralised SGD",
    "sam": "centralised SAM",
    "sam-previous": "centralised SAM~",
}
"""In the order of a table: plain methods first, ours last, then what is not federated."""

SAM_CLIENTS = ("fedasam", "mofedsam", "fedlesam")
"""Methods beyond the paper's whose clients are sharpness-aware."""

NOT_DECISIVE = {
    "data": ("path", "lists"),
    "training": ("seed", "client_accuracy", "true_delta_eps", "max_norm"),
}
"""What two runs of one setting may differ in beside the method: places on disk, the seed, what is looked at."""

CURVATURE_SUBJECT = ("split", "samples", "weights", "preprocessing", "weighting")
"""What two eigenvalues must have in common to be compared, beside how they were found."""

CONFIDENCE = 0.95

Seeds: TypeAlias = Mapping[int, float]
"""One value a seed."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its sample standard deviation (ddof = 1), None with one seed."""

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate | None:
        found = list(values)
        return cls(fmean(found), stdev(found) if len(found) > 1 else None, len(found)) if found else None


@dataclass(frozen=True)
class Paired:
    """The mean difference of two methods over the seeds both have, and the t interval around it."""

    difference: float
    low: float
    high: float
    seeds: int

    @property
    def supports(self) -> bool:
        """Whether the interval leaves no doubt about the sign."""
        return self.low > 0 or self.high < 0


def paired(one: Seeds, other: Seeds) -> Paired | None:
    """``one - other`` over common seeds; None with fewer than two of them.

    >>> found = paired({0: 0.80, 1: 0.82, 2: 0.81}, {0: 0.78, 1: 0.79, 2: 0.79})
    >>> round(found.difference, 4), round(found.low, 4), round(found.high, 4), found.supports
    (0.0233, 0.009, 0.0377, True)
    """
    from scipy.special import stdtrit

    differences = [one[seed] - other[seed] for seed in one if seed in other]
    if len(differences) < 2:
        return None
    mean = fmean(differences)
    error = stdev(differences) / math.sqrt(len(differences))
    reach_out = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2)) * error
    return Paired(mean, mean - reach_out, mean + reach_out, len(differences))


@dataclass(frozen=True)
class Repeats:
    """One method in one setting: its runs, one a seed."""

    label: str
    client: str
    algorithm: Mapping[str, Any]
    runs: Sequence[Run]

    @property
    def method(self) -> str:
        name: str = self.algorithm["name"]
        return name

    @property
    def diverged(self) -> bool:
        return any(run.status == "diverged" for run in self.runs)

    @property
    def complete(self) -> bool:
        return all(run.status == "finished" for run in self.runs)

    def reported(self, metric: str) -> dict[int, float]:
        """The reported figure of each seed; empty where one diverged or has not finished."""
        if not self.complete:
            return {}
        values = {run.seed: run.reported(metric) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}

    def measurements(self, kind: Kind) -> Iterator[tuple[Run, Measurement]]:
        for run in self.runs:
            for measurement in run.measurements:
                if measurement.kind == kind:
                    yield run, measurement


@dataclass(frozen=True)
class Target:
    """When FedAvg's accuracy was reached: means over the seeds that reached it."""

    rounds: float
    bytes: float
    reached: int
    seeds: int


@dataclass(frozen=True)
class Setting:
    """What runs have in common that may be compared."""

    name: str
    config: Mapping[str, Any]
    methods: Sequence[Repeats]

    @property
    def runs(self) -> Iterator[Run]:
        for method in self.methods:
            yield from method.runs

    @cached_property
    def metric(self) -> str:
        """Accuracy, or the loss where that alone was measured."""
        measured = {name for run in self.runs for name in run.evaluations}
        return "loss" if "loss" in measured and "accuracy" not in measured else "accuracy"

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "accuracy"

    @cached_property
    def reference(self) -> Repeats | None:
        """FedAvg, against which cost is counted."""
        found = [method for method in self.methods if method.method == "fedavg"]
        return found[0] if found else None

    @cached_property
    def target(self) -> float | None:
        """FedAvg's reported accuracy."""
        if self.reference is None or not self.higher_is_better:
            return None
        estimate = Estimate.of(self.reference.reported(self.metric).values())
        return estimate.mean if estimate else None

    def reached(self, method: Repeats) -> Target | None:
        """When a method reached FedAvg's accuracy; None if no seed did. FedAvg itself needs all its rounds."""
        if self.target is None:
            return None
        if method is self.reference:
            found = [Reached(run.length, int(run.travelled(run.length))) for run in method.runs]
        else:
            found = [r for run in method.runs if (r := self._reached(run, self.target)) is not None]
        if not found:
            return None
        seeds = len(method.runs)
        return Target(fmean(r.rounds for r in found), fmean(r.bytes for r in found), len(found), seeds)

    def _reached(self, run: Run, target: float) -> Reached | None:
        every = run.section("training").get("eval_every", 1)
        travelled = [run.travelled(int(done)) for done in run.evaluated]
        values = run.evaluations.get(self.metric, np.full(len(run.evaluated), np.nan))
        return reach(run.evaluated.tolist(), values.tolist(), travelled, target, every=every)

    def best(self, values: Mapping[str, Seeds], *, higher: bool) -> str | None:
        """The method with the best mean, if it beats every other one in a paired comparison."""
        candidates = {label: seeds for label, seeds in values.items() if seeds}
        if len(candidates) < 2:
            return None
        sign = 1 if higher else -1
        first = max(candidates, key=lambda label: sign * fmean(candidates[label].values()))
        for label, seeds in candidates.items():
            if label != first:
                found = paired(candidates[first], seeds)
                if found is None or not found.supports or sign * found.difference <= 0:
                    return None
        return first

    @cached_property
    def curvature_kind(self) -> tuple[str, ...] | None:
        """How lambda_1 was measured most often here: like is compared with like."""
        kinds = Counter(curvature_kind(m) for method in self.methods for _, m in method.measurements("eigenvalues"))
        return kinds.most_common(1)[0][0] if kinds else None

    def curvature(self, method: Repeats) -> dict[int, tuple[float, float]]:
        """lambda_1 of each seed and its own error: the spread over subsets, or else the residual."""
        found: dict[int, tuple[float, float]] = {}
        for run, measurement in method.measurements("eigenvalues"):
            if curvature_kind(measurement) == self.curvature_kind and measurement.content["top"]:
                largest = measurement.content["top"][0]
                spread = largest["spread"]
                error = largest["residual"] if math.isnan(spread) else spread
                found[run.seed] = (largest["value"], error)
        return found


def curvature_kind(measurement: Measurement) -> tuple[str, ...]:
    subject = measurement.subject
    return (measurement.content["method"], *(str(subject.get(key, "")) for key in CURVATURE_SUBJECT))


def arrange(runs: Sequence[Run]) -> list[Setting]:
    """The settings of these runs, in the order in which they first appear."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(canonical(_setting(run)), []).append(run)
    names = _setting_names([group[0] for group in found.values()])
    return [
        Setting(name, _setting(group[0]), _methods(group))
        for name, group in zip(names, found.values(), strict=True)
    ]


def once(runs: Sequence[Run]) -> tuple[list[Run], list[Skipped]]:
    """Each seed of a method once: of several such runs the one that got furthest, and the others, named.

    A copy of a run is no other seed: counted again, it would make a spread look smaller than it is. What was
    measured of its model is not lost: it is the same model.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_identity(run), []).append(run)
    furthest = {id(max(group, key=_progress)): group for group in alike.values()}
    kept, left_out = [], []
    for run in runs:
        if id(run) in furthest:
            kept.append(_with_measurements(run, furthest[id(run)]))
        else:
            other = max(alike[_identity(run)], key=_progress)
            left_out.append(Skipped(str(run.path), f"repeats {other.path}: method, setting and seed are the same"))
    return kept, left_out


def _identity(run: Run) -> str:
    """Equal for runs that are one and the same. Federations may have one configuration and other sites' data."""
    losses = run.rounds.get("loss") if run.section("data").get("name") == "sites" else None
    first = [] if losses is None else losses[:1].tolist()
    return canonical([_setting(run), _algorithm(run), run.seed, first])


def _progress(run: Run) -> tuple[int, int, int, int]:
    states: tuple[Status, ...] = ("unfinished", "interrupted", "diverged", "finished")
    figures = len(run.rounds) + len(run.evaluations)
    return states.index(run.status), run.length, figures, len(run.measurements)


def _with_measurements(run: Run, alike: Sequence[Run]) -> Run:
    """The run with what was measured of others that are as long."""
    known = {measurement.name for measurement in run.measurements}
    added = [m for other in alike if other.length == run.length for m in other.measurements if m.name not in known]
    return replace(run, measurements=[*run.measurements, *added]) if added else run


def labels(settings: Sequence[Setting]) -> dict[str, str]:
    """All methods of all settings in one order, with their clients: a method looks the same everywhere."""
    found = {method.label: method.client for setting in settings for method in setting.methods}
    return dict(sorted(found.items(), key=lambda item: client_order(item[1])))


def _setting(run: Run) -> dict[str, Any]:
    kept = {}
    for section in ("data", "model", "local", "training"):
        drop = NOT_DECISIVE.get(section, ())
        kept[section] = {k: v for k, v in run.section(section).items() if k not in drop}
    return kept


def _algorithm(run: Run) -> dict[str, Any]:
    return {"fidelity": run.config.get("fidelity", "paper"), **run.section("algorithm")}


def _methods(runs: Sequence[Run]) -> list[Repeats]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(canonical(_algorithm(run)), []).append(run)
    methods = [
        Repeats(_base_label(algorithm), _client(algorithm), algorithm, sorted(group, key=lambda run: run.seed))
        for key, group in found.items()
        for algorithm in [json.loads(key)]
    ]
    return sorted(_told_apart(methods), key=_order)


def _told_apart(methods: Sequence[Repeats]) -> list[Repeats]:
    """Methods of one name get the hyper-parameters they differ in added to it."""
    same: dict[str, list[Repeats]] = {}
    for method in methods:
        same.setdefault(method.label, []).append(method)
    found = []
    for label, group in same.items():
        flat = [dict(flatten(method.algorithm)) for method in group]
        differing = differing_keys(flat)
        for method, values in zip(group, flat, strict=True):
            shown = ", ".join(f"{key} {show(values.get(key))}" for key in differing)
            found.append(replace(method, label=f"{label} ({shown})") if shown else method)
    return found


def _base_label(algorithm: Mapping[str, Any]) -> str:
    name: str = algorithm["name"]
    label = METHOD_NAMES.get(name, name)
    if isinstance(inner := algorithm.get("inner"), Mapping) and "name" in inner:
        label += f" on {_base_label(inner)}"
    if isinstance(client := algorithm.get("client"), str):
        label += f"-{client.upper()}"
    return label


def _client(algorithm: Mapping[str, Any]) -> str:
    """``sgd``, ``sam`` or, where unknown, nothing."""
    name = algorithm["name"]
    if isinstance(client := algorithm.get("client"), str):
        return client
    if isinstance(inner := algorithm.get("inner"), Mapping) and "name" in inner:
        return _client(inner)
    if name in SAM_CLIENTS:
        return "sam"
    return FIXED_CLIENTS.get(name, "sgd" if name in METHOD_NAMES else "")


def _order(method: Repeats) -> tuple[int, int, str]:
    names = list(METHOD_NAMES)
    known = names.index(method.method) if method.method in names else len(names)
    return client_order(method.client), known, method.label


def client_order(client: str) -> int:
    """SGD before SAM before what is unknown, as the paper has it."""
    clients = ("sgd", "sam")
    return clients.index(client) if client in clients else len(clients)


def _setting_names(runs: Sequence[Run]) -> list[str]:
    """The data set, its division and the network, and whatever else tells settings apart."""
    short = [_short_name(run) for run in runs]
    flat = [dict(flatten(_setting(run))) for run in runs]
    names = []
    for name, values in zip(short, flat, strict=True):
        alike = [other for other, theirs in zip(flat, short, strict=True) if theirs == name]
        differing = differing_keys(alike)
        names.append(", ".join([name, *(f"{key} {show(values.get(key))}" for key in differing)]))
    return names


def _short_name(run: Run) -> str:
    data, model = run.section("data"), run.section("model")
    parts = [str(data.get("name", "data"))]
    if data.get("split") in ("hsu", "official", "dirichlet") and "alpha" in data:
        parts.append(f"α = {show(data['alpha'])}")
    if data.get("split", "hsu") != "hsu":
        parts.append(str(data["split"]))
    if "classes_per_client" in data:
        parts.append(f"{show(data['classes_per_client'])} classes a client")
    return ", ".join([*parts, str(model.get("name", "model"))])


def show(value: Any) -> str:
    """A configuration value as people write it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differing_keys(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose value is not the same in all, in the order of the configuration."""
    keys = list(dict.fromkeys(key for one in flat for key in one))
    return [key for key in keys if len({canonical(one.get(key)) for one in flat}) > 1]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
