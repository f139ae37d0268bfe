"""The picture of a division: which client has how much of which class."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..files import disk_errors, write_atomically
from .federation import Indices, Partition
from .statistics import MOST_CELLS, SplitStatistics, Spread, class_counts, describe, evenly_spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_split(
    partition: Partition, labels: Indices, classes: Sequence[str], path: Path | str, title: str
) -> tuple[Path, Path]:
    """Write the picture as PNG and SVG beside each other, ``path`` with these suffixes, and return where."""
    import matplotlib

    stem = Path(path)
    files = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    # With a fixed salt and no date the same split gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "fedgloss", "svg.fonttype": "none"}):
        figure = split_figure(partition, labels, classes, title)
        for file in files:
            content = BytesIO()
            metadata: dict[str, Any] = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(content, format=file.suffix[1:], dpi=150, metadata=metadata)
            with disk_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, content.getvalue())
    return files


def split_figure(partition: Partition, labels: Indices, classes: Sequence[str], title: str) -> Figure:
    """Clients across, classes down, the share of a client's samples as the darkness of the cell, sizes above."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    facts = describe(partition, labels, len(classes))
    shown = evenly_spaced(len(partition))
    some = Partition.of([partition[client] for client in shown])
    shares = class_counts(some, labels, len(classes)) / some.sizes[:, None]
    per_row = -(-len(classes) // MOST_CELLS)
    shares = np.add.reduceat(shares, np.arange(0, len(classes), per_row), axis=1)

    rows_height, bars_height = min(8.0, 2.6 + 0.06 * shares.shape[1]), 0.5
    figure = Figure(figsize=(10, rows_height + bars_height + 1.5), layout="constrained")
    above, main = figure.subplots(2, 1, sharex=True, height_ratios=[bars_height, rows_height])
    figure.suptitle(title, fontsize=13, x=0.01, ha="left", fontweight="bold")
    above.set_title(_sentence(facts), fontsize=9, loc="left", color="0.3")

    above.bar(np.arange(len(shown)), some.sizes, width=1.0, color="0.6", linewidth=0)
    above.set_ylabel("samples", fontsize=9)
    above.set_ylim(0, 1.15 * float(some.sizes.max()))
    above.spines[["top", "right"]].set_visible(False)
    above.tick_params(which="both", labelsize=8, bottom=False)

    image = main.imshow(
        np.ma.masked_equal(shares.T, 0.0),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        norm=PowerNorm(0.5, vmin=0.0, vmax=float(shares.max())),
    )
    main.set_xlabel(_client_axis(len(shown), len(partition)), fontsize=10)
    _mark_clients(main, shown)
    _mark_classes(main, classes, per_row)
    if shares.size <= 2_000:
        _grid(main, *shares.shape)
    bar = figure.colorbar(image, ax=main, pad=0.01, aspect=25, fraction=0.05)
    bar.set_label("share of the client's samples (white: none)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    return figure


def _sentence(facts: SplitStatistics) -> str:
    kinds, sizes = facts.classes_per_client, facts.sizes
    return (
        f"{facts.clients:,} clients of {_range(sizes)} samples; "
        f"classes per client {kinds.mean:.2f} ({_range(kinds)}), "
        f"largest share {100 * facts.largest_share.mean:.0f} %, "
        f"entropy {facts.entropy.mean:.2f} of {np.log(facts.classes):.2f}"
    )


def _range(spread: Spread) -> str:
    same = spread.least == spread.most
    return f"{spread.least:,.0f}" if same else f"{spread.least:,.0f}\N{EN DASH}{spread.most:,.0f}"


def _client_axis(shown: int, clients: int) -> str:
    return "client" if shown == clients else f"client ({shown} of {clients:,}, evenly spaced)"


def _mark_clients(axes: Axes, shown: npt.NDArray[np.int64]) -> None:
    places = np.arange(0, len(shown), max(1, len(shown) // 10))
    axes.set_xticks(places, [f"{client:,}" for client in shown[places]], fontsize=8)


def _mark_classes(axes: Axes, classes: Sequence[str], per_row: int) -> None:
    rows = -(-len(classes) // per_row)
    if rows <= 20:
        axes.set_yticks(np.arange(rows), [_short(name) for name in classes], fontsize=8)
        return
    places = np.arange(0, rows, max(1, rows // 10))
    axes.set_yticks(places, [f"{place * per_row:,}" for place in places], fontsize=8)
    axes.set_ylabel("class" if per_row == 1 else f"class ({per_row} to a row)", fontsize=10)


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "\N{HORIZONTAL ELLIPSIS}"


def _grid(axes: Axes, clients: int, rows: int) -> None:
    axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.4)
    axes.tick_params(which="minor", bottom=False, left=False)
