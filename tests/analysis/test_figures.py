"""Every picture is drawn, as PNG and SVG, with its labels, and twice the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedgloss import InvalidInput
from fedgloss.analysis import (
    Eigenvalue,
    Eigenvalues,
    Interpolation,
    LocalAgainstGlobal,
    SpectralDensity,
    Subject,
    Surface,
)
from fedgloss.analysis.figures import (
    contours_figure,
    delta_eps_figure,
    density_figure,
    eigenvalues_figure,
    interpolation_figure,
    local_global_figure,
    surfaces_figure,
    write_figure,
)

SUBJECT = Subject(samples=100, parameters=1000)
PLACES = tuple(i / 4 - 1 for i in range(9))


def bowl(steepness: float) -> Surface:
    grid = tuple(tuple(0.1 + steepness * (x * x + 2 * y * y) for x in PLACES) for y in PLACES)
    grid = (*grid[:-1], (*grid[-1][:-1], math.nan))
    return Surface(PLACES, PLACES, {"loss": grid}, {"loss": 0.1}, "filter-normalised", 0, "f", 81, SUBJECT)


def measured(*values: float, spread: float | None = None) -> Eigenvalues:
    top = tuple(Eigenvalue(value, 0.01, 9, spread) for value in values)
    return Eigenvalues("lanczos", top, (), 9, 1e-3, True, 0, SUBJECT)


ENDS = Interpolation((0.0, 0.5, 1.0), {"loss": (1.0, 1.5, 1.2)}, SUBJECT)
LINE = Interpolation((-1.0, 0.0, 0.5, 1.0, 2.0), {"loss": (2.0, 1.0, 1.5, 1.2, 3.0)}, SUBJECT)
DENSITY = SpectralDensity(((-1.0, 0.0, 9.0),), ((0.1, 0.8, 0.1),), 3, 0, SUBJECT)
PICTURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "two surfaces": (
        lambda: surfaces_figure(("FedAvg", bowl(2)), ("FedGloSS", bowl(1)), title="Surfaces"),
        ["FedAvg (solid)", "FedGloSS (net)", "direction 1", "direction 2", "loss", "Surfaces"],
    ),
    "one surface": (lambda: surfaces_figure(("FedAvg", bowl(2)), ceiling=1.5), ["FedAvg", "loss"]),
    "contours": (
        lambda: contours_figure({"FedAvg": bowl(2), "FedSAM": bowl(1.5), "FedGloSS": bowl(1)}),
        ["FedAvg", "FedSAM", "FedGloSS", "direction 1", "loss"],
    ),
    "one contour map": (lambda: contours_figure({"FedAvg": bowl(2)}), ["FedAvg", "direction 2"]),
    "a surface without slope": (lambda: surfaces_figure(("flat", bowl(0)), ("net", bowl(0))), ["flat", "net"]),
    "interpolation": (
        lambda: interpolation_figure({"train": LINE, "test": LINE}, first="Naive", second="FedGloSS"),
        ["Naive", "FedGloSS", "train (barrier 0.4)", "position on the line"],
    ),
    "eigenvalues": (
        lambda: eigenvalues_figure({"FedAvg": measured(9, 4, 2, spread=0.5), "FedGloSS": measured(3, 1)}),
        ["FedAvg", "FedGloSS", "eigenvalue ± s.d.", ">9<"],
    ),
    "many eigenvalues": (
        lambda: eigenvalues_figure({f"a method of rank {i}": measured(-3, 2, 1) for i in range(6)}),
        ["a method of rank 5"],
    ),
    "local against global": (
        lambda: local_global_figure([LocalAgainstGlobal(4, measured(9), measured(3))], {4: "sea"}),
        ["sea", "own data", "all clients' data"],
    ),
    "densities": (
        lambda: density_figure({"FedAvg": DENSITY, "FedGloSS": DENSITY}),
        ["FedAvg", "FedGloSS", "eigenvalue", "density"],
    ),
    "delta_eps": (
        lambda: delta_eps_figure({"FedGloSS": [{}, {"consecutive": 1.2, "true": 0.4}, {"consecutive": 0.8}]}),
        ["consecutive", "true", "orthogonal", "round"],
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_its_labels_and_is_twice_the_same(name: str, tmp_path: Path) -> None:
    draw, labels = PICTURES[name]
    before = dict(matplotlib.rcParams)
    png, svg = write_figure(draw(), tmp_path / "one")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    for label in labels:
        assert label in text, label
    assert write_figure(draw(), tmp_path / "again")[1].read_text() == text
    assert dict(matplotlib.rcParams) == before
    assert len(list(tmp_path.iterdir())) == 4


def test_pictures_are_a_column_wide() -> None:
    for draw, _ in PICTURES.values():
        assert draw().get_size_inches()[0] == pytest.approx(3.3)


LONG = "cifar10-cnn-fedgloss-sam-seed0", "cifar10-cnn-naive-fedgloss-sam-rho0.05-seed12"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: surfaces_figure((LONG[0], bowl(20000)), (LONG[1], bowl(2))),
        lambda: contours_figure({name: bowl(1) for name in LONG}),
        lambda: interpolation_figure({"train": LINE, "test": LINE}, first=LONG[0], second=LONG[1]),
        lambda: interpolation_figure({"train": ENDS}, first=LONG[0], second=LONG[1]),
        lambda: eigenvalues_figure({name: measured(9, 4, 2, spread=0.5) for name in LONG}),
        lambda: density_figure(dict.fromkeys(LONG, DENSITY)),
        lambda: delta_eps_figure({name: [{"consecutive": 1.2}] * 3 for name in LONG}),
    ],
)
def test_long_names_stay_inside_the_picture(draw: Callable[[], Any]) -> None:
    figure = draw()
    FigureCanvasAgg(figure).draw()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > -0.01
    for axes in figure.axes:
        assert axes.get_position().width > 0.3, "squeezed by what stands around it"


def test_a_plane_beside_the_model_fills_its_map() -> None:
    places = tuple(1 + place / 2 for place in PLACES)
    figure = contours_figure({"FedAvg": replace(bowl(1), x=places, y=places)})
    assert figure.axes[0].get_xlim() == (0.5, 1.5)


def test_only_models_on_the_line_are_named() -> None:
    half = Interpolation((0.5, 1.0), {"loss": (1.0, 2.0)}, SUBJECT)
    figure = interpolation_figure({"train": half}, first="Naive", second="FedGloSS")
    assert [text.get_text() for text in figure.axes[0].texts] == ["FedGloSS"]
    assert figure.legends[0].get_texts()[0].get_text() == "train"


def test_rounds_and_heights_are_marked_legibly() -> None:
    rounds = delta_eps_figure({"FedGloSS": [{}, *[{"consecutive": 1.2}] * 3]})
    FigureCanvasAgg(rounds).draw()
    assert all(place == int(place) for place in rounds.axes[0].get_xticks())
    heights = surfaces_figure(("FedAvg", bowl(20000)))
    FigureCanvasAgg(heights).draw()
    (axes,) = heights.axes
    label = axes.zaxis.label.get_window_extent()  # type: ignore[attr-defined]
    for mark in axes.get_zticklabels():  # type: ignore[attr-defined]
        assert not label.overlaps(mark.get_window_extent())


def test_there_must_be_something_to_draw() -> None:
    empty = ((math.nan,) * 9,) * 9
    nothing = Surface(PLACES, PLACES, {"loss": empty}, {"loss": 1.0}, "given", 0, "f", 0, SUBJECT)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: surfaces_figure(("x", nothing)), "surface: holds no finite value"),
        (lambda: contours_figure({}), "surfaces: there is none to draw"),
        (lambda: contours_figure({"x": bowl(1)}, quantity="accuracy"), "quantity: the surface has no 'accuracy'"),
        (lambda: surfaces_figure(("x", bowl(1)), ceiling=-1), "ceiling: -1 cuts everything off"),
        (lambda: contours_figure({"x": bowl(1)}, ceiling=math.nan), "ceiling: must be a number, got nan"),
        (lambda: interpolation_figure({}), "curves: there is none"),
        (lambda: eigenvalues_figure({}), "found: there are no eigenvalues"),
        (lambda: local_global_figure([]), "found: there are no clients"),
        (lambda: density_figure({}), "densities: there is none"),
    ]
    for draw, message in cases:
        with pytest.raises(InvalidInput, match=message):
            draw()


def test_delta_eps_of_methods_without_an_ascent_is_refused() -> None:
    with pytest.raises(InvalidInput, match="only methods with a server-side ascent"):
        delta_eps_figure({"FedAvg": [{}, {}]})
