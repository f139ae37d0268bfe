"""The tables of a report: how the methods did, what they cost, how sharp their minima are, what was run."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ..costs import size
from .measurements import Measurement
from .runs import Run
from .study import (
    CONFIDENCE,
    CURVATURE_SUBJECT,
    Estimate,
    Paired,
    Repeats,
    Seeds,
    Setting,
    client_order,
    differing_keys,
    flatten,
    paired,
    show,
)
from .tables import CROSS, DASH, Cell, Column, Table

CLIENTS = {"sgd": "Client SGD", "sam": "Client SAM", "": "Other clients"}
METHODS = {"lanczos": "Lanczos", "power": "power iteration"}
SPLITS = {"train": "training", "test": "test"}
WEIGHTS = {"last": "final model", "average100": "mean of the last models"}
METRIC_PARTS = ("mean", "sd", "seeds", "state")
SPREAD = "± is the sample standard deviation over seeds (ddof = 1)."
BOLD = (
    f"Bold: the best mean, and better than every other method in a paired {CONFIDENCE:.0%} t interval over common "
    "seeds, not adjusted for the number of comparisons; with one seed nothing is bold."
)


def results(setting: Setting) -> Table:
    """One setting: accuracy, sharpness, cost, and the way to FedAvg's accuracy."""
    metric = metric_name(setting)
    columns = [
        Column("Method", numeric=False),
        Column(metric, METRIC_PARTS),
        Column("λ₁", ("mean", "sd", "seeds")),
        Column("Communication", ("factor",)),
        Column("Rounds", ("mean", "reached"), group="To FedAvg's accuracy"),
        Column("Bytes", ("mean", "relative"), group="To FedAvg's accuracy"),
        Column("Seeds", ("count",)),
    ]
    best = setting.best(
        {m.label: m.reported(setting.metric) for m in setting.methods}, higher=setting.higher_is_better
    )
    flattest = setting.best({m.label: curvature_values(setting, m) for m in setting.methods}, higher=False)

    def row(method: Repeats) -> tuple[Cell, ...]:
        rounds, travelled = target_cells(setting, method)
        return (
            Cell(method.label),
            metric_cell(setting, method, bold=method.label == best),
            curvature_cell(setting, method, bold=method.label == flattest),
            factor_cell(method),
            rounds,
            travelled,
            Cell(str(len(method.runs)), {"count": len(method.runs)}),
        )

    table = Table(
        slug("results", setting.name), setting.name, tuple(columns), grouped(setting.methods, row), notes(setting)
    )
    known = [any(row[i].text not in (DASH, CROSS) for row in table.rows) for i in range(len(columns))]
    return without_columns(table, [i for i in (2, 4, 5) if not known[i]])


def across(settings: Sequence[Setting]) -> Table | None:
    """Methods x settings, as the paper prints it; None for one setting, whose own table says it all."""
    if len(settings) < 2:
        return None
    methods: dict[str, dict[int, Repeats]] = {}
    for index, setting in enumerate(settings):
        for method in setting.methods:
            methods.setdefault(method.label, {})[index] = method
    best = [s.best({m.label: m.reported(s.metric) for m in s.methods}, higher=s.higher_is_better) for s in settings]

    def row(first: Repeats) -> tuple[Cell, ...]:
        here = methods[first.label]
        cells = [
            metric_cell(setting, here[index], bold=best[index] == first.label) if index in here else Cell(DASH)
            for index, setting in enumerate(settings)
        ]
        return Cell(first.label), factor_cell(first), *cells

    metrics = {metric_name(setting) for setting in settings}
    shared = metrics.pop() if len(metrics) == 1 else ""
    columns = [Column("Method", numeric=False), Column("Communication", ("factor",))]
    columns += [
        Column(s.name if shared else f"{s.name}, {metric_name(s)}", METRIC_PARTS, group=shared) for s in settings
    ]
    firsts = [next(iter(here.values())) for here in methods.values()]
    firsts.sort(key=lambda method: client_order(method.client))
    text = ["Mean over each run's last rounds, never the best round.", SPREAD, BOLD, cross_note(settings)]
    notes = tuple(filter(None, text))
    return Table("results", "All settings", tuple(columns), grouped(firsts, row), notes)


