"""The whole spectrum in outline: its density by stochastic Lanczos quadrature, its sum by Hutch++."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import require
from ..randomness import stream
from .hessian import Hessian, Krylov
from .mean_loss import Subject
from .results import Interrupted, Progress


@dataclass(frozen=True)
class SpectralDensity:
    """The eigenvalues' distribution as weighted points, one set per random probe.

    Each probe's ``masses`` sum to 1, and its points have the moments of the spectrum as that probe sees it.
    """

    points: tuple[tuple[float, ...], ...]
    masses: tuple[tuple[float, ...], ...]
    products: int
    seed: int
    subject: Subject

    def moment(self, power: int) -> tuple[float, float]:
        """The estimate of ``trace(H^power) / size`` and its standard error over the probes."""
        found = [
            sum(mass * point**power for point, mass in zip(*probe, strict=True))
            for probe in zip(self.points, self.masses, strict=True)
        ]
        return float(np.mean(found)), _standard_error(found)

    def curve(self, at: Sequence[float], width: float) -> tuple[float, ...]:
        """The density at these places, each point of mass blurred to a Gaussian of this width."""
        places = np.asarray(at, dtype=np.float64)
        total = np.zeros_like(places)
        for points, masses in zip(self.points, self.masses, strict=True):
            for point, mass in zip(points, masses, strict=True):
                total += mass * np.exp(-0.5 * ((places - point) / width) ** 2)
        return tuple(float(value) for value in total / (width * math.sqrt(2 * math.pi) * len(self.points)))


@dataclass(frozen=True)
class Trace:
    """The sum of all eigenvalues and its standard error."""

    value: float
    error: float
    products: int
    seed: int
    subject: Subject


def spectral_density(
    hessian: Hessian, *, probes: int = 4, steps: int = 40, seed: int = 0, progress: Progress | None = None
) -> SpectralDensity:
    """The density by stochastic Lanczos quadrature, from ``probes`` random starts of ``steps`` products each."""
    require(probes >= 1, "probes", f"must be at least 1, got {probes}")
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    points: list[tuple[float, ...]] = []
    masses: list[tuple[float, ...]] = []
    products = 0

    def result() -> SpectralDensity:
        return SpectralDensity(tuple(points), tuple(masses), products, seed, hessian.subject)

    try:
        for probe in range(probes):
            krylov = Krylov(
                hessian, _signs(hessian.size, seed, "density", probe), room=min(steps, hessian.size), seed=seed
            )
            while not (krylov.full or krylov.exhausted):
                krylov.step()
                products += 1
                if progress is not None:
                    progress(products, probes * steps)
            points.append(tuple(krylov.values.tolist()))
            masses.append(tuple((krylov.turns[0] ** 2).tolist()))
    except KeyboardInterrupt:
        raise Interrupted(result() if points else None) from None
    return result()


def trace(hessian: Hessian, *, products: int = 30, seed: int = 0, progress: Progress | None = None) -> Trace:
    """The trace by Hutch++: a third of the products finds the large eigenvalues' space, a third sums over it
    exactly, and a third estimates the rest from random signs.
    """
    require(products >= 6, "products", f"Hutch++ needs at least 6, got {products}")
    third = min(products // 3, hessian.size)
    done = 0

    def image(vector: Tensor) -> Tensor:
        nonlocal done
        found = hessian(vector)
        done += 1
        if progress is not None:
            progress(done, 3 * third)
        return found

    sketch = torch.stack([image(_signs(hessian.size, seed, "trace sketch", i)) for i in range(third)])
    basis = torch.linalg.qr(sketch.T).Q
    exact = sum(float(column @ image(column)) for column in basis.T)
    rest: list[float] = []

    def result() -> Trace:
        return Trace(exact + float(np.mean(rest)), _standard_error(rest), done, seed, hessian.subject)

    try:
        for i in range(third if third < hessian.size else 0):
            outside = _signs(hessian.size, seed, "trace rest", i)
            outside -= basis @ (basis.T @ outside)
            rest.append(float(outside @ image(outside)))
    except KeyboardInterrupt:
        raise Interrupted(result() if rest else None) from None
    return result() if rest else Trace(exact, 0.0, done, seed, hessian.subject)


def _signs(size: int, seed: int, purpose: str, index: int) -> Tensor:
    """Random +1 and -1."""
    return torch.from_numpy(stream(seed, purpose, index).integers(2, size=size) * 2.0 - 1.0)


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
