"""What is worth knowing about a round, read off the messages and the server's states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .algorithm import Aggregate, Algorithm, Dropped, Transport, UnreliableTransport
from .codec import Message, encoded_size
from .messages import Broadcast, ServerState, Update
from .vectors import Vector, norm, unit


@dataclass
class Traffic:
    """What one direction carried in a round, over all clients: messages, vectors by name, bytes."""

    messages: int = 0
    bytes: int = 0
    vectors: dict[str, int] = field(default_factory=dict)
    vector_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, message: Message, times: int = 1) -> None:
        self.messages += times
        self.bytes += times * encoded_size(message)
        for name, vector in message.vectors.items():
            size = vector.numel() * vector.element_size()
            self.vectors[name] = self.vectors.get(name, 0) + times
            self.vector_bytes[name] = self.vector_bytes.get(name, 0) + times * size


class Watch:
    """A transport for one round that looks on: it passes messages through unchanged and measures them.

    Bytes are those the codec would write. Probes count, diagnostics do not. A client that is dropped takes no
    further part in the round.
    """

    def __init__(self, transport: UnreliableTransport) -> None:
        self._transport = transport
        self.dropped: dict[int, str] = {}
        self.down = Traffic()
        self.up = Traffic()
        self.losses: list[float] = []
        self.sizes: list[int] = []
        self.delta_norms: list[float] = []

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update]:
        counted = broadcast.purpose != "diagnostic"
        present = [client for client in cohort if client not in self.dropped]
        if counted:
            self.down.add(broadcast, times=len(present))
        for update in self._transport(broadcast, present):
            if isinstance(update, Dropped):
                self.dropped[update.client] = update.reason
                continue
            if counted:
                self.up.add(update)
            if broadcast.purpose == "train":
                self.losses.append(update.scalars["loss"])
                self.sizes.append(update.size)
                self.delta_norms.append(norm(update["delta"]))
            yield update

    @property
    def loss(self) -> float:
        """The cohort's mean training loss, by samples."""
        weighed = zip(self.losses, self.sizes, strict=True)
        return sum(loss * size for loss, size in weighed) / sum(self.sizes)

    @property
    def mean_delta_norm(self) -> float:
        return sum(self.delta_norms) / len(self.delta_norms)


def norms(before: ServerState, after: ServerState) -> dict[str, float]:
    """The norm of every vector the server keeps, and of the step it just took.

    ``params_before_dual`` is what the released code logs as the model's norm (spec D10).
    """
    kept = [name for name in sorted(after.vectors) if not name.startswith(("window_", "tail_"))]
    found = {name: norm(after[name]) for name in kept}
    found["update"] = norm(after["params"] - before["params"])
    if "dual" in after.vectors:
        found["params_before_dual"] = norm(after["params"] + after["dual"])
    return found


def delta_eps(previous: Vector, current: Vector) -> float:
    """``||unit(previous) - unit(current)||``: how far apart two ascents point, in units of rho, in [0, 2]."""
    return norm(unit(previous) - unit(current))


def delta_eps_of_round(before: ServerState, after: ServerState, unperturbed: Vector | None) -> Mapping[str, float]:
    """Both readings of the paper's delta_eps (spec D16), for methods that keep a pseudo-gradient.

    ``consecutive`` compares last round's pseudo-gradient with this round's, both perturbed (free); ``true``
    compares it with this round's at the unperturbed model, the paper's formula, which needs an extra pass.
    """
    if "pseudo_gradient" not in before.vectors or before.round == 0:
        return {}
    found = {"consecutive": delta_eps(before["pseudo_gradient"], after["pseudo_gradient"])}
    if unperturbed is not None:
        found["true"] = delta_eps(before["pseudo_gradient"], unperturbed)
    return found


def unperturbed_pseudo_gradient(
    algorithm: Algorithm, state: ServerState, cohort: Sequence[int], transport: Transport
) -> Vector:
    """This round's pseudo-gradient at the unperturbed model: a diagnostic exchange, which leaves no trace."""
    planned = next(algorithm.server_round(state))
    vectors = {**planned.vectors, "params": state["params"]}
    replies = Aggregate(transport(replace(planned, vectors=vectors, purpose="diagnostic"), cohort))
    return -replies.mean("delta")
