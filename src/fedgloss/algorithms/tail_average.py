"""TailAverage: remembers the sum of a run's last models, for measuring their mean; changes nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..algorithm import Algorithm, ClientTask, Rounds
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector


@dataclass(frozen=True)
class TailAverage:
    """Sums the models after rounds ``first + 1, first + 2, ...`` in float64, beside the inner method's state.

    The released code measures flatness at the mean of the last 100 models; every run keeps that sum, so it can be
    had without training again. Unlike WIMA it is never evaluated on the way and needs no ring of models.

    >>> from fedgloss.testing import Quadratics
    >>> from fedgloss.algorithms import FedAvg
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> models = [toy.run(FedAvg(), rounds=t)["params"] for t in (4, 5)]
    >>> torch.allclose(tail_mean(toy.run(TailAverage(FedAvg(), first=3), rounds=5), first=3), sum(models) / 2)
    True
    """

    inner: Algorithm
    first: int

    def init_server(self, params: Vector, population: int) -> ServerState:
        return self.inner.init_server(params, population)

    def server_round(self, state: ServerState) -> Rounds:
        following = yield from self.inner.server_round(state)
        if following.round <= self.first:
            return following
        model = following["params"].cpu().to(torch.float64)  # not every device has float64
        if following.round == self.first + 1:
            return following.also({"tail_first": float(self.first), "tail_count": 1.0}, tail_sum=model)
        if (
            state.scalars.get("tail_first") != self.first
        ):  # a longer plan began its tail before this run was lengthened
            return following
        count = state.scalars["tail_count"] + 1
        return following.also({"tail_count": count}, tail_sum=state["tail_sum"].cpu() + model)

    def init_client(self, params: Vector) -> ClientState:
        return self.inner.init_client(params)

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        return self.inner.client_update(broadcast, memory, task)


def tail_mean(state: ServerState, first: int) -> Vector | None:
    """The mean of all models since round ``first``, where the state has summed every one of them."""
    complete = state.scalars.get("tail_first") == first and first + state.scalars["tail_count"] == state.round
    if not complete:
        return None
    return (state["tail_sum"] / state.scalars["tail_count"]).to(state["params"].dtype)
