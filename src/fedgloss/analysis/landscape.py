"""The loss around a model: on a plane through its weights, spanned by two directions."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ..errors import InvalidInput, require
from ..randomness import stream
from ..tasks import Loss
from ..vectors import Layout, Vector
from .mean_loss import Data, MeanLoss, Subject
from .results import Interrupted, Progress, load, save

SAVE_SECONDS = 5.0


@dataclass(frozen=True)
class Surface:
    """Means on the grid ``params + x * first direction + y * second direction``.

    ``grids`` holds the loss and each metric as rows of equal y, from the first y up; a point not yet computed, or
    not finite, is NaN. ``centre`` holds the means at the weights themselves.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    grids: Mapping[str, tuple[tuple[float, ...], ...]]
    centre: Mapping[str, float]
    directions: str
    seed: int
    fingerprint: str
    computed: int
    subject: Subject

    def __post_init__(self) -> None:
        shapes = [(len(rows), *{len(row) for row in rows}) for rows in self.grids.values()]
        fits = all(shape == (len(self.y), len(self.x)) for shape in shapes)
        require(fits, "grids", f"must have {len(self.y)} rows of {len(self.x)} points")
        require(0 <= self.computed <= len(self.x) * len(self.y), "computed", "must be of the grid's points")

    @property
    def loss(self) -> tuple[tuple[float, ...], ...]:
        return self.grids["loss"]

    @property
    def complete(self) -> bool:
        return self.computed == len(self.x) * len(self.y)


def loss_surface(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    grid: int = 25,
    span: tuple[float, float] = (-1.0, 1.0),
    directions: tuple[Vector, Vector] | None = None,
    samples: int | None = None,
    seed: int = 0,
    saved: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Surface:
    """The loss of a plain network on a plane around its present weights.

    The plane is spanned by two random directions, filter-normalised; models measured with one seed share the draw.
    ``samples`` takes a random subset of the data.

    >>> _ = torch.manual_seed(0)
    >>> model, inputs = nn.Linear(3, 2), torch.randn(20, 3)
    >>> targets = inputs.argmax(1) % 2
    >>> found = loss_surface(model, nn.functional.cross_entropy, (inputs, targets), grid=3)
    >>> found.x, len(found.loss), len(found.loss[0])
    ((-1.0, 0.0, 1.0), 3, 3)
    >>> abs(found.loss[1][1] - float(nn.functional.cross_entropy(model(inputs), targets).detach())) < 1e-6
    True
    """
    mean_loss = MeanLoss(model, loss, data, workers=workers)
    if samples is not None:
        (mean_loss,) = mean_loss.disjoint(samples, 1, seed)
    return surface(
        mean_loss, directions=directions, grid=grid, span=span, seed=seed, saved=saved, progress=progress
    )


def surface(
    loss: MeanLoss,
    params: Vector | None = None,
    *,
    directions: tuple[Vector, Vector] | None = None,
    kind: str | None = None,
    grid: int = 25,
    span: tuple[float, float] = (-1.0, 1.0),
    seed: int = 0,
    weights: str = "model",
    saved: Path | None = None,
    progress: Progress | None = None,
) -> Surface:
    """The means on a grid of ``grid`` x ``grid`` points around ``params``.

    ``directions`` are two vectors (eigenvectors, say, and ``kind`` says so); without them, random filter-normalised
    ones of this seed. With ``saved``, a JSON file keeps what is computed, and a later call goes on from there.
    """
    require(grid >= 2, "grid", f"must be at least 2, got {grid}")
    low, high = span
    require(math.isfinite(low) and math.isfinite(high) and low < high, "span", f"must rise, got {low} to {high}")
    params = loss.params if params is None else params.cpu()  # not every device has float64
    loss.check(params)
    if directions is None:
        directions = (
            filter_normalised(loss.layout, params, seed, 0),
            filter_normalised(loss.layout, params, seed, 1),
        )
        kind = kind or "filter-normalised"
    for index, direction in enumerate(directions):
        loss.check(direction, f"directions[{index}]")
    first, second = (direction.cpu().double() for direction in directions)
    places = tuple(low + (high - low) * i / (grid - 1) for i in range(grid))
    centre = loss.evaluate(params)
    empty = ((math.nan,) * grid,) * grid
    found = Surface(
        x=places,
        y=places,
        grids=dict.fromkeys(centre, empty),
        centre=centre,
        directions=kind or "given",
        seed=seed,
        fingerprint=_fingerprint(params, first, second),
        computed=0,
        subject=loss.subject(weights),
    )
    if saved is not None and saved.exists():
        found = _resumed(found, saved)
    grids = {name: [list(row) for row in rows] for name, rows in found.grids.items()}
    computed, last_saved = found.computed, time.monotonic()

    def result() -> Surface:
        frozen = {name: tuple(tuple(row) for row in rows) for name, rows in grids.items()}
        return replace(found, grids=frozen, computed=computed)

    try:
        for point in range(computed, grid * grid):
            row, column = divmod(point, grid)
            moved = params.double() + places[column] * first + places[row] * second
            for name, value in loss.evaluate(moved.to(params.dtype)).items():
                grids[name][row][column] = value
            computed = point + 1
            if saved is not None and time.monotonic() - last_saved > SAVE_SECONDS:
                save(saved, result())
                last_saved = time.monotonic()
            if progress is not None:
                progress(computed, grid * grid)
    except KeyboardInterrupt:
        raise Interrupted(result()) from None
    finally:
        if saved is not None and computed > found.computed:
            save(saved, result())
    return result()


def filter_normalised(layout: Layout, params: Vector, seed: int, index: int) -> Vector:
    """A random direction whose filters have the norms of the model's filters (Li et al. 2018).

    A filter is what makes one output: a convolution's channel, a linear layer's row. One-dimensional parameters
    (biases, normalisation layers) do not move. The raw draw depends on the seed, the index and the size alone.
    """
    drawn = stream(seed, "landscape", index).standard_normal(layout.size)
    direction, params = torch.from_numpy(drawn), params.cpu()
    for entry in layout.entries:
        block = slice(entry.start, entry.stop)
        if len(entry.shape) < 2:
            direction[block] = 0
            continue
        filters = direction[block].view(entry.shape[0], -1)
        lengths = params[block].double().view(entry.shape[0], -1).norm(dim=1, keepdim=True)
        filters *= lengths / filters.norm(dim=1, keepdim=True)
    return direction


def _fingerprint(*vectors: Vector) -> str:
    digest = hashlib.sha256()
    for vector in vectors:
        digest.update(vector.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _resumed(new: Surface, saved: Path) -> Surface:
    """The surface in the file, if it is of the same model, plane, grid and data."""
    old = load(saved, Surface)
    same = (old.x, old.y, old.fingerprint, old.subject) == (new.x, new.y, new.fingerprint, new.subject)
    if not same or old.grids.keys() != new.grids.keys() or not _close(old.centre, new.centre):
        raise InvalidInput(f"{saved}: holds another model's surface, plane or grid; remove it or name another file")
    return old


def _close(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    if one.keys() != other.keys():
        return False
    pairs: Sequence[tuple[float, float]] = [(one[name], other[name]) for name in one]
    return all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9) for a, b in pairs)
