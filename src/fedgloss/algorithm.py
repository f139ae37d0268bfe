"""What a federated algorithm is, and the one loop that runs a round of any of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from .errors import InvalidInput, require
from .messages import Broadcast, ClientState, ServerState, Update
from .vectors import Layout, Vector

Weights: TypeAlias = Literal["size", "uniform"]
"""How clients count in a mean: by their number of samples, or all alike."""

Rounds: TypeAlias = Generator[Broadcast, "Aggregate", ServerState]
"""A server round: yields what to send, is sent what came back, returns the next state."""

Transport: TypeAlias = Callable[[Broadcast, Sequence[int]], Iterable[Update]]
"""Carries a broadcast to a cohort and yields the updates in cohort order."""


@dataclass(frozen=True)
class Dropped:
    """Stands where a client's update should be: the client is left out of the round."""

    client: int
    reason: str


UnreliableTransport: TypeAlias = Callable[[Broadcast, Sequence[int]], Iterable[Update | Dropped]]
"""A transport that may lose clients on the way."""


class ClientTask(Protocol):
    """One client's share of the problem in one exchange: mini-batches, and gradients at any vector.

    The same batch object gives the same objective every time, augmentation and dropout included, so
    that both passes of SAM look at the same function.
    """

    @property
    def size(self) -> int:
        """The client's number of training samples."""

    @property
    def layout(self) -> Layout: ...

    def batches(self, batch_size: int, epochs: int) -> Iterator[Any]:
        """Shuffled mini-batches, the short last one of each epoch kept."""

    def gradient(self, params: Vector, batch: Any) -> Vector:
        """The gradient of the batch's mean loss (no weight decay): a new vector, the caller's to change."""

    def mean_loss(self) -> float:
        """The mean over samples of the loss at the first point asked for each batch so far."""


class Algorithm(Protocol):
    """Who sends which vectors to whom. Holds hyper-parameters only: no state, no data, no device."""

    def init_server(self, params: Vector, population: int) -> ServerState: ...

    def server_round(self, state: ServerState) -> Rounds: ...

    def init_client(self, params: Vector) -> ClientState:
        """What a client remembers before it ever took part; ``params`` only gives shape and type."""

    def client_update(
        self, broadcast: Broadcast, memory: ClientState, task: ClientTask
    ) -> tuple[Update, ClientState]: ...


class Aggregate:
    """Sums of a cohort's updates, folded one by one in cohort order, so the bits never depend on timing.

    Sizes count relative to the first client's, so that equal sizes give the bits of the uniform mean,
    and the size-weighted sums only exist once two sizes differ.
    """

    def __init__(self, updates: Iterable[Update] = ()) -> None:
        self.count = 0
        self._sums: dict[str, Vector] = {}
        self._weighted: dict[str, Vector] | None = None
        self._total_weight = 0.0
        self._first_size = 0
        self._scalars: dict[str, float] = {}
        for update in updates:
            self.add(update)

    def add(self, update: Update) -> None:
        if self.count == 0:
            self._first_size = update.size
            self._sums = {name: vector.clone() for name, vector in update.vectors.items()}
        weight = update.size / self._first_size
        if weight != 1 and self._weighted is None:
            self._weighted = {name: total.clone() for name, total in self._sums.items()}
        if self.count > 0:
            for name, vector in update.vectors.items():
                self._sums[name].add_(vector)
        if self._weighted is not None:
            for name, vector in update.vectors.items():
                self._weighted[name].add_(vector, alpha=weight)
        for name, value in update.scalars.items():
            self._scalars[name] = self._scalars.get(name, 0.0) + weight * value
        self._total_weight += weight
        self.count += 1

    def sum(self, name: str) -> Vector:
        """The plain sum over the clients that answered."""
        self._require_updates()
        return self._sums[name].clone()

    def mean(self, name: str, weights: Weights = "size") -> Vector:
        self._require_updates()
        if weights == "uniform" or self._weighted is None:
            return self._sums[name] / self.count
        return self._weighted[name] / self._total_weight

    def mean_scalar(self, name: str) -> float:
        """The size-weighted mean of a scalar that every update carries."""
        self._require_updates()
        return self._scalars[name] / self._total_weight

    def _require_updates(self) -> None:
        require(self.count > 0, "cohort", "no client answered, there is nothing to average")


def run_round(algorithm: Algorithm, state: ServerState, cohort: Sequence[int], transport: Transport) -> ServerState:
    """One round of any algorithm on any transport."""
    steps = algorithm.server_round(state)
    broadcast = next(steps)
    while True:
        try:
            broadcast = steps.send(Aggregate(transport(broadcast, cohort)))
        except StopIteration as finished:
            following: ServerState = finished.value
            return following


def check_weights(weights: str) -> None:
    if weights not in ("size", "uniform"):
        raise InvalidInput(f"weights: must be 'size' or 'uniform', got {weights!r}")
