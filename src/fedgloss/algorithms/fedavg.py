"""FedAvg and what differs from it by a value: FedSAM, FedASAM (the gradient), FedOpt (the server)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..algorithm import ClientTask, Rounds, Weights, check_weights
from ..gradients import GradientRule, Plain
from ..local import LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..server_optimizers import ServerOptimizer, Sgd
from ..vectors import Vector


@dataclass(frozen=True)
class FedAvg:
    """Clients train from the global model; the server steps along their mean update (McMahan et al. 2017).

    ::

        w_k = LOCAL(w),   pseudo_gradient = sum_k a_k (w - w_k),   w = server(w, pseudo_gradient)

    ============  ============================================================
    down, up      params; delta
    client keeps  nothing
    exchanges     1
    gradients     1 a step, 2 with SAM
    ============  ============================================================

    ``gradient=Sam(rho)`` is FedSAM, ``Asam(rho)`` FedASAM; ``server=Momentum()`` is FedAvgM and
    ``server=Adaptive("adam")`` FedAdam (Reddi et al. 2021).

    >>> from fedgloss.testing import Quadratics
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> toy.distance(toy.run(FedAvg(), rounds=0)) > toy.distance(toy.run(FedAvg(), rounds=200))
    True
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    gradient: GradientRule = field(default_factory=Plain)
    server: ServerOptimizer = field(default_factory=Sgd)
    weights: Weights = "size"

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def init_server(self, params: Vector, population: int) -> ServerState:
        return ServerState({"params": params, **self.server.init(params)}, 0, population)

    def server_round(self, state: ServerState) -> Rounds:
        replies = yield Broadcast({"params": state["params"]}, state.round)
        pseudo_gradient = -replies.mean("delta", self.weights)
        return state.next(**self.server.step(state, pseudo_gradient))

    def init_client(self, params: Vector) -> ClientState:
        return ClientState()

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        result = self.local.run(broadcast["params"], task, broadcast.round, self.gradient)
        return Update({"delta": result.delta}, task.size, result.scalars), memory
