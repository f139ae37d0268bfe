"""Tables as ``.tex`` and figures as ``.pdf``, for a paper of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..costs import size
from ..files import disk_errors, write_atomically
from . import results
from .curves import Quantity, curves_of, quantities
from .html import AGAINST_BYTES, DENSITY_PLACES, blurred, density_places, entropies, round_seconds, vector_bytes
from .measurements import Kind, Measurement
from .palette import LIGHT, appearance
from .results import slug
from .runs import Run
from .study import Repeats, Setting, arrange, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3
"""A column's width in inches."""

STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "0.9",
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
}
DASHES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": "-.", "longdash": (0, (9, 3))}


def write_latex(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Every table and figure of these runs; returns the files."""
    settings = arrange(runs)
    written = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tables = [results.across(settings), results.differences(runs), results.shared(runs), results.machines(runs)]
    for setting in settings:
        tables += [
            make(setting)
            for make in (
                results.results,
                results.comparisons,
                results.curvature_comparisons,
                results.measures,
                results.costs,
            )
        ]
    for table in tables:
        if table is not None:
            written.append(_write(folder / f"{table.id}.tex", table.to_latex().encode()))
    looks = {label: appearance(index) for index, label in enumerate(labels(settings))}
    for setting in settings:
        for name, figure in figures(setting, looks):
            written.append(_write(folder / f"{slug(name, setting.name)}.pdf", _pdf(figure)))
    return written


def write_courses(setting: Setting, folder: Path) -> list[Path]:
    """Accuracy and the model's norm over the rounds, as pictures for a page."""
    import matplotlib

    looks = {label: appearance(index) for index, label in enumerate(labels([setting]))}
    shown = [one for one in quantities(list(setting.runs)) if one.id in ("accuracy", "norm_params")]
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "fedgloss"}), disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return [
            _write(
                folder / f"{slug(one.id, setting.name)}.svg", _drawn(_curves(setting, one, looks, "rounds"), "svg")
            )
            for one in shown
        ]


