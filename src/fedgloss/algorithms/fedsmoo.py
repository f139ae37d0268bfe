"""FedSMOO: ADMM on the model and on the SAM perturbation, so that clients climb the same hill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..algorithm import ClientTask, Rounds, Weights
from ..errors import require
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, at, check_scheduled
from ..vectors import Vector, unit
from .admm import DualRule, admm_client, admm_server, check_admm


@dataclass
class ConsistentSam:
    """One client's SAM steps, each corrected towards the global perturbation. Lives for one exchange."""

    rho: float
    shared: Vector
    dual: Vector
    perturbation: Vector

    def __call__(self, params: Vector, batch: Any, task: ClientTask, round: int) -> Vector:
        gradient = task.gradient(params, batch)
        self.perturbation = self.rho * unit(gradient - self.dual - self.shared)
        self.dual = self.dual + (self.perturbation - self.shared)
        return task.gradient(params + self.perturbation, batch)


@dataclass(frozen=True)
class FedSMOO:
    """Sun et al. 2023: FedDyn with SAM clients whose perturbations s_k are tied to a global s.

    ::

        s_k  = r unit(g(w) - mu_k - s),   mu_k += s_k - s                        (every step)
        direction = g(w + s_k) - sigma_k + (w - w^t) / beta                      (as FedDyn)
        s    = r unit(mean_k (mu_k - s_k)),   sigma and w as FedDyn              (every round)

    ============  ============================================================
    down, up      params, perturbation; delta, perturbation
    client keeps  dual, perturbation_dual
    exchanges     1
    gradients     2 a step
    ============  ============================================================

    ``upload="mu"`` sends mu_k alone, as FL-Simulator does. ``rho`` may be a schedule ("+wp" in the paper).

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> local = LocalTraining(lr=0.1, epochs=8)
    >>> 0 < toy.distance(toy.run(FedSMOO(rho=0.01, beta=1, local=local), rounds=300)) < 0.02
    True
    """

    rho: Scheduled
    beta: float
    local: LocalTraining = field(default_factory=LocalTraining)
    upload: Literal["corrected", "mu"] = "corrected"
    dual: DualRule = "alg1"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        check_admm(self.beta, self.dual, self.weights)
        known = self.upload in ("corrected", "mu")
        require(known, "upload", f"must be 'corrected' or 'mu', got {self.upload!r}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        zero = torch.zeros_like(params)
        return ServerState({"params": params, "dual": zero, "perturbation": zero}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        down = {"params": state["params"], "perturbation": state["perturbation"]}
        replies = yield Broadcast(down, state.round)
        rho = at(self.rho, state.round)
        return state.next(
            **admm_server(state, replies, rule=self.dual, weights=self.weights),
            perturbation=rho * unit(replies.mean("perturbation", "uniform")),
        )

    def init_client(self, params: Vector) -> ClientState:
        zero = torch.zeros_like(params)
        return ClientState({"dual": zero, "perturbation_dual": zero})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        sam = ConsistentSam(
            rho=at(self.rho, broadcast.round),
            shared=broadcast["perturbation"],
            dual=memory["perturbation_dual"],
            perturbation=torch.zeros_like(broadcast["params"]),
        )
        update, moved = admm_client(broadcast, memory, task, local=self.local, gradient=sam, beta=self.beta)
        sent = sam.dual - sam.perturbation if self.upload == "corrected" else sam.dual
        return (
            Update({**update.vectors, "perturbation": sent}, update.size, update.scalars),
            ClientState({"dual": moved["dual"], "perturbation_dual": sam.dual}),
        )
