"""When training is over for good: non-finite numbers, or weights beyond any use.

Users read a divergence's round: it counts from 1, as progress does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import Diverged, require
from .messages import ServerState, Update
from .vectors import Layout, norm


def check_update(update: Update, layout: Layout, *, client: int, round: int) -> None:
    """Stop at a client's first non-finite number, before it can reach an average or a store."""
    for name, vector in update.vectors.items():
        layout.check(vector, f"client {client}'s {name}")
        if not math.isfinite(norm(vector)):
            tensor = layout.first_non_finite(vector)
            reason = f"the client's {name} " + ("is not finite" if tensor else "overflows")
            raise Diverged(reason, round=round + 1, client=client, tensor=tensor)


def check_figures(figures: Mapping[str, float], what: str, *, done: int) -> None:
    """Stop at a loss or metric that is no number, after so many rounds."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise Diverged(f"the {name} {what} is not finite", round=done)


@dataclass(frozen=True)
class Limits:
    """Beyond which a run counts as diverged. The paper gives no criterion; ``max_norm`` is spec section 8's."""

    max_norm: float = 1e6

    def __post_init__(self) -> None:
        require(self.max_norm > 0, "max_norm", f"must be positive, got {self.max_norm}")

    def check(self, state: ServerState, layout: Layout) -> None:
        for name, vector in state.vectors.items():
            length = norm(vector)
            if not math.isfinite(length):
                tensor = layout.first_non_finite(vector)
                raise Diverged(f"the server's {name} is not finite", round=state.round, tensor=tensor)
        length = norm(state["params"])
        if length > self.max_norm:
            reason = f"the norm of the model is {length:.3g}, above {self.max_norm:g}"
            raise Diverged(reason, round=state.round)