def comparisons(setting: Setting) -> Table | None:
    """The method with the best mean against each other one, seed by seed."""
    values = {m.label: m.reported(setting.metric) for m in setting.methods}
    points = setting.metric == "accuracy"
    return _paired_table(
        slug("paired", setting.name),
        values,
        f"Difference ({'points' if points else setting.metric})",
        "{}, the best mean, compared seed by seed",
        words=("better", 1 if setting.higher_is_better else -1),
        scale=100 if points else 1,
        digits=2 if points else 4,
    )


def curvature_comparisons(setting: Setting) -> Table | None:
    """The method with the smallest lambda_1 against each other one, seed by seed."""
    values = {m.label: curvature_values(setting, m) for m in setting.methods}
    title = "{}, the smallest λ₁, compared seed by seed"
    return _paired_table(slug("paired-curvature", setting.name), values, "Difference of λ₁", title, ("flatter", -1))


def _paired_table(
    name: str,
    values: Mapping[str, Seeds],
    unit: str,
    title: str,
    words: tuple[str, int],
    scale: float = 1,
    digits: int = 3,
) -> Table | None:
    """The best mean against the others; None where no two methods have two seeds in common."""
    known = {label: seeds for label, seeds in values.items() if seeds}
    if len(known) < 2:
        return None
    word, sign = words
    first = max(known, key=lambda label: sign * fmean(known[label].values()))
    others = {label: paired(known[first], seeds) for label, seeds in known.items() if label != first}
    if not any(others.values()):
        return None

    def row(label: str, found: Paired | None) -> tuple[Cell, ...]:
        if found is None:
            common = len(known[first].keys() & known[label].keys())
            return Cell(label), Cell(DASH), Cell(DASH), Cell(str(common), {"count": common}), Cell("too few seeds")
        ends = [f"{scale * end:.{digits}f}".replace("-", "−") for end in (found.low, found.high)]
        supported = found.supports and sign * found.difference > 0
        return (
            Cell(label),
            Cell(f"{scale * found.difference:+.{digits}f}".replace("-", "−"), {"mean": found.difference}),
            Cell(f"{ends[0]} to {ends[1]}", {"low": found.low, "high": found.high}),
            Cell(str(found.seeds), {"count": found.seeds}),
            Cell(word if supported else "not told apart", bold=supported),
        )

    columns = (
        Column("against", numeric=False),
        Column(unit, ("mean",)),
        Column(f"{CONFIDENCE:.0%} interval", ("low", "high")),
        Column("Common seeds", ("count",)),
        Column(f"{first} is", numeric=False),
    )
    notes = (
        "Differences are taken seed by seed. The interval is their mean ± t · sd / √n with the sample standard "
        "deviation (ddof = 1) and n − 1 degrees of freedom, not adjusted for the number of comparisons.",
    )
    rows = tuple(row(label, found) for label, found in others.items())
    return Table(name, title.format(first), columns, (("", rows),), notes)


