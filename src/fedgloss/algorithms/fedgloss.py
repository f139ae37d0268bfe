"""FedGloSS: sharpness-aware minimisation on the server, at FedAvg's communication cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from ..algorithm import ClientTask, Rounds, Weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, at, check_scheduled
from ..vectors import Vector, unit
from .admm import DualRule, admm_client, admm_dual, check_admm


@dataclass(frozen=True)
class FedGloSS:
    """Caldarola et al. 2025, Algorithm 1; its line numbers stand in the margin.

    The ascent reuses last round's pseudo-gradient, so SAM on the server needs no second exchange.
    ``gradient`` is the clients': ``Plain()`` (lines 12) or ``Sam(rho_l)`` (lines 12-14). Lines 7-21 are
    :func:`~fedgloss.algorithms.admm.admm_client`. Without ADMM the method is ``ServerSam(FedAvg())``.

    ============  ============================================================
    down, up      params (perturbed); delta
    client keeps  dual
    exchanges     1
    gradients     1 a step, 2 with SAM clients
    ============  ============================================================

    ``server_lr`` multiplies the pseudo-gradient alone (spec D14). ``dual="code"`` is the released code's
    rule (D2). ``ascent="full_step"`` climbs along the whole last server step, dual included (D23).

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> local = LocalTraining(lr=0.1, epochs=8)
    >>> 0 < toy.distance(toy.run(FedGloSS(rho=0.01, beta=1, local=local), rounds=300)) < 0.02
    True
    """

    rho: Scheduled
    beta: float
    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    server_lr: float = 1.0
    dual: DualRule = "alg1"
    ascent: Literal["pseudo_gradient", "full_step"] = "pseudo_gradient"
    weights: Weights = "size"

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        check_admm(self.beta, self.dual, self.weights)
        require(self.server_lr > 0, "server_lr", f"must be positive, got {self.server_lr}")
        known = self.ascent in ("pseudo_gradient", "full_step")
        require(known, "ascent", f"must be 'pseudo_gradient' or 'full_step', got {self.ascent!r}")

    # fmt: off
    def init_server(self, params: Vector, population: int) -> ServerState:
        zero = torch.zeros_like(params)                                                       # line 2
        return ServerState({"params": params, "dual": zero, "pseudo_gradient": zero}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        ascent = at(self.rho, state.round) * unit(self.climb(state))                          # line 4
        perturbed = state["params"] + ascent                                                  # line 5
        replies = yield Broadcast({"params": perturbed}, state.round)                         # lines 6-21
        dual = admm_dual(state, replies, self.dual)                                           # line 22
        pseudo_gradient = -replies.mean("delta", self.weights)                                # line 23
        params = state["params"] - self.server_lr * pseudo_gradient - dual                    # line 24
        return state.next(params=params, dual=dual, pseudo_gradient=pseudo_gradient)

    def climb(self, state: ServerState) -> Vector:
        """Where the ascent of line 4 heads: last round's (perturbed) pseudo-gradient, zero at first."""
        if self.ascent == "full_step":
            return self.server_lr * state["pseudo_gradient"] + state["dual"]
        return state["pseudo_gradient"]

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"dual": torch.zeros_like(params)})                                # line 2
    # fmt: on

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        return admm_client(broadcast, memory, task, local=self.local, gradient=self.gradient, beta=self.beta)
