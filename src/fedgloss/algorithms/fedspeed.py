"""FedSpeed: prox-correction and blended gradients, in the three server forms that go by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from ..algorithm import ClientTask, Rounds, Weights
from ..errors import require
from ..gradients import GradientRule
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector
from .admm import DualRule, admm_client, admm_server, check_admm


@dataclass(frozen=True)
class FedSpeed:
    """Sun et al. 2023. ``beta`` is their lambda; ``gradient=Mixed(rho, mix)`` holds their rho and alpha.

    ::

        direction = (1 - mix) g(w) + mix g(w + ascent) - sigma_k + (w - w^t) / beta
        sigma_k  -= (w_k - w^t) / beta

    ``server`` says what becomes of sigma_k: ``"plain"`` keeps it on the client and averages the w_k; ``"orig"``
    (their Algorithm 1) uploads and averages ``w_k - beta sigma_k``, whose noise under partial participation
    never vanishes; ``"flsim"`` subtracts the mean over all clients, which makes it FedDyn with SAM clients.

    ============  ============================================================
    down, up      params; delta
    client keeps  dual
    exchanges     1
    gradients     2 a step
    ============  ============================================================

    >>> from fedgloss.gradients import Mixed
    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> speed = FedSpeed(beta=10, gradient=Mixed(rho=0.01), local=LocalTraining(lr=0.1, epochs=8))
    >>> toy.distance(toy.run(speed, rounds=100)) < toy.distance(toy.run(speed, rounds=0))
    True
    """

    beta: float
    gradient: GradientRule
    local: LocalTraining = field(default_factory=LocalTraining)
    server: Literal["plain", "orig", "flsim"] = "plain"
    dual: DualRule = "alg1"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_admm(self.beta, self.dual, self.weights)
        known = self.server in ("plain", "orig", "flsim")
        require(known, "server", f"must be 'plain', 'orig' or 'flsim', got {self.server!r}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        vectors = {"params": params}
        if self.server == "flsim":
            vectors["dual"] = torch.zeros_like(params)
        return ServerState(vectors, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        if self.server == "flsim":
            return state.next(**admm_server(state, replies, rule=self.dual, weights=self.weights))
        return state.next(params=state["params"] + replies.mean("delta", self.weights))

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"dual": torch.zeros_like(params)})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        update, moved = admm_client(
            broadcast, memory, task, local=self.local, gradient=self.gradient, beta=self.beta
        )
        if self.server == "orig":
            sent = update["delta"] - moved["dual"]
            update = Update({"delta": sent}, update.size, update.scalars)
        return update, moved