def measures(setting: Setting) -> Table | None:
    """Sharpness and drift beside the largest eigenvalue, where they were measured."""
    kinds: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str], str]] = {
        "trace": ("Trace of the Hessian", lambda c: "", "value"),
        "worst_case": ("Worst rise of the loss", lambda c: f"ρ {c['rho']:g}, {_steps(c['steps'])}", "value"),
        "average_case": ("Mean rise of the loss", lambda c: f"σ {c['sigma']:g}", "value"),
        "drift": ("Drift of the last round's clients", lambda c: "", "drift"),
    }
    found: dict[tuple[str, str], dict[str, dict[int, tuple[float, float]]]] = {}
    for method in setting.methods:
        for run in method.runs:
            for m in run.measurements:
                if m.kind in kinds and math.isfinite(value := m.content[kinds[m.kind][2]]):
                    title, detail, _ = kinds[m.kind]
                    column = ", ".join(filter(None, [title, detail(m.content)])), subject_words(m.subject)
                    seeds = found.setdefault(column, {}).setdefault(method.label, {})
                    seeds[run.seed] = value, m.content.get("error", math.nan)
    if not found:
        return None

    def cell(seeds: Mapping[int, tuple[float, float]]) -> Cell:
        estimate = Estimate.of(value for value, _ in seeds.values())
        if estimate is None:
            return Cell(DASH)
        own = next(iter(seeds.values()))[1] if estimate.sd is None else estimate.sd
        return Cell(with_error(estimate.mean, own), {"mean": estimate.mean, "sd": own, "seeds": estimate.count})

    def row(method: Repeats) -> tuple[Cell, ...]:
        return Cell(method.label), *(cell(column.get(method.label, {})) for column in found.values())

    titles = [title for title, _ in found]
    names = [title if titles.count(title) == 1 else f"{title}, {subject}" for title, subject in found]
    measured = [m for m in setting.methods if any(m.label in column for column in found.values())]
    heads = (Column("Method", numeric=False), *(Column(name, ("mean", "sd", "seeds")) for name in names))
    subjects = list(dict.fromkeys(filter(None, (subject for _, subject in found))))
    text = f"{SPREAD} With one seed it is the standard error of the estimate, where there is one."
    notes = ([f"Measured on: {'; '.join(subjects)}."] if subjects else []) + [text]
    return Table(slug("measures", setting.name), "Other measures", heads, grouped(measured, row), tuple(notes))


def _steps(count: float) -> str:
    return "1 step" if count == 1 else f"{count:.0f} steps"


def costs(setting: Setting) -> Table:
    """What travelled and how long it took."""

    def row(method: Repeats) -> tuple[Cell, ...]:
        runs = method.runs
        down, up = (fmean(getattr(run.traffic, way) for run in runs) for way in ("down", "up"))
        seconds = np.concatenate([run.seconds for run in runs])
        length = fmean(run.length for run in runs)
        median = float(np.median(seconds)) if len(seconds) else math.nan
        total = fmean(float(run.seconds.sum()) for run in runs)
        return (
            Cell(method.label),
            Cell(f"{length:,.0f}", {"mean": length}),
            Cell(size(down), {"mean": down}),
            Cell(size(up), {"mean": up}),
            factor_cell(method),
            Cell(duration(median), {"median": median}),
            Cell(duration(total), {"mean": total}),
        )

    columns = (
        Column("Method", numeric=False),
        Column("Rounds", ("mean",)),
        Column("Sent down", ("mean",)),
        Column("Sent up", ("mean",)),
        Column("Communication", ("factor",)),
        Column("Time a round", ("median",)),
        Column("Time in all", ("mean",)),
    )
    notes = (
        "Bytes as they are serialised, over all clients and rounds; a mean over seeds. Communication is vectors "
        "sent per client and round, FedAvg's one down and one up being 1×. Time a round is a median, on the "
        "machines listed under Provenance.",
    )
    return Table(
        slug("costs", setting.name), "What the methods cost", columns, grouped(setting.methods, row), notes
    )


def differences(runs: Sequence[Run]) -> Table | None:
    """A row a run; each section of the configuration as far as it is not the same in all."""
    flat = [dict(flatten(run.config)) for run in runs]
    keys = differing_keys(flat)
    if not keys:
        return None
    sections = list(dict.fromkeys(key.partition(".")[0] for key in keys))

    def cell(values: Mapping[str, Any], section: str) -> Cell:
        inside = [key for key in keys if key.partition(".")[0] == section and values.get(key) is not None]
        words = [_named(key.partition(".")[2], values[key]) for key in inside]
        return Cell(", ".join(words) or DASH)

    rows = [
        (Cell(run.name), Cell(run.status), *(cell(values, section) for section in sections))
        for run, values in zip(runs, flat, strict=True)
    ]
    heads = [Column(name, numeric=False) for name in ("Run", "State", *sections)]
    return Table("differences", "Where the runs differ", tuple(heads), (("", tuple(rows)),))


