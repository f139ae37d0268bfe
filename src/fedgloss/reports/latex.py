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
from .html import AGAINST_BYTES, DENSITY_PLACES, blurred, density_places
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
    tables = [results.across(settings)]
    for setting in settings:
        tables += [
            make(setting) for make in (results.results, results.comparisons, results.measures, results.costs)
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
        drawings: Mapping[Kind, Callable[[Setting, Looks], Figure]] = {
            "eigenvalues": _eigenvalues,
            "density": _densities,
            "interpolation": _interpolations,
            "surface": _surfaces,
        }
        for kind, draw in drawings.items():
            if any(True for method in setting.methods for _ in method.measurements(kind)):
                yield kind, draw(setting, looks)
        picture = next((run.federation for run in setting.runs if run.federation), None)
        if picture and picture["counts"]:
            yield "division", _division(picture)


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
        named: set[str] = set()
        for method in setting.methods:
            for _, found in method.measurements("interpolation"):
                curve = found.content["curves"].get("loss")
                if curve is not None:
                    label = _text(f"{method.label}, {found.name}")
                    once = None if label in named else label
                    named.add(label)
                    axes.plot(found.content["coefficients"], curve, label=once, **_stroke(method, looks))
        for end in (0, 1):
            axes.axvline(end, color="0.6", linewidth=0.6, linestyle=":")
        axes.set_xlabel("from the first model (0) to the second (1)")
        axes.set_ylabel("loss")
    return figure


def _surfaces(setting: Setting, looks: Looks) -> Figure:
    """The last method's surface solid, the first one's as a net."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    all_of = [(m, found) for m in setting.methods for _, found in _first(m, "surface")]
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
