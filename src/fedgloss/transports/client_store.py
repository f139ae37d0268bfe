"""What clients remember between rounds."""

from __future__ import annotations

from typing import Protocol

from ..messages import ClientState


class ClientStore(Protocol):
    def get(self, client: int) -> ClientState | None:
        """The client's memory, or None if it never took part."""

    def put(self, client: int, memory: ClientState) -> None: ...


class MemoryStore:
    """All memories in RAM; a client that never took part, or keeps nothing, costs nothing."""

    def __init__(self) -> None:
        self._memories: dict[int, ClientState] = {}

    def get(self, client: int) -> ClientState | None:
        return self._memories.get(client)

    def put(self, client: int, memory: ClientState) -> None:
        if memory:
            self._memories[client] = memory
