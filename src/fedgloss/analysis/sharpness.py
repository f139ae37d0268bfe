"""How much the loss rises near a model: in the worst direction, and on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import require
from ..randomness import stream
from ..vectors import Vector, norm, unit
from .mean_loss import MeanLoss, Subject
from .results import Interrupted, Progress


@dataclass(frozen=True)
class WorstCase:
    """``max f(w + e) - f(w)`` over ``||e|| <= rho``, as found by so many ascent steps."""

    value: float
    rho: float
    steps: int
    loss: float
    subject: Subject


@dataclass(frozen=True)
class AverageCase:
    """The mean of ``f(w + e) - f(w)`` over Gaussian e of standard deviation ``sigma``, and its standard error."""

    value: float
    error: float
    sigma: float
    draws: int
    loss: float
    seed: int
    subject: Subject


def worst_case_sharpness(
    loss: MeanLoss,
    params: Vector | None = None,
    *,
    rho: float,
    steps: int = 1,
    weights: str = "model",
    progress: Progress | None = None,
) -> WorstCase:
    """SAM's sharpness. One step is SAM's own ascent, ``e = rho * unit(gradient)``.

    Each further step goes rho along the gradient at ``w + e`` and back to the sphere; the highest loss met counts,
    so more steps never give less. Near a minimum the steps are a power iteration and e turns to the Hessian's top
    eigenvector.
    """
    require(rho > 0 and math.isfinite(rho), "rho", f"must be positive, got {rho}")
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    params = loss.params if params is None else params.cpu()
    loss.check(params)
    start, gradient = loss.gradient(params)
    ascent, highest, done = torch.zeros_like(gradient), -math.inf, 0

    def result() -> WorstCase:
        return WorstCase(highest - start, rho, done, start, loss.subject(weights))

    try:
        while done < steps:
            ascent = rho * unit(ascent + rho * unit(gradient))
            moved = (params.double() + ascent).to(params.dtype)
            if done + 1 < steps:
                reached, gradient = loss.gradient(moved)
            else:
                reached = loss.value(moved)
            highest, done = max(highest, math.inf if math.isnan(reached) else reached), done + 1
            if progress is not None:
                progress(done, steps)
    except KeyboardInterrupt:
        raise Interrupted(result() if done else None) from None
    return result()


def average_sharpness(
    loss: MeanLoss,
    params: Vector | None = None,
    *,
    sigma: float,
    draws: int = 20,
    seed: int = 0,
    weights: str = "model",
    progress: Progress | None = None,
) -> AverageCase:
    """How much the loss rises on average when every weight is moved by Gaussian noise.

    For small sigma it is ``sigma^2 / 2`` times the Hessian's trace.
    """
    require(sigma > 0 and math.isfinite(sigma), "sigma", f"must be positive, got {sigma}")
    require(draws >= 2, "draws", f"must be at least 2, got {draws}")
    params = loss.params if params is None else params.cpu()
    loss.check(params)
    start = loss.value(params)
    rises: list[float] = []

    def result() -> AverageCase:
        error = float(np.std(rises, ddof=1) / math.sqrt(len(rises))) if len(rises) > 1 else math.nan
        return AverageCase(float(np.mean(rises)), error, sigma, len(rises), start, seed, loss.subject(weights))

    try:
        for draw in range(draws):
            noise = torch.from_numpy(stream(seed, "average sharpness", draw).standard_normal(loss.layout.size))
            moved = params.double() + sigma * noise
            rises.append(loss.value(moved.to(params.dtype)) - start)
            if progress is not None:
                progress(draw + 1, draws)
    except KeyboardInterrupt:
        raise Interrupted(result() if rises else None) from None
    return result()


def repeated_ascent(
    loss: MeanLoss, params: Vector | None = None, *, rho: float, steps: int = 5
) -> tuple[Vector, ...]:
    """The ascents of server-side SAM at fixed weights: each is rho along the gradient at the one before, the first
    along the gradient at the weights themselves.

    Near a stationary point the gradient at ``w + e`` is the Hessian times e, so the ascents are a power iteration
    and turn to the top eigenvector; see ``alignment``.
    """
    require(rho > 0 and math.isfinite(rho), "rho", f"must be positive, got {rho}")
    require(steps >= 1, "steps", f"must be at least 1, got {steps}")
    params = loss.params if params is None else params.cpu()
    loss.check(params)
    found: list[Vector] = []
    moved = params
    for _ in range(steps):
        found.append(rho * unit(loss.gradient(moved)[1]))
        moved = (params.double() + found[-1]).to(params.dtype)
    return tuple(found)


def alignment(vector: Vector, eigenvectors: Sequence[Vector]) -> tuple[float, ...]:
    """``|cos|`` between a vector (the pseudo-gradient, say) and each eigenvector; 0 for the zero vector.

    >>> alignment(torch.tensor([3.0, 4.0]), [torch.tensor([-1.0, 0.0]), torch.tensor([0.0, 2.0])])
    (0.6, 0.8)
    """
    length = norm(vector.double())
    if length == 0:
        return (0.0,) * len(eigenvectors)
    return tuple(
        round(abs(float(vector.double() @ other.double())) / (length * norm(other.double())), 12)
        for other in eigenvectors
    )
