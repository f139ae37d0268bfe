"""FedDyn: dynamic regularisation, that is ADMM with one local solve a round."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds, Weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector
from .admm import DualRule, admm_client, admm_server, check_admm


@dataclass(frozen=True)
class FedDyn:
    """Acar et al. 2021. Their alpha is ``1 / beta``; SAM clients by ``gradient=Sam(rho)``.

    ::

        direction = g(w) - sigma_k + (w - w^t) / beta
        sigma_k  -= (w_k - w^t) / beta
        sigma    -= sum_{k in cohort} (w_k - w^t) / (beta |C|)
        w^{t+1}   = mean_k w_k - beta sigma

    ============  ============================================================
    down, up      params; delta
    client keeps  dual
    exchanges     1
    gradients     1 a step, 2 with SAM
    ============  ============================================================

    ``mean_size`` (the mean number of samples a client has) scales beta by a client's share of it, as FedDyn's
    own code does for unequal clients.

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> local = LocalTraining(lr=0.1, epochs=8)
    >>> toy.distance(toy.run(FedDyn(beta=1, local=local), rounds=300)) < 1e-9
    True
    """

    beta: float
    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    dual: DualRule = "alg1"
    weights: Weights = "uniform"
    mean_size: float | None = None

    def __post_init__(self) -> None:
        check_admm(self.beta, self.dual, self.weights)
        ok = self.mean_size is None or self.mean_size > 0
        require(ok, "mean_size", f"must be positive, got {self.mean_size}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params, "dual": torch.zeros_like(params)}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        return state.next(**admm_server(state, replies, rule=self.dual, weights=self.weights))

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"dual": torch.zeros_like(params)})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        beta = self.beta * (task.size / self.mean_size if self.mean_size else 1.0)
        return admm_client(broadcast, memory, task, local=self.local, gradient=self.gradient, beta=beta)
