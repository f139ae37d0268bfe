"""The largest and smallest eigenvalues of the Hessian, without ever forming it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import require
from ..randomness import stream
from ..tasks import Loss
from ..vectors import Vector, norm
from .mean_loss import Data, MeanLoss, Subject
from .results import Interrupted, Progress

Method: TypeAlias = Literal["lanczos", "power"]

EXHAUSTED = 1e-12  # of the largest value: rounding, which short steps before have made longer
POWER_LIMIT, POWER_TOLERANCE = 20, 1e-4
"""The paper's: at most 20 iterations, until the estimate moves by less than 1e-4 of itself."""

LANCZOS_LIMIT, LANCZOS_TOLERANCE = 200, 1e-3
"""Products at most, and the residual relative to the eigenvalue. The eigenvalue's own error is of its square."""

BASIS_BYTES = 2**31
"""What the Lanczos basis may hold before it is compressed to its best vectors."""


class Hessian:
    """The Hessian of a mean loss at given weights: a symmetric matrix known by its products alone."""

    def __init__(self, loss: MeanLoss, params: Vector | None = None, *, weights: str = "model") -> None:
        self.loss = loss
        self.params = loss.params if params is None else params
        loss.check(self.params)
        self.size = loss.layout.size
        self.subject = loss.subject(weights)
        self.noise = 16 * torch.finfo(loss.layout.dtype).eps
        """Relative to the largest eigenvalue, what rounding makes of zero."""

    def __call__(self, vector: Vector) -> Vector:
        return self.loss.hessian_vector(self.params, vector)


@dataclass(frozen=True)
class Eigenvalue:
    """An estimate, the residual ``||H v - value v||`` of its unit vector, and the iterations it took.

    Where several disjoint subsets were measured, ``value`` is their mean, ``spread`` their standard deviation and
    ``residual`` the worst.
    """

    value: float
    residual: float
    iterations: int
    spread: float | None = None
    by_subset: tuple[float, ...] = ()


@dataclass(frozen=True)
class Eigenvalues:
    """``top``: the largest, in descending order; ``bottom``: the smallest, in ascending order.

    Power iteration finds the largest in absolute value, with their signs. ``vectors`` are the unit eigenvectors of
    top, then bottom (of the first subset where there are several).
    """

    method: Method
    top: tuple[Eigenvalue, ...]
    bottom: tuple[Eigenvalue, ...]
    products: int
    tolerance: float
    converged: bool
    seed: int
    subject: Subject
    vectors: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)

    @property
    def largest(self) -> Eigenvalue:
        """lambda_1."""
        return self.top[0]


