"""A federation: samples, who owns which of them, and how they become a network's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InvalidInput, require

Indices = npt.NDArray[np.int64]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, without waiting for what that still computes.

    CUDA keeps what it is given before it returns; ``mps`` would read memory that may be gone by then.
    """
    return tensor.to(device, non_blocking=device.type != "mps")


class Samples(Protocol):
    """Inputs and targets by index; the inputs may live anywhere, the targets are at hand."""

    @property
    def targets(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def fetch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Raw inputs (uint8 pictures, floats, tokens) and targets, in the order asked for."""


@dataclass(frozen=True)
class ArraySamples:
    """Samples in two tensors of equal length."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        require(
            len(self.inputs) == len(self.targets),
            "targets",
            f"{len(self.targets)} targets for {len(self.inputs)} inputs",
        )
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.is_meta or not tensor.is_floating_point():
                continue
            if not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor)).flatten(1 if tensor.ndim > 1 else 0).nonzero()[0, 0])
                raise InvalidInput(f"{name}: sample {bad} holds a NaN or infinity")

    def __len__(self) -> int:
        return len(self.targets)

    def fetch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        index = sent(torch.from_numpy(indices), self.inputs.device)
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)

    def to(self, device: torch.device) -> ArraySamples:
        return ArraySamples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True)
class Subset:
    """Some of the samples, by index."""

    samples: Samples
    indices: Indices

    @property
    def targets(self) -> Tensor:
        return self.samples.targets[torch.from_numpy(self.indices)]

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        return self.samples.fetch(self.indices[indices])


class Transform(Protocol):
    """Raw inputs to what the network takes, for a whole batch at once."""

    def train(self, inputs: Tensor, generator: np.random.Generator) -> Tensor: ...

    def test(self, inputs: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Identity:
    """The inputs are what the network takes."""

    def train(self, inputs: Tensor, generator: np.random.Generator) -> Tensor:
        return inputs

    def test(self, inputs: Tensor) -> Tensor:
        return inputs


@dataclass(frozen=True)
class Partition:
    """Which samples each client owns: one index array cut at offsets, so a million clients cost 8 MB.

    >>> parts = Partition.of([[4, 2], [0], [1, 3, 5]])
    >>> len(parts), parts[2].tolist(), parts.sizes.tolist()
    (3, [1, 3, 5], [2, 1, 3])
    """

    indices: Indices
    offsets: Indices

    @classmethod
    def of(cls, clients: Sequence[Sequence[int] | Indices]) -> Partition:
        arrays = [np.asarray(client, dtype=np.int64) for client in clients]
        offsets = np.concatenate([[0], np.cumsum([len(a) for a in arrays], dtype=np.int64)])
        indices = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(indices, offsets.astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Indices:
        return np.diff(self.offsets)

    def check(self, samples: int) -> None:
        """Refuse an empty client, an index out of range, or a sample that two clients own."""
        require(len(self) > 0, "clients", "a federation needs at least one client")
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            raise InvalidInput(f"clients: client {empty[0]} has no data")
        low, high = int(self.indices.min()), int(self.indices.max())
        if low < 0 or high >= samples:
            raise InvalidInput(f"clients: index {low if low < 0 else high} is outside the {samples} samples")
        owned = np.zeros(samples, dtype=np.bool_)
        owned[self.indices] = True
        if np.count_nonzero(owned) != len(self.indices):
            raise InvalidInput("clients: a sample belongs to more than one client, or twice to one")


@dataclass(frozen=True)
class Federation:
    """Training samples divided among clients, a test set of the server's, and the way into the network.

    ``validation`` is what tuning may look at: training samples that no client trains on. ``notes`` say where the
    data came from, for a run's records.
    """

    train: Samples
    partition: Partition
    test: Samples | None = None
    transform: Transform = field(default_factory=Identity)
    name: str = "arrays"
    classes: tuple[str, ...] = ()
    validation: Samples | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partition.check(len(self.train))
        for name, samples in (("test", self.test), ("validation", self.validation)):
            if samples is not None:
                require(len(samples) > 0, name, f"the {name} set is empty")

    @classmethod
    def from_arrays(
        cls,
        inputs: npt.ArrayLike | Tensor,
        targets: npt.ArrayLike | Tensor,
        *,
        clients: Partition | Sequence[Sequence[int]],
        test: tuple[npt.ArrayLike | Tensor, npt.ArrayLike | Tensor] | None = None,
        transform: Transform | None = None,
        name: str = "arrays",
        classes: Sequence[str] = (),
    ) -> Federation:
        """A federation of tensors or arrays in memory; ``clients`` lists each client's sample indices.

        >>> federation = Federation.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], clients=[[0, 1], [2]])
        >>> federation.population, federation.partition.sizes.tolist()
        (2, [2, 1])
        """
        return cls(
            train=ArraySamples(_tensor(inputs), _tensor(targets)),
            partition=clients if isinstance(clients, Partition) else Partition.of(clients),
            test=None if test is None else ArraySamples(_tensor(test[0]), _tensor(test[1])),
            transform=transform or Identity(),
            name=name,
            classes=tuple(classes),
        )

    @property
    def population(self) -> int:
        return len(self.partition)

    def to(self, device: torch.device) -> Federation:
        """The same federation with its samples on the device; what cannot move whole goes batch by batch."""

        def moved(samples: Samples) -> Samples:
            to: Callable[[torch.device], Samples] | None = getattr(samples, "to", None)
            return samples if to is None else to(device)

        if device.type == "cpu":
            return self
        return replace(
            self,
            train=moved(self.train),
            test=None if self.test is None else moved(self.test),
            validation=None if self.validation is None else moved(self.validation),
        )

    def union(self) -> Federation:
        """The same data as one client: what centralised training sees."""
        return replace(self, partition=Partition.of([np.sort(self.partition.indices)]))


def _tensor(values: npt.ArrayLike | Tensor) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype == np.float64:  # numpy's default, which no network expects
        array = array.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(array))