def write_division(picture: Mapping[str, Any], path: Path) -> None:
    """Which client has what, as a PDF."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        _write(path, _pdf(_division(picture)))


def _pdf(figure: Figure) -> bytes:
    return _drawn(figure, "pdf")


def _drawn(figure: Figure, format: Literal["pdf", "svg"]) -> bytes:
    """The same bytes every time: no date."""
    content = BytesIO()
    figure.savefig(content, format=format, metadata={"CreationDate" if format == "pdf" else "Date": None})
    return content.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with disk_errors(path):
        write_atomically(path, content)
    return path


Looks = Mapping[str, tuple[int, str]]


def figures(setting: Setting, looks: Looks) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of everything a setting has to show."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        for quantity in quantities(list(setting.runs)):
            if quantity.id.startswith("client_"):
                continue
            yield quantity.id.replace("_", "-"), _curves(setting, quantity, looks, "rounds")
            if quantity.id in AGAINST_BYTES:
                yield f"{quantity.id.replace('_', '-')}-bytes", _curves(setting, quantity, looks, "bytes")
        if any("client_accuracy_p50" in run.evaluations for run in setting.runs):
            yield "clients", _spread(setting, looks)
        drawings: Mapping[Kind, Mapping[str, Callable[[Setting, Looks], Figure]]] = {
            "eigenvalues": {"eigenvalues": _eigenvalues},
            "density": {"density": _densities},
            "interpolation": {"interpolation": _interpolations},
            "surface": {"surface": _surfaces, "contours": _contours},
            "local": {"local": _locals},
        }
        for kind, several in drawings.items():
            if any(True for method in setting.methods for _ in method.measurements(kind)):
                for name, draw in several.items():
                    yield name, draw(setting, looks)
        if picture := next((run.federation for run in setting.runs if run.federation), None):
            if picture["counts"]:
                yield "division", _division(picture)
                yield "entropy", _per_client(entropies(picture), "entropy (nats)")
            yield "sizes", _per_client(picture["sizes"], "samples")
        if any(run.length for run in setting.runs):
            yield "vectors", _vectors(setting)
        if any(round_seconds(method) for method in setting.methods):
            yield "seconds", _seconds(setting, looks)


@contextmanager
def _axes(height: float = 2.2) -> Iterator[tuple[Figure, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    axes = figure.subplots()
    yield figure, axes
    handles, names = axes.get_legend_handles_labels()
    if handles:
        longest = max(map(len, names))
        columns = 3 if longest < 14 else 2 if longest < 27 else 1
        figure.legend(handles, names, loc="outside lower center", ncols=columns, columnspacing=1.2)


def _text(text: str) -> str:
    """A dollar sign is a dollar sign, not mathematics."""
    return text.replace("$", r"\$")


def _stroke(method: Repeats, looks: Looks) -> dict[str, Any]:
    colour, stroke = looks[method.label]
    return {"color": LIGHT[colour], "linestyle": DASHES[stroke]}


def _curves(setting: Setting, quantity: Quantity, looks: Looks, against: str) -> Figure:
    with _axes() as (figure, axes):
        smallest = np.inf
        for method in setting.methods:
            mean, each = curves_of(method, quantity)
            stroke = _stroke(method, looks)
            for index, curve in enumerate([mean] if mean is not None else [curve for _, curve in each]):
                x = getattr(curve, against)
                axes.plot(x, curve.values, label=_text(method.label) if index == 0 else None, **stroke)
                positive = curve.values[curve.values > 0]
                smallest = min(smallest, *positive) if len(positive) else smallest
                if curve.sd is not None:
                    low = np.maximum(curve.values - curve.sd, smallest / 10)
                    axes.fill_between(
                        x, low, curve.values + curve.sd, color=stroke["color"], alpha=0.12, linewidth=0
                    )
            lost = {run.seed for run in method.runs if run.status == "diverged"}
            for seed, curve in each:
                if seed in lost:  # where it ended, as a cross
                    end = getattr(curve, against)[-1], curve.values[-1]
                    axes.plot(*end, "x", color=stroke["color"], markersize=4, markeredgewidth=1.5)
        axes.set_xlabel("bytes sent" if against == "bytes" else "rounds")
        axes.set_ylabel(_text(quantity.axis))
        if against == "bytes":
            axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
            axes.locator_params(axis="x", nbins=5)
        if not quantity.percent and not quantity.id.startswith("delta_eps") and np.isfinite(smallest):
            axes.set_yscale("log")
            _plain_numbers(axes)
    return figure


def _plain_numbers(axes: Axes) -> None:
    """1, 2, 5 rather than powers of ten, where a logarithmic axis spans no more than two of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_ylim()
    if high / low <= 100:
        steps = (1, 2, 5) if high / low > 5 else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _spread(setting: Setting, looks: Looks) -> Figure:
    """Accuracy from client to client at the end: the median, and from the 10th to the 90th percentile."""
    with _axes() as (figure, axes):
        names: list[str] = []
        for method in setting.methods:
            ends = [
                [run.evaluations[f"client_accuracy_p{part}"][-1] for part in (10, 50, 90)]
                for run in method.runs
                if {f"client_accuracy_p{part}" for part in (10, 50, 90)} <= run.evaluations.keys()
            ]
            if ends:
                low, middle, high = 100 * np.mean(ends, axis=0)
                reach = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
                axes.errorbar(middle, len(names), xerr=reach, fmt="o", color=LIGHT[looks[method.label][0]])
                names.append(method.label)
        _methods_downwards(axes, names)
        axes.set_xlabel("accuracy of a client (%)")
    return figure


