"""Two workers at one client: each computes half of every batch.

The worker that trains the client sends the second half of a batch to the one that joined it, through shared memory
and a pipe of their own, computes the first half, and adds both up. A helper that dies is done without: its half is
computed again here, to the same bits.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ..compute import Precision
from ..tasks import Batch, Objective
from ..vectors import Vector
from .shared_memory import Box, Channel, Parcel


@dataclass(frozen=True)
class Joined:
    """To the worker that trains a client: another joins it, behind the pipe that follows."""


@dataclass(frozen=True)
class Half:
    """To the helper: the weights and its half of a batch."""

    parcel: Parcel
    seed: int


@dataclass(frozen=True)
class Found:
    """From the helper: loss and gradient."""

    parcel: Parcel


class Assistant:
    """The worker that joins this one, once one does (a ``Helper``). A context: leaving it lets that worker go."""

    def __init__(self, office: Channel) -> None:
        self._office = office
        self._helper: Channel | None = None
        self._box = Box("half")

    def __enter__(self) -> Assistant:
        return self

    def __exit__(self, *_: object) -> None:
        self._part()

    def start(self, params: Vector, half: Batch) -> bool:
        if self._helper is None and self._office.connection.poll():
            joined = self._office.receive()
            assert isinstance(joined, Joined), joined
            self._helper = self._office.accept()
        if self._helper is None:
            return False
        (parcel,) = self._box.pack({"params": params, "inputs": half.inputs, "targets": half.targets})
        try:
            self._helper.send(Half(parcel, half.seed), self._box)
        except ConnectionError:
            self._part()
        return self._helper is not None

    def finish(self) -> tuple[Tensor, Vector] | None:
        assert self._helper is not None
        try:
            found = self._helper.open(self._helper.receive().parcel)
        except (EOFError, ConnectionError):
            self._part()
            return None
        return found["loss"], found["gradient"]

    def _part(self) -> None:
        if self._helper is not None:
            self._helper.connection.close()
        self._helper = None


def help_out(channel: Channel, objective: Objective, precision: Precision) -> None:
    """Compute halves as they come, until the other side has no more. What fails here fails there too, and is told
    there: the other side finds this one gone and does it itself."""
    box = Box("found")
    with suppress(EOFError, ConnectionError):
        while True:
            half: Half = channel.receive()
            sent = channel.open(half.parcel)
            try:
                with torch.random.fork_rng([]):  # batches seed dropout
                    batch = Batch(sent["inputs"], sent["targets"], half.seed)
                    loss, gradient = objective.gradient(sent["params"], batch, precision)
            except Exception:
                return
            (parcel,) = box.pack({"loss": loss, "gradient": gradient})
            channel.send(Found(parcel), box)
