"""AdaBest: drift correction without a server dual, so that nothing can explode."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import Correction, LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector


@dataclass(frozen=True)
class AdaBest:
    """Varno et al. 2022. A client's correction fades with the rounds it was absent.

    ::

        direction = g(w) - h_k,   h_k = h_k / (t - t_k) + mu (w^t - w_k),   t_k = t
        m' = mean_k w_k,   w = m' - b (m - m')                 (m: the last round's mean model)

    ============  ============================================================
    down, up      params; delta
    client keeps  correction, and the round of its last visit
    exchanges     1
    gradients     1 a step
    ============  ============================================================

    ``mu = b = 0`` is FedAvg. ``mu`` from their paper, ``b`` from the range they recommend.

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> best = AdaBest(local=LocalTraining(lr=0.1))
    >>> toy.distance(toy.run(best, rounds=300)) < toy.distance(toy.run(best, rounds=0))
    True
    """

    mu: float = 0.02
    b: float = 0.9
    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        require(self.mu >= 0, "mu", f"must be 0 or more, got {self.mu}")
        require(0 <= self.b < 1, "b", f"must lie in [0, 1), got {self.b}")
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params, "mean_model": params}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        mean_model = state["params"] + replies.mean("delta", self.weights)
        params = mean_model - self.b * (state["mean_model"] - mean_model)
        return state.next(params=params, mean_model=mean_model)

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"correction": torch.zeros_like(params)}, {"last_visit": 0.0})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        visit = broadcast.round + 1.0  # their rounds count from 1; 0 means never
        absence = visit - memory.scalars["last_visit"]
        result = self.local.run(
            broadcast["params"],
            task,
            broadcast.round,
            self.gradient,
            Correction(shift=-memory["correction"]),
        )
        correction = memory["correction"] / absence - self.mu * result.delta
        update = Update({"delta": result.delta}, task.size, result.scalars)
        return update, ClientState({"correction": correction}, {"last_visit": visit})
