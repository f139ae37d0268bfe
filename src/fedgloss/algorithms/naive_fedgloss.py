"""NaiveFedGloSS: SAM on the server with the true perturbation, at twice the communication."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds, Weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, at, check_scheduled
from ..vectors import Vector, unit
from .admm import DualRule, admm_client, admm_server, check_admm


@dataclass(frozen=True)
class NaiveFedGloSS:
    """The two-step baseline of Caldarola et al. 2025, section 4.1.

    Step 1 probes the cohort at w for this round's pseudo-gradient; step 2 is FedGloSS at ``w + ascent`` with
    the same cohort. The probe runs the full local routine, dual and all, but commits nothing; with
    ``probe_admm=False`` it trains without dual and proximal term, as FedAvg's clients do.

    ============  ============================================================
    down, up      params, twice; delta, twice
    client keeps  dual
    exchanges     2
    gradients     2 x (1 a step, 2 with SAM clients)
    ============  ============================================================

    ``pseudo_gradient`` keeps step 2's, for the diagnostics.

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> local = LocalTraining(lr=0.1, epochs=8)
    >>> 0 < toy.distance(toy.run(NaiveFedGloSS(rho=0.01, beta=1, local=local), rounds=300)) < 0.02
    True
    """

    rho: Scheduled
    beta: float
    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    server_lr: float = 1.0
    dual: DualRule = "alg1"
    probe_admm: bool = True
    weights: Weights = "size"

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        check_admm(self.beta, self.dual, self.weights)
        require(self.server_lr > 0, "server_lr", f"must be positive, got {self.server_lr}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        zero = torch.zeros_like(params)
        return ServerState({"params": params, "dual": zero, "pseudo_gradient": zero}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        probe = yield Broadcast({"params": state["params"]}, state.round, purpose="probe")
        ascent = at(self.rho, state.round) * unit(-probe.mean("delta", self.weights))
        replies = yield Broadcast({"params": state["params"] + ascent}, state.round)
        moved = admm_server(state, replies, rule=self.dual, weights=self.weights, lr=self.server_lr)
        return state.next(**moved, pseudo_gradient=-replies.mean("delta", self.weights))

    def init_client(self, params: Vector) -> ClientState:
        return ClientState({"dual": torch.zeros_like(params)})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        if broadcast.purpose == "probe" and not self.probe_admm:
            result = self.local.run(broadcast["params"], task, broadcast.round, self.gradient)
            return Update({"delta": result.delta}, task.size, result.scalars), memory
        return admm_client(broadcast, memory, task, local=self.local, gradient=self.gradient, beta=self.beta)