def top_eigenvalues(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    top: int = 1,
    bottom: int = 0,
    method: Method = "lanczos",
    tolerance: float | None = None,
    samples: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The Hessian's extreme eigenvalues of a plain network, at its present weights.

    ``loss(outputs, targets)`` is a batch's mean; ``data`` a pair of tensors, a ``DataLoader`` or ``Samples``. With
    ``samples``, up to five disjoint random subsets of that size are measured and their spread reported.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(3, 2)
    >>> inputs, targets = torch.randn(50, 3), torch.randn(50, 2)
    >>> found = top_eigenvalues(model, nn.functional.mse_loss, (inputs, targets), top=2, tolerance=1e-6)
    >>> features = torch.cat([inputs, torch.ones(50, 1)], 1)  # the Hessian of mean squares is theirs, per output
    >>> exact = float(torch.linalg.eigvalsh(features.T @ features / 50)[-1])
    >>> [abs(one.value - exact) < 1e-4 for one in found.top]
    [True, True]
    """
    mean_loss = MeanLoss(model, loss, data, workers=workers)
    return eigenvalues(
        mean_loss,
        top=top,
        bottom=bottom,
        method=method,
        tolerance=tolerance,
        samples=samples,
        seed=seed,
        progress=progress,
    )


def eigenvalues(
    loss: MeanLoss,
    params: Vector | None = None,
    *,
    top: int = 1,
    bottom: int = 0,
    method: Method = "lanczos",
    tolerance: float | None = None,
    limit: int | None = None,
    samples: int | None = None,
    subsets: int = 5,
    seed: int = 0,
    weights: str = "model",
    progress: Progress | None = None,
) -> Eigenvalues:
    """The extreme eigenvalues at ``params`` on all samples, or on disjoint subsets of so many ``samples``."""
    require(method in ("lanczos", "power"), "method", f"is 'lanczos' or 'power', got {method!r}")
    require(subsets >= 1, "subsets", f"must be at least 1, got {subsets}")
    parts = [loss] if samples is None else loss.disjoint(samples, subsets, seed)
    found: list[Eigenvalues] = []
    for part in parts:
        hessian = Hessian(part, params, weights=weights)
        try:
            if method == "power":
                require(bottom == 0, "bottom", "power iteration finds the largest alone; use lanczos")
                one = power_iteration(
                    hessian,
                    top=top,
                    tolerance=POWER_TOLERANCE if tolerance is None else tolerance,
                    limit=POWER_LIMIT if limit is None else limit,
                    seed=seed,
                    progress=progress,
                )
            else:
                one = lanczos(
                    hessian,
                    top=top,
                    bottom=bottom,
                    tolerance=LANCZOS_TOLERANCE if tolerance is None else tolerance,
                    limit=LANCZOS_LIMIT if limit is None else limit,
                    seed=seed,
                    progress=progress,
                )
        except Interrupted as stopped:
            raise (Interrupted(over_subsets(found)) if found else stopped) from None
        found.append(one)
    return over_subsets(found)


def lanczos(
    hessian: Hessian,
    *,
    top: int = 1,
    bottom: int = 0,
    tolerance: float = LANCZOS_TOLERANCE,
    limit: int = LANCZOS_LIMIT,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The ``top`` largest and ``bottom`` smallest eigenvalues by Lanczos iteration, fully reorthogonalised.

    It ends when each residual of the largest is below ``tolerance`` times its eigenvalue, and of the smallest below
    ``tolerance`` times the largest (or below what rounding leaves), or after ``limit`` products. The basis is
    thick-restarted where memory is short. An eigenvalue that symmetry repeats (a linear model with several outputs)
    is sure to be found as often as it is there only with a tolerance near rounding.
    """
    _check_counts(hessian, top, bottom, limit, tolerance)
    wanted = top + bottom
    room = min(limit, hessian.size, max(2 * wanted + 8, BASIS_BYTES // (8 * hessian.size)))
    krylov = Krylov(hessian, gaussian(hessian.size, seed, "lanczos"), room=max(room, wanted), seed=seed)
    done = False

    def result() -> Eigenvalues:
        values, residuals = krylov.values, krylov.residuals
        largest = list(reversed(range(len(values))))[:top]
        smallest = list(range(len(values)))[:bottom]

        def estimates(indices: Sequence[int]) -> tuple[Eigenvalue, ...]:
            return tuple(Eigenvalue(float(values[i]), float(residuals[i]), krylov.products) for i in indices)

        return Eigenvalues(
            method="lanczos",
            top=estimates(largest),
            bottom=estimates(smallest),
            products=krylov.products,
            tolerance=tolerance,
            converged=done,
            seed=seed,
            subject=hessian.subject,
            vectors=tuple(krylov.vectors([*largest, *smallest])),
        )

    try:
        while not done and krylov.products < limit:
            if krylov.full:
                spare = (room - wanted) // 3
                krylov.restart(top=top + spare if top else 0, bottom=bottom + spare if bottom else 0)
            krylov.step()
            done = krylov.complete or (len(krylov.values) >= wanted and _settled(krylov, top, bottom, tolerance))
            if progress is not None:
                progress(krylov.products, limit)
    except KeyboardInterrupt:
        raise Interrupted(result() if krylov.products else None) from None
    return result()


def power_iteration(
    hessian: Hessian,
    *,
    top: int = 1,
    tolerance: float = POWER_TOLERANCE,
    limit: int = POWER_LIMIT,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The paper's estimator: the largest in absolute value, with its sign; the next ones by deflation.

    It starts from a vector uniform in [0, 1) that is not normalised, estimates ``v . H v``, and ends when the
    estimate moves by less than ``tolerance`` of itself or after ``limit`` iterations each.
    """
    _check_counts(hessian, top, 0, limit, tolerance)
    found: list[tuple[Eigenvalue, Vector]] = []
    products, converged = 0, True

    def result() -> Eigenvalues:
        ordered = sorted(found, key=lambda pair: -pair[0].value)
        return Eigenvalues(
            method="power",
            top=tuple(eigenvalue for eigenvalue, _ in ordered),
            bottom=(),
            products=products,
            tolerance=tolerance,
            converged=converged,
            seed=seed,
            subject=hessian.subject,
            vectors=tuple(vector for _, vector in ordered),
        )

    try:
        for index in range(top):
            vector = torch.from_numpy(stream(seed, "power iteration", index).random(hessian.size))
            estimate, previous, moved, iterations = 0.0, 0.0, math.inf, 0
            while moved >= tolerance and iterations < limit:
                image = hessian(vector)
                whole = image.clone()
                for known, direction in found:
                    image -= known.value * float(direction @ vector) * direction
                products, iterations = products + 1, iterations + 1
                estimate = float(vector @ image)
                estimated, residual = vector / norm(vector), norm(whole - estimate * vector) / norm(vector)
                moved = abs(estimate - previous) / abs(estimate) if estimate else 0.0
                previous = estimate
                length = norm(image)
                if length == 0:  # in the null space: nothing left to find
                    break
                vector = image / length
                if progress is not None:
                    progress(products, top * limit)
            converged = converged and moved < tolerance
            found.append((Eigenvalue(estimate, residual, iterations), estimated))
    except KeyboardInterrupt:
        converged = False
        raise Interrupted(result() if found else None) from None
    return result()


class Krylov:
    """An orthonormal basis grown by products, and the Hessian projected on it."""

    def __init__(self, hessian: Hessian, start: Vector, *, room: int, seed: int) -> None:
        self._hessian = hessian
        self._seed = seed
        self._basis = torch.empty(room, hessian.size, dtype=torch.float64)
        self._projected = torch.zeros(room, room, dtype=torch.float64)
        self._next = start / norm(start)
        self._used = 0
        self._exhausted = False
        self._fresh = 0  # where in the basis the last fresh start stands
        self._length = 0.0
        self.products = 0
        self.values = torch.empty(0, dtype=torch.float64)
        self.residuals = torch.empty(0, dtype=torch.float64)
        self.turns = torch.empty(0, 0, dtype=torch.float64)

    @property
    def full(self) -> bool:
        return self._used == len(self._basis)

    @property
    def complete(self) -> bool:
        """The basis spans the whole space: the values are exact."""
        return self._used == self._hessian.size

    @property
    def exhausted(self) -> bool:
        """The start and its images span an invariant subspace: further steps begin anew, outside it."""
        return self._exhausted

    @property
    def noise(self) -> float:
        """The length below which a vector is but rounding."""
        return self._hessian.noise * float(self.values.abs().max())

    def step(self) -> None:
        """One product: the basis grows by a vector; the Ritz values, vectors and residuals follow."""
        image = self._hessian(self._next)
        self.products += 1
        self._basis[self._used] = self._next
        self._used += 1
        used = self._basis[: self._used]
        along = self._orthogonalise(image)
        self._projected[: self._used, self._used - 1] = along
        self._projected[self._used - 1, : self._used] = along
        length = norm(image)
        self.values, self.turns = torch.linalg.eigh(self._projected[: self._used, : self._used])
        if length <= max(self.noise, EXHAUSTED * float(self.values.abs().max())) and not self.complete:
            length, self._exhausted, self._fresh = 0.0, True, self._used  # go on from a new random vector
            image = gaussian(self._hessian.size, self._seed, "lanczos again", self.products)
            self._orthogonalise(image)
        self._length = length
        self.residuals = length * self.turns[-1].abs()
        self._next = image / norm(image) if not self.complete else used[0]

    def since_fresh_start(self) -> tuple[Tensor, Tensor]:
        """Values and residuals of the last fresh start and its images alone.

        What no start has reached yet lies between the ends of these, once they have converged.
        """
        values, turns = torch.linalg.eigh(self._projected[self._fresh : self._used, self._fresh : self._used])
        return values, self._length * turns[-1].abs() if len(values) else values

    def restart(self, *, top: int, bottom: int) -> None:
        """Keep the Ritz vectors of the ends; the basis continues from them as if it had never been larger."""
        keep = [*range(bottom), *range(self._used - top, self._used)]
        kept = self.turns[:, keep].T @ self._basis[: self._used]
        self._used = self._fresh = len(keep)
        self._basis[: self._used] = kept
        self._projected.zero_()
        self._projected.diagonal()[: self._used] = self.values[keep]

    def vectors(self, indices: Sequence[int]) -> Tensor:
        """The Ritz vectors of these values."""
        return self.turns[:, list(indices)].T @ self._basis[: self._used]

    def _orthogonalise(self, image: Vector) -> Vector:
        """Remove the basis from the image, twice, and return what was removed."""
        used = self._basis[: self._used]
        removed = torch.zeros(self._used, dtype=torch.float64)
        for _ in range(2):  # once is not enough, twice is
            along = used @ image
            image -= along @ used
            removed += along
        return removed


def gaussian(size: int, seed: int, purpose: str, index: int = 0) -> Vector:
    return torch.from_numpy(stream(seed, purpose, index).standard_normal(size))


def _settled(krylov: Krylov, top: int, bottom: int, tolerance: float) -> bool:
    values, count = krylov.values, len(krylov.values)
    scale = values.abs()
    scale[:bottom] = scale.max()  # the smallest are known to the accuracy of the largest: theirs may be near zero
    ends = [*range(bottom), *range(count - top, count)]
    allowed = torch.clamp(tolerance * scale, min=krylov.noise)
    if not bool((krylov.residuals <= allowed)[ends].all()):
        return False
    return not krylov.exhausted or _nothing_beyond(krylov, top, bottom, tolerance)


def _nothing_beyond(krylov: Krylov, top: int, bottom: int, tolerance: float) -> bool:
    """Whether what a fresh start found is within the ends already: an eigenvalue that is there several times shows
    once in each invariant subspace."""
    fresh, residuals = krylov.since_fresh_start()
    if not len(fresh):
        return False
    values, slack = krylov.values, max(tolerance * float(krylov.values.abs().max()), krylov.noise)
    above = top == 0 or bool(residuals[-1] <= slack and fresh[-1] <= values[len(values) - top] + slack)
    below = bottom == 0 or bool(residuals[0] <= slack and fresh[0] >= values[bottom - 1] - slack)
    return above and below


def _check_counts(hessian: Hessian, top: int, bottom: int, limit: int, tolerance: float) -> None:
    require(top >= 0 and bottom >= 0 and top + bottom >= 1, "top", f"asked for {top} and {bottom} eigenvalues")
    require(top + bottom <= hessian.size, "top", f"{top + bottom} eigenvalues of a matrix of size {hessian.size}")
    require(limit >= top + bottom, "top", f"{top + bottom} eigenvalues take more than {limit} products, the limit")
    require(tolerance > 0, "tolerance", f"must be positive, got {tolerance}")


def over_subsets(found: Sequence[Eigenvalues]) -> Eigenvalues:
    """The subsets' results as one, each eigenvalue with its spread."""
    if len(found) == 1:
        return found[0]

    def merge(same: Sequence[Eigenvalue]) -> Eigenvalue:
        values = [one.value for one in same]
        return Eigenvalue(
            value=float(np.mean(values)),
            residual=max(one.residual for one in same),
            iterations=max(one.iterations for one in same),
            spread=float(np.std(values, ddof=1)),
            by_subset=tuple(values),
        )

    return replace(
        found[0],
        top=tuple(merge(same) for same in zip(*(one.top for one in found), strict=True)),
        bottom=tuple(merge(same) for same in zip(*(one.bottom for one in found), strict=True)),
        products=sum(one.products for one in found),
        converged=all(one.converged for one in found),
    )
