"""ServerSam: SAM on the server around any algorithm, by moving what it broadcasts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..algorithm import Algorithm, ClientTask, Rounds, Weights, check_weights
from ..messages import Broadcast, ClientState, ServerState, Update
from ..schedules import Scheduled, at, check_scheduled
from ..vectors import Vector, unit


@dataclass(frozen=True)
class ServerSam:
    """Shifts the inner algorithm's training broadcasts by ``rho * unit(last pseudo-gradient)``.

    ``ServerSam(FedDyn(beta), rho)`` is FedGloSS bit for bit, ``ServerSam(FedAvg(), rho)`` is FedGloSS without
    ADMM, and any other inner method answers "what would server SAM add to it?". With ``probe=True`` the ascent
    follows this round's own pseudo-gradient, asked for in an exchange of its own: NaiveFedGloSS on any method.

    ============  ============================================================
    down, up      as the inner method
    client keeps  as the inner method
    exchanges     as the inner method; with probe one more, of the inner's first broadcast
    gradients     as the inner method
    ============  ============================================================

    >>> from fedgloss.testing import Quadratics
    >>> from fedgloss.algorithms import FedDyn, FedGloSS
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> wrapped = toy.run(ServerSam(FedDyn(beta=2.0), rho=0.1), rounds=5)
    >>> wrapped["params"].equal(toy.run(FedGloSS(rho=0.1, beta=2.0), rounds=5)["params"])
    True
    """

    inner: Algorithm
    rho: Scheduled
    probe: bool = False
    weights: Weights = "size"

    def __post_init__(self) -> None:
        check_scheduled(self.rho, "rho")
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        state = self.inner.init_server(params, population)
        return state.also(pseudo_gradient=torch.zeros_like(params))

    def server_round(self, state: ServerState) -> Rounds:
        pseudo_gradient = state["pseudo_gradient"]
        steps = self.inner.server_round(state)
        broadcast = next(steps)
        if self.probe:
            replies = yield replace(broadcast, purpose="probe")
            pseudo_gradient = -replies.mean("delta", self.weights)
        ascent = at(self.rho, state.round) * unit(pseudo_gradient)
        while True:
            if broadcast.purpose == "train":
                shifted = {**broadcast.vectors, "params": broadcast["params"] + ascent}
                replies = yield replace(broadcast, vectors=shifted)
                pseudo_gradient = -replies.mean("delta", self.weights)
            else:
                replies = yield broadcast
            try:
                broadcast = steps.send(replies)
            except StopIteration as finished:
                following: ServerState = finished.value
                return following.also(pseudo_gradient=pseudo_gradient)

    def init_client(self, params: Vector) -> ClientState:
        return self.inner.init_client(params)

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        return self.inner.client_update(broadcast, memory, task)