def _methods_downwards(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_text(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _eigenvalues(setting: Setting, looks: Looks) -> Figure:
    with _axes() as (figure, axes):
        shown = [(m, e) for m in setting.methods if (e := results.curvature_estimate(setting, m)) is not None]
        for index, (method, (value, error)) in enumerate(shown):
            colour, stroke = looks[method.label]
            hatch = "" if stroke == "solid" else "////"
            axes.bar(index, value, yerr=error, color=LIGHT[colour], hatch=hatch, edgecolor="white", capsize=2)
        names = [_text(method.label) for method, _ in shown]
        axes.set_xticks(range(len(shown)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("λ₁")
    return figure


def _densities(setting: Setting, looks: Looks) -> Figure:
    places, width = density_places(setting, DENSITY_PLACES)
    with _axes() as (figure, axes):
        for method in setting.methods:
            for _, found in _first(method, "density"):
                density = blurred(found.content["probes"], places, width)
                density = np.where(density > 1e-9, density, np.nan)
                axes.semilogy(places, density, label=_text(method.label), **_stroke(method, looks))
        axes.set_xlabel("eigenvalue λ")
        axes.set_ylabel("density")
    return figure


def _interpolations(setting: Setting, looks: Looks) -> Figure:
    with _axes() as (figure, axes):
        named: dict[str, Any] = {}
        for method in setting.methods:
            for _, found in method.measurements("interpolation"):
                curve = found.content["curves"].get("loss")
                if curve is not None:
                    split = str(found.subject.get("split", ""))
                    label = _text(f"{method.label} to {results.other_end(found)}, {split}".removesuffix(", "))
                    once = None if label in named else label
                    dashes = named.setdefault(label, list(DASHES.values())[len(named) % len(DASHES)])
                    look = {**_stroke(method, looks), "linestyle": dashes}
                    axes.plot(found.content["coefficients"], curve, label=once, **look)
        for end in (0, 1):
            axes.axvline(end, color="0.6", linewidth=0.6, linestyle=":")
        axes.set_xlabel("first model (0) to second (1)")
        axes.set_ylabel("loss")
    return figure


def _surfaces(setting: Setting, looks: Looks) -> Figure:
    """The last method's surface solid, the first one's as a net."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    all_of = _loss_surfaces(setting)
    chosen = [all_of[-1], all_of[0]] if len(all_of) > 1 else all_of
    figure = Figure(figsize=(COLUMN, 2.7))
    axes: Any = figure.add_axes((-0.03, 0.13, 0.96, 0.9), projection="3d")
    handles = []
    for index, (method, found) in enumerate(chosen):
        x, y = np.meshgrid(found.content["x"], found.content["y"])
        colour = LIGHT[looks[method.label][0]]
        if index == 0:
            axes.plot_surface(x, y, found.content["grids"]["loss"], color=colour, alpha=0.85, linewidth=0)
        else:
            axes.plot_wireframe(x, y, found.content["grids"]["loss"], color=colour, linewidth=0.5)
        handles.append(Line2D([], [], color=colour, linewidth=4 - 3 * index, label=_text(method.label)))
    axes.set_zlabel("loss", labelpad=-4)
    axes.tick_params(pad=-2, labelsize=6)
    axes.locator_params(nbins=5)
    figure.legend(handles=handles, loc="lower center", ncols=2)
    return figure


def _contours(setting: Setting, looks: Looks) -> Figure:
    """Each method's surface from above, in one colour scale."""
    from matplotlib.figure import Figure

    shown = _loss_surfaces(setting)
    lines = -(-len(shown) // 2)
    figure = Figure(figsize=(COLUMN, 1.7 * lines), layout="constrained")
    places = figure.subplots(lines, 2, squeeze=False)
    heights = [
        np.where(np.isfinite(loss), loss, np.nan) for _, found in shown for loss in [found.content["grids"]["loss"]]
    ]
    logarithmic = min(float(np.nanmin(height)) for height in heights) > 0
    heights = [np.log10(height) for height in heights] if logarithmic else heights
    low, high = min(float(np.nanmin(h)) for h in heights), max(float(np.nanmax(h)) for h in heights)
    levels = np.linspace(low, high if high > low else low + 1, 18)
    for axes in places.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (method, found), height in zip(places.flat, shown, heights, strict=False):
        drawn = axes.contourf(found.content["x"], found.content["y"], height, levels=levels, cmap="viridis")
        axes.set_title(_text(method.label), fontsize=7)
        axes.set_aspect("equal")
        axes.grid(visible=False)
    figure.colorbar(drawn, ax=places, label="log₁₀ loss" if logarithmic else "loss", format="%.2g")
    return figure


def _loss_surfaces(setting: Setting) -> list[tuple[Repeats, Measurement]]:
    return [(method, found) for method in setting.methods for _, found in _first(method, "surface")]


def _locals(setting: Setting, looks: Looks) -> Figure:
    """lambda_1 of the last round's local models, on their own data and on everybody's."""
    with _axes() as (figure, axes):
        measured = [m for m in setting.methods if any(True for _ in m.measurements("local"))]
        for index, method in enumerate(measured):
            colour = LIGHT[looks[method.label][0]]
            for side, key, mark in ((-0.15, "local", "o"), (0.15, "union", "D")):
                tops = [found.content[key]["top"] for _, found in method.measurements("local")]
                values = [top[0]["value"] for top in tops if top]
                name = {"local": "own data", "union": "all data"}[key] if index == 0 else None
                axes.plot([index + side] * len(values), values, mark, color=colour, markersize=3, label=name)
        names = [_text(method.label) for method in measured]
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylabel("λ₁ of local models")
    return figure


def _first(method: Repeats, kind: Kind) -> list[tuple[Run, Measurement]]:
    return list(method.measurements(kind))[:1]


def _division(picture: Mapping[str, Any]) -> Figure:
    shares = np.zeros((len(picture["classes"]), len(picture["shown"])))
    for client, counts in enumerate(picture["counts"]):
        shares[counts[::2], client] = np.array(counts[1::2]) / max(1, sum(counts[1::2]))
    with _axes(2.0) as (figure, axes):
        image = axes.imshow(
            np.ma.masked_equal(shares, 0), aspect="auto", cmap="viridis_r", vmin=0, interpolation="nearest"
        )
        axes.grid(visible=False)
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        axes.locator_params(integer=True)
        figure.colorbar(image, ax=axes, label="share of the client's samples")
    return figure


def _per_client(values: Any, title: str) -> Figure:
    with _axes(1.8) as (figure, axes):
        axes.bar(
            range(len(values)),
            sorted(values, reverse=True),
            color=LIGHT[0],
            width=1.0 if len(values) > 60 else 0.85,
        )
        axes.set_xlabel("clients, sorted")
        axes.set_xticks([])
        axes.set_ylabel(title)
    return figure


def _vectors(setting: Setting) -> Figure:
    """Bytes of each named vector in a round, down and up."""
    with _axes() as (figure, axes):
        found = [(method.label, sent) for method in setting.methods if (sent := vector_bytes(method))]
        starts = np.zeros(len(found))
        for index, vector in enumerate(sorted({name for _, sent in found for name in sent})):
            width = np.array([sent.get(vector, 0.0) for _, sent in found])
            look: Any = {"color": LIGHT[index % len(LIGHT)], "hatch": "////" if vector.startswith("up") else ""}
            title = _text(vector.replace(".", ": ", 1))
            axes.barh(range(len(found)), width, left=starts, edgecolor="white", linewidth=0.3, label=title, **look)
            starts += width
        _methods_downwards(axes, [name for name, _ in found])
        axes.set_xlabel("bytes a round")
        axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(".0 ", " "))
        axes.locator_params(axis="x", nbins=4)
    return figure


def _seconds(setting: Setting, looks: Looks) -> Figure:
    """The median time of a round, and from the 10th to the 90th percentile."""
    with _axes() as (figure, axes):
        found = [(method.label, times) for method in setting.methods if (times := round_seconds(method))]
        for index, (name, (low, middle, high)) in enumerate(found):
            reach = [[middle - low], [high - middle]]
            axes.barh(index, middle, xerr=reach, color=LIGHT[looks[name][0]], capsize=2)
        _methods_downwards(axes, [name for name, _ in found])
        axes.set_xlabel("seconds a round")
    return figure
