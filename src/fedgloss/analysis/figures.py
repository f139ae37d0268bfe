"""Pictures of the results, for a column of 3.3 inches: PNG and SVG, in colours everybody can tell apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import numpy.typing as npt

from ..errors import require
from ..files import disk_errors, write_atomically
from .drift import LocalAgainstGlobal
from .hessian import Eigenvalue, Eigenvalues
from .interpolation import Interpolation
from .landscape import Surface
from .spectrum import SpectralDensity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3
"""A column's width in inches."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which differ for every kind of colour vision; lines differ in dashes too."""

DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "fedgloss",  # the same picture is the same bytes
    "svg.fonttype": "none",
}
Grid = npt.NDArray[np.float64]
Arguments = ParamSpec("Arguments")


def _styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Draw in our style and leave the user's own as it was."""

    @wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def write_figure(figure: Figure, path: Path | str) -> tuple[Path, Path]:
    """Write the picture as PNG and SVG beside each other, ``path`` with these suffixes, and return where."""
    import matplotlib

    stem = Path(path)
    files = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    with matplotlib.rc_context(STYLE):
        for file in files:
            content = BytesIO()
            metadata: dict[str, Any] = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(content, format=file.suffix[1:], dpi=300, metadata=metadata)
            with disk_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, content.getvalue())
    return files


@_styled
def surfaces_figure(
    solid: tuple[str, Surface],
    net: tuple[str, Surface] | None = None,
    *,
    ceiling: float | None = None,
    title: str = "",
) -> Figure:
    """One or two named loss surfaces in one 3-D plot, the first solid, the second a net.

    Losses above ``ceiling`` are cut off there. What lies behind is hidden behind, whichever surface it belongs to.
    """
    from matplotlib import colormaps
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

    drawn = [solid] if net is None else [solid, net]
    heights = [_clipped(surface, ceiling) for _, surface in drawn]
    low, high = _range(heights, ceiling)
    figure = _figure(COLUMN, 2.9, constrained=False)
    axes: Any = figure.add_axes((0.0, 0.02, 0.93, 0.9), projection="3d")

    cells, faces, edges = [], [], []
    colours = colormaps["viridis"]
    for index, ((_, surface), height) in enumerate(zip(drawn, heights, strict=True)):
        for cell in _cells(surface, height):
            cells.append(cell)
            shade = (float(np.mean(cell[:, 2])) - low) / (high - low)
            faces.append(colours(shade) if index == 0 else (1.0, 1.0, 1.0, 0.0))
            edges.append((0.0, 0.0, 0.0, 0.15) if index == 0 else _rgba(COLOURS[1]))
    axes.add_collection3d(Poly3DCollection(cells, facecolors=faces, edgecolors=edges, linewidths=0.45))

    x, y = drawn[0][1].x, drawn[0][1].y
    axes.set(xlim=(min(x), max(x)), ylim=(min(y), max(y)), zlim=(low, high))
    axes.view_init(elev=24, azim=-55)
    axes.set_box_aspect((1, 1, 0.8), zoom=0.92)
    axes.set_xlabel("direction 1", labelpad=-6)
    axes.set_ylabel("direction 2", labelpad=-6)
    axes.tick_params(pad=-3)
    marks = [
        height
        for height in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        if low <= height <= high
    ]
    names = _told_apart(marks)
    axes.set_zticks(marks, names, ha="left")  # centred, long ones lie on the axis
    axes.set_zlabel("loss", labelpad=3 * max(map(len, names)) - 9, rotation=90)
    for values, mark in ((x, axes.set_xticks), (y, axes.set_yticks)):
        mark([min(values) + share * (max(values) - min(values)) for share in (0.25, 0.5, 0.75)])
    for pane in (axes.xaxis, axes.yaxis, axes.zaxis):
        pane.set_pane_color((1.0, 1.0, 1.0, 0.0))
        pane._axinfo["grid"].update(color="0.88", linewidth=0.4)
    typical = colours((float(np.nanmedian(heights[0])) - low) / (high - low))
    legend: list[Any] = [Patch(color=typical, label=solid[0] if net is None else f"{solid[0]} (solid)")]
    if net is not None:
        legend.append(Line2D([], [], color=COLOURS[1], linewidth=1.0, label=f"{net[0]} (net)"))
    columns = _columns([name for name, _ in drawn])
    figure.legend(handles=legend, loc="upper left", ncols=columns, bbox_to_anchor=(0.0, 0.94 if title else 1.0))
    if title:
        figure.text(0.02, 0.965, title, fontsize=8, fontweight="bold", va="center")
    return figure


