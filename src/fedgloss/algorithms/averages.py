"""WIMA and SWA: averages of global models over rounds, for evaluation only; clients never see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..algorithm import Algorithm, ClientTask, Rounds
from ..errors import require
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector


@dataclass(frozen=True)
class Wima:
    """The mean of the last ``window`` global models (Caldarola et al. 2023). ``window=1`` is the inner method.

    The wire, the client's memory and the gradients are the inner method's. The server keeps the window's models
    and their sum in float64, which neither drifts nor costs a pass over the window.

    >>> from fedgloss.testing import Quadratics
    >>> from fedgloss.algorithms import FedAvg
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> models = [toy.run(FedAvg(), rounds=t)["params"] for t in (3, 4, 5)]
    >>> torch.allclose(toy.run(Wima(FedAvg(), window=3), rounds=5).evaluated, sum(models) / 3)
    True
    """

    inner: Algorithm
    window: int = 100

    def __post_init__(self) -> None:
        require(self.window >= 1, "window", f"must be at least 1, got {self.window}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        state = self.inner.init_server(params, population)
        # on the CPU: not every device has float64
        return state.also(window_sum=torch.zeros_like(params, dtype=torch.float64, device="cpu"))

    def server_round(self, state: ServerState) -> Rounds:
        following = yield from self.inner.server_round(state)
        slot = f"window_{state.round % self.window:04d}"
        params = following["params"]
        total = state["window_sum"].cpu() + params.cpu()
        if slot in state.vectors:
            total.sub_(state[slot].cpu())
        average = total / min(following.round, self.window)
        kept = {slot: params, "window_sum": total}
        return following.also(average=average.to(params.dtype).to(params.device), **kept)

    def init_client(self, params: Vector) -> ClientState:
        return self.inner.init_client(params)

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        return self.inner.client_update(broadcast, memory, task)


@dataclass(frozen=True)
class Swa:
    """Stochastic weight averaging over rounds: from ``start`` on, one model every ``cycle`` rounds joins the mean.

    Goes with ``lr=Cycle(lr, low, start, cycle)`` in the inner method's local training, which the registry's
    ``swa`` sets up. The wire, the client's memory and the gradients are the inner method's.

    >>> from fedgloss.testing import Quadratics
    >>> from fedgloss.algorithms import FedAvg
    >>> toy = Quadratics(clients=4, dimension=3, seed=0)
    >>> models = [toy.run(FedAvg(), rounds=t)["params"] for t in (6, 8)]
    >>> torch.allclose(toy.run(Swa(FedAvg(), start=4, cycle=2), rounds=9).evaluated, sum(models) / 2)
    True
    """

    inner: Algorithm
    start: int
    cycle: int = 1

    def __post_init__(self) -> None:
        require(self.start >= 0, "start", f"must be 0 or more, got {self.start}")
        require(self.cycle >= 1, "cycle", f"must be at least 1, got {self.cycle}")

    def init_server(self, params: Vector, population: int) -> ServerState:
        return self.inner.init_server(params, population).also({"averaged": 0.0})

    def server_round(self, state: ServerState) -> Rounds:
        following = yield from self.inner.server_round(state)
        since = following.round - self.start
        if since <= 0 or since % self.cycle:
            return following
        count, params = state.scalars["averaged"], following["params"]
        average = (count * state["average"] + params) / (count + 1) if count else params
        return following.also({"averaged": count + 1}, average=average)

    def init_client(self, params: Vector) -> ClientState:
        return self.inner.init_client(params)

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]:
        return self.inner.client_update(broadcast, memory, task)
