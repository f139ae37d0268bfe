"""SCAFFOLD, and FedGamma, which is SCAFFOLD with SAM clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import Correction, LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import at
from ..vectors import Vector


@dataclass(frozen=True)
class Scaffold:
    """Control variates, option II (Karimireddy et al. 2020). ``gradient=Sam(rho)`` is FedGamma (Dai et al. 2023).

    ::

        direction = g(w) - c_k + c
        c_k'      = c_k - c + (w^t - w_k) / (sum of learning rates)
        w^{t+1}   = w^t + mean_k (w_k - w^t),   c += sum_{k in cohort} (c_k' - c_k) / |C|

    ============  ============================================================
    down, up      params, control; delta, control_delta
    client keeps  control
    exchanges     1
    gradients     1 a step, 2 with SAM
    ============  ============================================================

    With client momentum a step counts for more than its learning rate; ``quotient="weighted"`` (default) divides
    by that momentum-weighted sum, so c_k' is a mean local gradient; ``"raw"`` divides by ``K * lr``.

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> toy.distance(toy.run(Scaffold(LocalTraining(lr=0.1, epochs=8)), rounds=300)) < 1e-9
    True
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    quotient: Literal["weighted", "raw"] = "weighted"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        known = self.quotient in ("weighted", "raw")
        require(known, "quotient", f"must be 'weighted' or 'raw', got {self.quotient!r}")
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params, "control": torch.zeros_like(params)}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        down = {"params": state["params"], "control": state["control"]}
        replies = yield Broadcast(down, state.round)
        return state.next(
            params=state["params"] + replies.mean("delta", self.weights),
            control=state["control"] + replies.sum("control_delta") / state.population,
        )

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"control": torch.zeros_like(params)})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        drift = broadcast["control"] - memory["control"]
        result = self.local.run(broadcast["params"], task, broadcast.round, self.gradient, Correction(shift=drift))
        raw = at(self.local.lr, broadcast.round) * result.scalars["steps"]
        lr_sum = result.scalars["lr_sum"] if self.quotient == "weighted" else raw
        control_delta = -broadcast["control"] - result.delta / lr_sum
        vectors = {"delta": result.delta, "control_delta": control_delta}
        control = memory["control"] + control_delta
        return Update(vectors, task.size, result.scalars), ClientState({"control": control})