def _named(key: str, value: Any) -> str:
    return f"{key} {show(value)}" if key not in ("", "name") else show(value)


def shared(runs: Sequence[Run]) -> Table:
    """The configuration that all runs have in common."""
    flat = [dict(flatten(run.config)) for run in runs]
    differing = set(differing_keys(flat))
    rows = [(Cell(key), Cell(show(value))) for key, value in flat[0].items() if key not in differing]
    columns = (Column("Key", numeric=False), Column("Value", numeric=False))
    return Table("shared", "The same in all runs", columns, (("", tuple(rows)),))


def machines(runs: Sequence[Run]) -> Table:
    """Versions and machines: one row for each that occurs."""
    keys = [
        "fedgloss", "code", "python", "torch", "numpy", "platform", "cpu", "cores", "instruction_set", "onednn_isa",
    ]  # fmt: skip
    found: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        found.setdefault(tuple(show(run.environment.get(key)) for key in keys), []).append(run.name)
    usual = max(found, key=lambda values: len(found[values]))
    rows = [
        (
            Cell(f"{len(names)} of {len(runs)}", note=", ".join(names[:20])),
            *(Cell(value or DASH, marked=value != common) for value, common in zip(values, usual, strict=True)),
        )
        for values, names in found.items()
    ]
    columns = [Column("Runs", numeric=False), *(Column(key.replace("_", " "), numeric=False) for key in keys)]
    return Table("machines", "Versions and machines", tuple(columns), (("", tuple(rows)),))


def provenance(run: Run) -> dict[str, Any]:
    """All that is needed to judge a run and to do it again."""
    command = run.environment.get("command")
    given = shlex.join(map(str, command)) if isinstance(command, list) else ""
    config = shlex.quote(str(run.path / "config.toml"))
    of_sites = (run.config.get("data") or {}).get("name") == "sites"
    return {
        "name": run.name,
        "status": run.status,
        "rounds": f"{run.length:,} of {run.planned:,}",
        "seed": run.seed,
        "note": run.note,
        "protocol": str(run.summary.get("protocol", "")),
        "divergence": divergence(run),
        "started_by": given,
        "redo": "flwr run APP, with another run-folder" if of_sites else f"fedgloss run {config} --out AGAIN",
        "config": [[key, show(value)] for key, value in flatten(run.config)],
        "measured": sorted({m.name for m in run.measurements}),
    }


def divergence(run: Run) -> str:
    """Where and why a run diverged, in words."""
    where = run.summary.get("divergence")
    if run.status != "diverged" or not isinstance(where, dict):
        return ""
    places = [f"round {where.get('round')}"]
    places += [f"client {where['client']}"] if where.get("client") is not None else []
    places += [f"tensor {where['tensor']}"] if where.get("tensor") else []
    return f"{', '.join(places)}: {where.get('reason')}"


def metric_name(setting: Setting) -> str:
    return "Accuracy (%)" if setting.metric == "accuracy" else f"Test {setting.metric}"


def metric_cell(setting: Setting, method: Repeats, *, bold: bool) -> Cell:
    """The reported figure over seeds; the paper's cross where training diverged; how far it is where it goes on."""
    if method.diverged:
        lost = [run for run in method.runs if run.status == "diverged"]
        text = CROSS if len(lost) == len(method.runs) else f"{CROSS} {len(lost)} of {len(method.runs)} seeds"
        said = "; ".join(f"seed {run.seed}: {divergence(run)}" for run in lost)
        return Cell(text, {"state": "diverged"}, note=said)
    if not method.complete:
        done = fmean(run.length / max(1, run.planned) for run in method.runs)
        said = "; ".join(f"{r.name}: {r.status}" for r in method.runs)
        return Cell(f"{math.floor(100 * done)} % done", {"state": "unfinished"}, note=said)
    estimate = Estimate.of(method.reported(setting.metric).values())
    if estimate is None:
        return Cell(DASH)
    if setting.metric != "accuracy":
        return Cell(with_error(estimate.mean, estimate.sd), _values(estimate), bold)
    text = f"{100 * estimate.mean:.1f}" + ("" if estimate.sd is None else f" ± {100 * estimate.sd:.1f}")
    return Cell(text, _values(estimate, 100), bold, note=per_seed(method, setting.metric))


