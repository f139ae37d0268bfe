"""MoFedSAM: FedSAM with the last global direction as momentum in every local step; FedCM without SAM."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..errors import require
from ..gradients import GradientRule
from ..local import Correction, LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector


@dataclass(frozen=True)
class MoFedSAM:
    """Qu et al. 2022. ``gradient=Sam(rho)``; with ``Plain()`` it is FedCM (Xu et al. 2021).

    ::

        direction = mix g(w) + (1 - mix) D,   D' = mean_k (w - w_k) / (sum of learning rates)

    ============  ============================================================
    down, up      params, momentum; delta
    client keeps  nothing
    exchanges     1
    gradients     2 a step (FedCM 1)
    ============  ============================================================

    ``mix = 1`` is FedSAM. Default from FL-Simulator.

    >>> from fedgloss.testing import Quadratics
    >>> from fedgloss.gradients import Sam
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> state = toy.run(MoFedSAM(Sam(0.01), LocalTraining(lr=0.1)), rounds=300)
    >>> toy.distance(state) < toy.distance(toy.run(MoFedSAM(Sam(0.01)), rounds=0))
    True
    """

    gradient: GradientRule
    local: LocalTraining = field(default_factory=LocalTraining)
    mix: float = 0.1
    weights: Weights = "size"

    def __post_init__(self) -> None:
        require(0 < self.mix <= 1, "mix", f"must lie in (0, 1], got {self.mix}")
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params, "momentum": torch.zeros_like(params)}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        down = {"params": state["params"], "momentum": state["momentum"]}
        replies = yield Broadcast(down, state.round)
        delta = replies.mean("delta", self.weights)
        momentum = delta / -replies.mean_scalar("lr_sum")
        return state.next(params=state["params"] + delta, momentum=momentum)

    def init_client(self, params: Vector) -> ClientState:
        return ClientState()

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        blend = Correction(shift=(1 - self.mix) * broadcast["momentum"], scale=self.mix)
        result = self.local.run(broadcast["params"], task, broadcast.round, self.gradient, blend)
        return Update({"delta": result.delta}, task.size, result.scalars), memory
