"""A new method in one screen: FedAvg whose server keeps a share of its last step (Nesterov-like momentum)."""

from dataclasses import dataclass, field

import torch

from fedgloss import LocalTraining, Plain
from fedgloss.messages import Broadcast, ClientState, ServerState, Update
from fedgloss.testing import Quadratics, check_algorithm


@dataclass(frozen=True)
class LookAhead:
    share: float = 0.5
    local: LocalTraining = field(default_factory=LocalTraining)

    def init_server(self, params, population):
        return ServerState({"params": params, "step": torch.zeros_like(params)}, 0, population)

    def server_round(self, state):
        ahead = state["params"] + self.share * state["step"]
        replies = yield Broadcast({"params": ahead}, state.round)
        params = ahead + replies.mean("delta")
        return state.next(params=params, step=params - state["params"])

    def init_client(self, params):
        return ClientState()

    def client_update(self, broadcast, memory, task):
        result = self.local.run(broadcast["params"], task, broadcast.round, Plain())
        return Update({"delta": result.delta}, task.size, result.scalars), memory


if __name__ == "__main__":
    print("contract kept:", check_algorithm(LookAhead(), down=1, up=1))
    toy = Quadratics(clients=5, dimension=4, seed=0)
    print(f"distance to the optimum after 100 rounds: {toy.distance(toy.run(LookAhead(), 100)):.2e}")