def per_seed(method: Repeats, metric: str) -> str:
    return ", ".join(f"seed {seed}: {100 * value:.2f}" for seed, value in method.reported(metric).items())


def curvature_values(setting: Setting, method: Repeats) -> Seeds:
    return {seed: value for seed, (value, _) in setting.curvature(method).items()}


def curvature_estimate(setting: Setting, method: Repeats) -> tuple[float, float] | None:
    """lambda_1 and its error: over seeds or, with one seed, of the measurement itself."""
    found = list(setting.curvature(method).values())
    estimate = Estimate.of(value for value, _ in found)
    if estimate is None:
        return None
    return estimate.mean, found[0][1] if estimate.sd is None else estimate.sd


def curvature_cell(setting: Setting, method: Repeats, *, bold: bool) -> Cell:
    found = curvature_estimate(setting, method)
    if found is None:
        return Cell(CROSS if method.diverged else DASH)
    value, error = found
    seeds = curvature_values(setting, method)
    said = ", ".join(f"seed {seed}: {one:.4g}" for seed, one in seeds.items())
    return Cell(with_error(value, error), {"mean": value, "sd": error, "seeds": len(seeds)}, bold, note=said)


def target_cells(setting: Setting, method: Repeats) -> tuple[Cell, Cell]:
    """Rounds and bytes until FedAvg's accuracy was first met."""
    if setting.target is None:
        return Cell(DASH), Cell(DASH)
    found = setting.reached(method)
    if found is None or found.reached < found.seeds:
        some = f"{found.reached} of {found.seeds} seeds" if found else ""
        text = CROSS if method.diverged else DASH
        return Cell(text, {"reached": found.reached if found else 0}, note=some), Cell(text)
    assert setting.reference is not None
    whole = fmean(run.travelled(run.length) for run in setting.reference.runs)
    relative = found.bytes / whole if whole else math.nan
    return (
        Cell(f"{found.rounds:,.0f}", {"mean": found.rounds, "reached": found.reached}),
        Cell(f"{size(found.bytes)} · {relative:.2f}×", {"mean": found.bytes, "relative": relative}),
    )


def factor_cell(method: Repeats) -> Cell:
    factors = [run.traffic.factor for run in method.runs if run.length]
    return Cell(f"{fmean(factors):.3g}×", {"factor": fmean(factors)}) if factors else Cell(DASH)


def _values(estimate: Estimate, scale: float = 1.0) -> dict[str, float | int | str]:
    sd = math.nan if estimate.sd is None else scale * estimate.sd
    return {"mean": scale * estimate.mean, "sd": sd, "seeds": estimate.count, "state": "finished"}


def with_error(value: float, error: float | None) -> str:
    """As many digits as the error leaves meaning.

    >>> with_error(12.3456, 0.0321), with_error(12.3456, None), with_error(1234.5, 200.0)
    ('12.346 ± 0.032', '12.3', '1234 ± 200')
    """
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:.3g}".replace("-", "−")
    digits = min(6, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def duration(seconds: float) -> str:
    """
    >>> duration(0.0123), duration(75), duration(7300), duration(math.nan)
    ('12 ms', '75 s', '2.0 h', '–')
    """
    if not math.isfinite(seconds):
        return DASH
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def grouped(
    methods: Sequence[Repeats], row: Callable[[Repeats], tuple[Cell, ...]]
) -> tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]:
    """Rows under the clients' optimiser, as the paper groups them; one group needs no name."""
    found: dict[str, list[tuple[Cell, ...]]] = {}
    for method in methods:
        found.setdefault(CLIENTS.get(method.client, f"Client {method.client}"), []).append(row(method))
    if len(found) == 1:
        return (("", tuple(next(iter(found.values())))),)
    return tuple((name, tuple(rows)) for name, rows in found.items())


