"""FedLESAM: each client climbs away from where the global model has gone since its last visit."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..gradients import Ahead
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, at, check_scheduled
from ..vectors import Vector, unit


@dataclass(frozen=True)
class FedLESAM:
    """Fan et al. 2024: SAM's ascent, locally estimated, fixed for the round, at one gradient a step.

    ::

        e = rho unit(u_k - w^t),   direction = g(w + e),   u_k = w^t   (the model last received; first time e = 0)

    ============  ============================================================
    down, up      params; delta
    client keeps  received
    exchanges     1
    gradients     1 a step
    ============  ============================================================

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> lesam = FedLESAM(rho=0.01, local=LocalTraining(lr=0.1))
    >>> toy.distance(toy.run(lesam, rounds=300)) < toy.distance(toy.run(lesam, rounds=0))
    True
    """

    rho: Scheduled
    local: LocalTraining = field(default_factory=LocalTraining)
    weights: Weights = "size"

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        return state.next(params=state["params"] + replies.mean("delta", self.weights))

    def init_client(self, params: Vector) -> ClientState:
        return ClientState()

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        params = broadcast["params"]
        ascent = torch.zeros_like(params)
        if memory:
            ascent = at(self.rho, broadcast.round) * unit(memory["received"] - params)
        result = self.local.run(params, task, broadcast.round, Ahead(ascent))
        update = Update({"delta": result.delta}, task.size, result.scalars)
        return update, ClientState({"received": params})
