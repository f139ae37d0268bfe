"""FedProx: FedAvg with a spring that holds each client near the global model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..errors import require
from ..gradients import GradientRule, Plain
from ..local import Correction, LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector


@dataclass(frozen=True)
class FedProx:
    """Adds ``mu/2 ||w - w^t||^2`` to every client's loss (Li et al. 2020). ``mu = 0`` is FedAvg.

    ::

        direction = g(w) + mu (w - w^t),   w^{t+1} = sum_k a_k w_k

    ============  ============================================================
    down, up      params; delta
    client keeps  nothing
    exchanges     1
    gradients     1 a step
    ============  ============================================================

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> local = LocalTraining(epochs=8)
    >>> free, held = (toy.run(FedProx(mu, local), rounds=1)["params"] for mu in (0, 10))
    >>> bool(held.norm() < free.norm())
    True
    """

    mu: float
    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    weights: Weights = "size"

    def __post_init__(self) -> None:
        require(self.mu >= 0, "mu", f"must be 0 or more, got {self.mu}")
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
        anchor = broadcast["params"]
        spring = Correction(shift=-self.mu * anchor, pull=self.mu)
        result = self.local.run(anchor, task, broadcast.round, self.gradient, spring)
        return Update({"delta": result.delta}, task.size, result.scalars), memory
