"""How close we came: published against ours, with a tolerance, and no verdict where none is due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from ..errors import require
from .paper import QUANTITIES, Cell, Published

Result: TypeAlias = float | Literal["diverged", "not reached"]
"""What one seed's run gave for a cell."""

Verdict: TypeAlias = Literal["agrees", "differs", "not judged"]

PAPER_SEEDS = 3


@dataclass(frozen=True)
class Judgement:
    """``verdict`` is ``None`` where nothing may be compared; ``reason`` says why, or what decided."""

    verdict: Verdict | None
    reason: str
    mean: float | None = None
    sd: float | None = None
    """Over our seeds, dividing by one less than their number; ``None`` with one seed."""
    difference: float | None = None
    tolerance: float | None = None


def tolerance(paper_sd: float, paper_seeds: int, our_sd: float, our_seeds: int, slack: float) -> float:
    """Two standard errors of the difference of means, and some slack.

    >>> round(tolerance(0.4, 3, 0.5, 3, 0.5), 3)
    1.239
    """
    return 2 * math.sqrt(paper_sd**2 / paper_seeds + our_sd**2 / our_seeds) + slack


def judge(cell: Cell, results: Sequence[Result], *, rounds: int | None = None, scaled: bool = False) -> Judgement:
    """Compare our seeds' results with what the paper prints in a cell.

    ``rounds``: our runs stopped after so many rounds, with schedules unchanged. ``scaled``: the schedules were
    shrunk too. A shortened run is only compared where the paper's value is known by then.
    """
    published, quantity = cell.published, QUANTITIES[cell.quantity]
    require(len(results) > 0, cell.id, "no result to judge")
    numbers = [result for result in results if not isinstance(result, str)]
    require(all(map(math.isfinite, numbers)), cell.id, "a result is not finite; call it 'diverged'")
    require(quantity.to_target or "not reached" not in results, cell.id, "has no target that could be missed")
    complete = len(numbers) == len(results)
    mean = fmean(numbers) if complete else None
    sd = stdev(numbers) if complete and len(numbers) > 1 else None
    stopped = rounds is not None and rounds < cell.rounds_needed

    if published is None or published.outcome == "absent":
        return Judgement(None, "the paper prints no value", mean, sd)
    if quantity.by_client:
        return Judgement(None, "other seeds draw other clients", mean, sd)
    if scaled:
        return Judgement(None, "the run was scaled down", mean, sd)
    if stopped and _undecided(cell, published, results, rounds or 0):
        return Judgement(None, f"stopped after {rounds} of {cell.rounds_needed} rounds", mean, sd)
    difference = mean - published.value if mean is not None and published.value is not None else None
    if len(results) == 1 and not quantity.exact:
        return Judgement("not judged", "one seed", mean, sd, difference)
    if difference is None:
        return _by_outcome(published, results, mean, sd)
    bound = tolerance(published.sd or 0.0, PAPER_SEEDS, sd or 0.0, len(results), _slack(cell, published))
    reason = "" if published.sd is not None or quantity.exact else "the paper prints no sd"
    return Judgement("agrees" if abs(difference) <= bound else "differs", reason, mean, sd, difference, bound)


def _slack(cell: Cell, published: Published) -> float:
    slack = QUANTITIES[cell.quantity].slack
    return published.digit / 2 if slack is None else slack


def _undecided(cell: Cell, published: Published, results: Sequence[Result], rounds: int) -> bool:
    """Whether running on could still change the answer of runs that stopped early."""
    if published.outcome == "diverged":
        return any(result != "diverged" for result in results)
    if "diverged" in results:
        return False
    if not QUANTITIES[cell.quantity].to_target:
        return True
    if published.outcome == "not reached":
        return all(result == "not reached" for result in results)
    overdue = cell.quantity == "rounds" and rounds >= (published.value or 0.0) + _slack(cell, published)
    return "not reached" in results and not overdue


def _by_outcome(published: Published, results: Sequence[Result], mean: float | None, sd: float | None) -> Judgement:
    """The comparison where the paper or one of our seeds has no number."""
    kinds = [result if isinstance(result, str) else "value" for result in results]
    same = sum(kind == published.outcome for kind in kinds)
    said = {"value": "a value", "diverged": "diverged", "not reached": "not reached"}[published.outcome]
    reason = f"the paper: {said}; so {same} of {len(kinds)} of our seeds"
    return Judgement("agrees" if same == len(kinds) else "differs", reason, mean, sd)