@_styled
def contours_figure(
    surfaces: Mapping[str, Surface], *, quantity: str = "loss", ceiling: float | None = None
) -> Figure:
    """Contour maps of one or more named surfaces side by side, on one scale; a cross marks the model."""
    from matplotlib.ticker import MaxNLocator

    require(len(surfaces) > 0, "surfaces", "there is none to draw")
    heights = {name: _clipped(surface, ceiling, quantity) for name, surface in surfaces.items()}
    levels = MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]).tick_values(*_range(list(heights.values()), ceiling))
    columns = min(2, len(surfaces))
    rows = -(-len(surfaces) // columns)
    titles = {name: _wrapped(name, 20 if columns > 1 else 40) for name in surfaces}
    line = 0.15 * max(title.count("\n") for title in titles.values())
    figure = _figure(COLUMN, (3.4 if columns == 1 else 0.7 + 1.6 * rows) + line * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(surfaces) :]:
        axes.set_visible(False)
    filled = None
    for axes, (name, surface) in zip(panels.flat, surfaces.items(), strict=False):
        filled = axes.contourf(surface.x, surface.y, heights[name], levels, cmap="viridis", extend="neither")
        axes.contour(surface.x, surface.y, heights[name], levels[::2], colors="white", linewidths=0.4)
        axes.plot(0, 0, marker="+", color="white", markersize=7, markeredgewidth=1.4)
        limits: Any = {"xlim": (surface.x[0], surface.x[-1]), "ylim": (surface.y[0], surface.y[-1])}
        axes.set(title=titles[name], aspect="equal", **limits)
    for axes in panels.flat[: len(surfaces)][
        -columns:
    ]:  # the lowest of each column, where the last row is short too
        axes.set_xlabel("direction 1")
        axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel("direction 2")
    assert filled is not None
    bar = figure.colorbar(filled, ax=panels, location="bottom", aspect=40, pad=0.02, format="%.3g")
    bar.set_label(quantity)
    bar.locator = MaxNLocator(6)
    bar.update_ticks()
    return figure


@_styled
def interpolation_figure(
    curves: Mapping[str, Interpolation], *, first: str = "first", second: str = "second", quantity: str = "loss"
) -> Figure:
    """The line through two models, a curve for each named data set, the barriers in the legend."""
    require(len(curves) > 0, "curves", "there is none to draw")
    figure = _figure(COLUMN, 2.3)
    axes = figure.subplots()
    for (name, curve), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        known = quantity == "loss" and not np.isnan(curve.barrier)
        label = f"{name} (barrier {curve.barrier:.2g})" if known else name
        axes.plot(curve.coefficients, curve.curves[quantity], color=colour, linestyle=dash, label=label)
    low, high = min(c.coefficients[0] for c in curves.values()), max(c.coefficients[-1] for c in curves.values())
    for place, name, side in ((0.0, first, "right"), (1.0, second, "left")):
        if low <= place <= high:
            axes.axvline(place, color="0.6", linewidth=0.6, zorder=0)
            share = (place - low) / (high - low)
            side = "left" if share < 0.25 else "right" if share > 0.75 else side
            where: Any = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
            axes.annotate(_wrapped(name, 16), (place, 1.0), fontsize=7, **where)
    axes.set(xlabel="position on the line", ylabel=quantity)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@_styled
def eigenvalues_figure(found: Mapping[str, Eigenvalues]) -> Figure:
    """The largest eigenvalues of each named model as bars; error bars are the spread over disjoint subsets."""
    require(len(found) > 0, "found", "there are no eigenvalues to draw")
    most = max(len(one.top) for one in found.values())
    series = {
        f"$\\lambda_{{{rank + 1}}}$": [one.top[rank] if rank < len(one.top) else None for one in found.values()]
        for rank in range(most)
    }
    return _bars(list(found), series, "eigenvalue" if most > 1 else "$\\lambda_1$")


@_styled
def local_global_figure(found: Sequence[LocalAgainstGlobal], names: Mapping[int, str] | None = None) -> Figure:
    """Each client's largest eigenvalue on its own data beside that on everybody's."""
    require(len(found) > 0, "found", "there are no clients to draw")
    series: dict[str, list[Eigenvalue | None]] = {
        "own data": [one.local.largest for one in found],
        "all clients' data": [one.union.largest for one in found],
    }
    return _bars([(names or {}).get(one.client, f"client {one.client}") for one in found], series, "$\\lambda_1$")


@_styled
def density_figure(densities: Mapping[str, SpectralDensity], *, width: float | None = None) -> Figure:
    """The spectral density of each named model, on a logarithmic scale.

    ``width`` is the blur of each point of mass; without it, a hundredth of the range.
    """
    require(len(densities) > 0, "densities", "there is none to draw")
    points = [point for density in densities.values() for probe in density.points for point in probe]
    low, high = min(points), max(points)
    blur = width or max(high - low, 1e-9) / 100
    places = np.linspace(low - 4 * blur, high + 4 * blur, 1000)
    figure = _figure(COLUMN, 2.3)
    axes = figure.subplots()
    highest = 0.0
    for (name, density), colour, dash in zip(densities.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        curve = np.array(density.curve(places.tolist(), blur))
        highest = max(highest, float(curve.max()))
        axes.plot(places, curve, color=colour, linestyle=dash, label=name, linewidth=1.0)
    size = next(iter(densities.values())).subject.parameters
    axes.set(
        yscale="log", xlabel="eigenvalue", ylabel="density", ylim=(highest * min(1e-5, 0.1 / size), 3 * highest)
    )
    figure.legend(loc="outside upper left", ncols=_columns(list(densities)))
    return figure


@_styled
def delta_eps_figure(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """How far apart successive ascents point, over the rounds of each named run; all readings that it keeps."""
    from matplotlib.ticker import MaxNLocator

    curves = {
        f"{run}, {reading}" if len(rounds) > 1 else reading: [one.get(reading, np.nan) for one in lines]
        for run, lines in rounds.items()
        for reading in sorted({name for line in lines for name in line})
    }
    require(len(curves) > 0, "rounds", "hold no delta_eps; only methods with a server-side ascent do")
    figure = _figure(COLUMN, 2.3)
    axes = figure.subplots()
    for (name, curve), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        axes.plot(
            range(1, len(curve) + 1), curve, color=colour, linestyle=dash, label=_wrapped(name, 44), linewidth=0.8
        )
    axes.axhline(np.sqrt(2), color="0.6", linewidth=0.6, zorder=0, label="orthogonal")
    axes.set(xlabel="round", ylabel="$\\delta_\\epsilon$ / $\\rho$", ylim=(0, 2))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper left", ncols=_columns([*curves, "orthogonal"]))
    return figure


def _bars(groups: Sequence[str], series: Mapping[str, Sequence[Eigenvalue | None]], ylabel: str) -> Figure:
    """Grouped bars with their values above; the error bars, where there are any, are one standard deviation."""
    figure = _figure(COLUMN, 2.3)
    axes = figure.subplots()
    width = 0.8 / len(series)
    hatches = ("", "///", "...", "xxx", "---")
    crowded = len(groups) * len(series) > 12
    for index, ((name, bars), colour) in enumerate(zip(series.items(), cycle(COLOURS), strict=False)):
        shown = [(place, bar) for place, bar in enumerate(bars) if bar is not None]
        places = [place + (index - (len(series) - 1) / 2) * width for place, _ in shown]
        values, spreads = [bar.value for _, bar in shown], [bar.spread or 0.0 for _, bar in shown]
        axes.bar(
            places,
            values,
            0.92 * width,
            color=colour,
            alpha=0.85,
            label=name,
            hatch=hatches[index % 5],
            edgecolor="white",
        )
        if any(spreads):
            axes.errorbar(places, values, spreads, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
        if not crowded:
            for place, value, spread in zip(places, values, spreads, strict=True):
                _value_above(axes, place, value, spread)
    axes.axhline(0, color="black", linewidth=0.6)
    names = [_wrapped(group, 20) for group in groups]
    axes.set_xticks(range(len(groups)), names)
    if max(len(line) for name in names for line in name.split("\n")) * len(groups) > 44:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    spread = any(bar is not None and bar.spread for bars in series.values() for bar in bars)
    axes.set_ylabel(ylabel + " ± s.d." if spread else ylabel)
    axes.margins(y=0.12)
    if len(series) > 1:
        figure.legend(loc="outside upper left", ncols=min(5, len(series)))
    return figure


def _wrapped(name: str, width: int) -> str:
    """A long name in several lines: runs of one method are told apart by the names of their folders."""
    lines = [""]
    for part in re.findall("[^-/ ]*[-/ ]?", name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines)


def _told_apart(marks: Sequence[float]) -> list[str]:
    """Numbers in as few digits as differ: those of a nearly flat surface need many.

    >>> _told_apart([0.5, 1.0]), _told_apart([2.30258502, 2.30258504])
    (['0.5', '1'], ['2.30258502', '2.30258504'])
    """
    return next(
        names
        for digits in range(6, 18)
        if len(set(names := [f"{mark:.{digits}g}" for mark in marks])) == len(marks) or digits == 17
    )


def _columns(names: Sequence[str]) -> int:
    """Those of a legend above the picture."""
    return 2 if sum(map(len, names)) <= 36 else 1


def _value_above(axes: Axes, place: float, value: float, spread: float) -> None:
    top = value + spread if value >= 0 else value - spread
    axes.annotate(
        f"{value:.3g}",
        (place, top),
        xytext=(0, 2 if value >= 0 else -2),
        textcoords="offset points",
        ha="center",
        va="bottom" if value >= 0 else "top",
        fontsize=6,
    )


def _figure(width: float, height: float, *, constrained: bool = True) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained" if constrained else None)


def _rgba(colour: str) -> tuple[float, float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue, 0.9


def _clipped(surface: Surface, ceiling: float | None, quantity: str = "loss") -> Grid:
    """The grid as an array, cut off at the ceiling; a surface without a single value is refused."""
    require(quantity in surface.grids, "quantity", f"the surface has no {quantity!r}")
    grid = np.array(surface.grids[quantity], dtype=np.float64)
    grid[~np.isfinite(grid)] = np.nan
    require(not bool(np.isnan(grid).all()), "surface", "holds no finite value")
    require(ceiling is None or not np.isnan(ceiling), "ceiling", "must be a number, got nan")
    return grid if ceiling is None else np.minimum(grid, ceiling)


def _range(heights: Sequence[Grid], ceiling: float | None) -> tuple[float, float]:
    """From the lowest value to the highest, never nothing between them."""
    low, high = min(float(np.nanmin(h)) for h in heights), max(float(np.nanmax(h)) for h in heights)
    require(ceiling is None or low < ceiling, "ceiling", f"{ceiling} cuts everything off")
    return low, max(high, low + 1e-6 * max(1.0, abs(low)))


def _cells(surface: Surface, height: Grid) -> list[Grid]:
    """The surface's quadrilaterals, without those that have a gap for a corner."""
    x, y = np.meshgrid(surface.x, surface.y)
    corners = np.stack([x, y, height], axis=-1)
    around = [corners[:-1, :-1], corners[:-1, 1:], corners[1:, 1:], corners[1:, :-1]]
    cells = np.stack(around, axis=-2).reshape(-1, 4, 3)
    return [cell for cell in cells if np.isfinite(cell).all()]
