"""Centralised SGD, SAM and SAM~ on the union of the data, through the same loop: the upper bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds
from ..errors import require
from ..gradients import GradientRule, Plain, PreviousGradientSam
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, check_scheduled
from ..vectors import Vector


@dataclass(frozen=True)
class Centralised:
    """A population of one that holds all data; a round is ``local.epochs`` epochs, momentum carried over.

    ``gradient=Plain()`` is SGD, ``Sam(rho)`` SAM. ``previous_rho`` instead gives SAM~, FedGloSS's approximation
    in one place: each step climbs along the previous step's gradient (the very first step is SGD).

    ============  ============================================================
    down, up      params; delta (nothing really travels)
    client keeps  momentum if there is any, the previous gradient with SAM~
    exchanges     1
    gradients     1 a step, 2 with SAM, 1 with SAM~
    ============  ============================================================

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=1, dimension=3, seed=0)
    >>> toy.distance(toy.run(Centralised(LocalTraining(lr=0.5)), rounds=300)) < 1e-9
    True
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    previous_rho: Scheduled | None = None

    def __post_init__(self) -> None:
        if self.previous_rho is not None:
            check_scheduled(self.previous_rho, "previous_rho")
            plain = isinstance(self.gradient, Plain)
            require(plain, "previous_rho", "SAM~ has its own gradient rule; leave out gradient")

    def init_server(self, params: Vector, population: int) -> ServerState:
        require(
            population == 1,
            "population",
            f"centralised training has one client, got {population}; use federation.union()",
        )
        return ServerState({"params": params}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        return state.next(params=state["params"] + replies.mean("delta"))

    def init_client(self, params: Vector) -> ClientState:
        kept = []
        if self.local.momentum:
            kept.append("momentum")
        if self.previous_rho is not None:
            kept.append("previous")
        return ClientState({name: torch.zeros_like(params) for name in kept})

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        gradient: GradientRule = self.gradient
        if self.previous_rho is not None:
            gradient = PreviousGradientSam(self.previous_rho, memory["previous"])
        result = self.local.run(
            broadcast["params"],
            task,
            broadcast.round,
            gradient,
            momentum=memory.vectors.get("momentum"),
        )
        kept: dict[str, Vector] = {}
        if result.momentum is not None:
            kept["momentum"] = result.momentum
        if isinstance(gradient, PreviousGradientSam):
            kept["previous"] = gradient.previous
        return Update({"delta": result.delta}, task.size, result.scalars), ClientState(kept)
