"""The four messages of a federation: named vectors and a few scalars, frozen.

Everything an algorithm knows travels or rests in one of them, so codec, checkpoint, byte meter and
transports are each written once. Sign convention everywhere: ``delta = end - start`` and
``pseudo_gradient = -mean delta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from .vectors import Vector

Purpose: TypeAlias = Literal["train", "probe", "diagnostic"]
"""``train`` commits client memory; a ``probe`` commits nothing but costs bytes; a ``diagnostic`` costs nothing."""

Vectors: TypeAlias = Mapping[str, Vector]
Scalars: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class ServerState:
    """All the server keeps between rounds. ``params`` is always among its vectors."""

    vectors: Vectors
    round: int
    population: int
    scalars: Scalars = field(default_factory=dict)

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]

    def also(self, scalars: Scalars | None = None, /, **vectors: Vector) -> ServerState:
        """The same round with the named vectors added or replaced, the others kept."""
        return replace(
            self,
            vectors={**self.vectors, **vectors},
            scalars={**self.scalars, **(scalars or {})},
        )

    def next(self, scalars: Scalars | None = None, /, **vectors: Vector) -> ServerState:
        """The state of the next round: the named vectors replaced, the others kept."""
        return replace(self.also(scalars, **vectors), round=self.round + 1)

    @property
    def evaluated(self) -> Vector:
        """The model to judge: a kept ``average`` of models where there is one, else ``params``."""
        return self.vectors.get("average", self.vectors["params"])


@dataclass(frozen=True)
class ClientState:
    """What one client remembers between its participations. Empty for stateless methods."""

    vectors: Vectors = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]

    def __bool__(self) -> bool:
        return bool(self.vectors or self.scalars)


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to every client of the cohort."""

    vectors: Vectors
    round: int
    purpose: Purpose = "train"

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]


@dataclass(frozen=True)
class Update:
    """What one client sends back: always ``delta``, its sample count and a few scalars."""

    vectors: Vectors
    size: int
    scalars: Scalars = field(default_factory=dict)

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]