def notes(setting: Setting) -> tuple[str, ...]:
    protocols = {str(run.summary["protocol"]) for run in setting.runs if run.summary.get("protocol")}
    text = [*sorted(protocols), SPREAD, BOLD, cross_note([setting])]
    if setting.target is not None:
        text.append(
            f"FedAvg's accuracy here is {100 * setting.target:.2f} %; it counts as reached at the first regular "
            "evaluation at or above it. FedAvg itself counts with all its rounds, and its bytes in them are 1×. "
            f"{DASH}: not reached by every seed."
        )
    kind = setting.curvature_kind
    if kind is not None:
        how, *values = kind
        subject: dict[str, Any] = dict(zip(CURVATURE_SUBJECT, values, strict=True))
        subject |= {"samples": int(subject["samples"])} if subject["samples"].isdigit() else {}
        text.append(
            f"λ₁, the Hessian's largest eigenvalue, by {METHODS.get(how, how)}: {subject_words(subject)}; "
            "with one seed ± is the spread over disjoint subsets of the data, or else the residual."
        )
        counts = {m.label: (len(setting.curvature(m)), len(m.runs)) for m in setting.methods}
        fewer = [f"{label} {some} of {every}" for label, (some, every) in counts.items() if 0 < some < every]
        text += [f"λ₁ was measured on fewer seeds than were trained: {', '.join(fewer)}."] if fewer else []
    return tuple(filter(None, text))


def cross_note(settings: Sequence[Setting]) -> str:
    return f"{CROSS}: diverged." if any(m.diverged for s in settings for m in s.methods) else ""


def without_columns(table: Table, drop: Sequence[int]) -> Table:
    keep = [i for i in range(len(table.columns)) if i not in drop]
    groups = tuple((name, tuple(tuple(row[i] for i in keep) for row in rows)) for name, rows in table.groups)
    return Table(table.id, table.title, tuple(table.columns[i] for i in keep), groups, table.notes)


def subject_words(subject: Mapping[str, Any]) -> str:
    """What a figure was measured on."""
    split, weights = (str(subject.get(key, "")) for key in ("split", "weights"))
    parts = [WEIGHTS.get(weights, weights)]
    if isinstance(samples := subject.get("samples"), int):
        parts.append(f"{samples:,} {SPLITS.get(split, split)} samples")
    unusual = {key: str(subject.get(key, "")) for key in ("preprocessing", "weighting")}
    parts += [unusual["preprocessing"]] if unusual["preprocessing"] not in ("as in evaluation", "as given") else []
    parts += ["batches weighed alike"] if unusual["weighting"] == "batches" else []
    return ", ".join(filter(None, parts))


def other_end(line: Measurement) -> str:
    """The run an interpolation leads to; an earlier version told it by the name of the file alone.

    >>> other_end(Measurement("interpolation", "interpolation-to-fedsam-seed0-last train", {}))
    'fedsam-seed0'
    """
    if told := line.content.get("to"):
        return str(told)
    file = line.name.rpartition(" ")[0] or line.name
    return file.removeprefix("interpolation-to-").removesuffix("-last").removesuffix("-average100")


def slug(*parts: str) -> str:
    """A name for files and anchors.

    >>> slug("results", "digits, α = 0.5, cnn")
    'results-digits-alpha-0.5-cnn'
    """
    text = "-".join(parts).replace("α", "alpha").lower()
    words = "".join(c if c.isascii() and (c.isalnum() or c == ".") else " " for c in text).split()
    found = "-".join(words)
    if len(found) <= 100 and text.isascii():
        return found
    return f"{found[:90]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # what is cut off may tell two apart
