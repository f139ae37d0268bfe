"""One client after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import torch

from ..algorithm import Algorithm, ClientTask
from ..divergence import check_update
from ..messages import Broadcast, ClientState, Purpose, ServerState, Update
from ..tasks import ClientObjective, NoHelper
from .client_store import ClientStore
from .schedule import shared_out

M = TypeVar("M", bound=Broadcast | ClientState | ServerState | Update)

Tasks: TypeAlias = Callable[[int, int, Purpose], ClientTask]
"""(client, round, purpose) -> the client's task for that exchange."""


def on_device(message: M, device: torch.device) -> M:
    """The same message with its vectors on the device; where they are there already, nothing is copied.

    What a server sums up more exactly than its model stays where it is: not every device has float64.
    """
    model = message["params"].dtype if isinstance(message, ServerState) else None
    moved = {name: v.to(device) for name, v in message.vectors.items() if model in (None, v.dtype)}
    return replace(message, vectors={**message.vectors, **moved})


def run_client(
    algorithm: Algorithm,
    task: ClientTask,
    broadcast: Broadcast,
    client: int,
    memory: ClientState | None,
) -> tuple[Update, ClientState]:
    """One client's part in one exchange, the same on every transport."""
    params = broadcast["params"]
    memory = algorithm.init_client(params) if memory is None else on_device(memory, params.device)
    with torch.random.fork_rng([params.device] if params.is_cuda else []):  # batches seed dropout
        update, memory = algorithm.client_update(broadcast, memory, task)
    check_update(update, task.layout, client=client, round=broadcast.round)
    return update, memory


class SerialTransport:
    """The reference every other transport must equal bit for bit."""

    def __init__(self, algorithm: Algorithm, tasks: Tasks, store: ClientStore) -> None:
        self.algorithm = algorithm
        self.tasks = tasks
        self.store = store

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update]:
        for client in cohort:
            task = self.tasks(client, broadcast.round, broadcast.purpose)
            if isinstance(task, ClientObjective) and shared_out(client, cohort):
                task.share(NoHelper())
            update, memory = run_client(self.algorithm, task, broadcast, client, self.store.get(client))
            if broadcast.purpose == "train":
                self.store.put(client, memory, broadcast.round)
            yield update
