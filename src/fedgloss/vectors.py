"""A model is one flat vector. Only ``Layout`` knows the names and shapes inside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .errors import InvalidInput

Vector: TypeAlias = Tensor


def unit(vector: Vector) -> Vector:
    """``vector / ||vector||``, and zero for zero, without asking the device for the norm's value.

    >>> unit(torch.tensor([3.0, 4.0])).tolist(), unit(torch.zeros(2)).tolist()
    ([0.6000000238418579, 0.800000011920929], [0.0, 0.0])
    """
    length = torch.linalg.vector_norm(vector)
    return vector / torch.where(length > 0, length, torch.ones_like(length))


def norm(vector: Vector) -> float:
    return float(torch.linalg.vector_norm(vector))


@dataclass(frozen=True)
class Entry:
    """One parameter tensor inside the vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter of a module lies in the flat vector.

    Convolution weights are stored channels-last (output, height, width, input), so that their views
    are what the fast kernels want and no step copies them. Tied parameters appear once, frozen ones
    not at all.
    """

    entries: tuple[Entry, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, module: nn.Module, *, running_statistics: bool = False) -> Layout:
        """The layout of a module's trainable parameters, in ``named_parameters`` order.

        ``running_statistics=True`` admits a network that keeps some, for whoever only looks at it.
        """
        if not running_statistics:
            _refuse_running_statistics(module)
        entries, start, dtypes = [], 0, set()
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad or parameter.numel() == 0:
                continue
            entries.append(Entry(name, tuple(parameter.shape), start))
            start += parameter.numel()
            dtypes.add(parameter.dtype)
        if not entries:
            raise InvalidInput(
                f"model: {type(module).__name__} has no trainable parameters; "
                "check requires_grad and that the layers are registered on the module"
            )
        if len(dtypes) > 1 or not (dtype := dtypes.pop()).is_floating_point:
            raise InvalidInput(
                "model: all trainable parameters must share one floating-point type; call model.float() first"
            )
        return cls(tuple(entries), dtype)

    @property
    def size(self) -> int:
        """The number of trainable parameters, d."""
        return self.entries[-1].stop

    @cached_property
    def _sizes(self) -> list[int]:
        return [entry.size for entry in self.entries]

    @cached_property
    def fingerprint(self) -> str:
        """Identifies names, shapes, order and type: vectors of equal fingerprint are interchangeable."""
        text = json.dumps([[e.name, *e.shape] for e in self.entries] + [str(self.dtype)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def views(self, vector: Vector) -> Iterator[Tensor]:
        """Each parameter as a view into the vector, in order and in the module's shape."""
        for entry, flat in zip(self.entries, vector.split_with_sizes(self._sizes), strict=True):
            if len(entry.shape) == 4:
                out, inner, height, width = entry.shape
                yield flat.view(out, height, width, inner).permute(0, 3, 1, 2)
            else:
                yield flat.view(entry.shape)

    def join(self, tensors: Iterable[Tensor]) -> Vector:
        """A new vector whose views are equal to these tensors, one per entry."""
        return torch.cat([(t.permute(0, 2, 3, 1) if t.ndim == 4 else t).reshape(-1) for t in tensors])

    def pack(self, tensors: Mapping[str, Tensor]) -> Vector:
        """A vector from named tensors, which must have exactly the layout's names and shapes."""
        missing = [e.name for e in self.entries if e.name not in tensors]
        unknown = sorted(set(tensors) - {e.name for e in self.entries})
        if missing or unknown:
            raise InvalidInput(
                f"parameters do not fit the model: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
        device = next(iter(tensors.values())).device
        vector = torch.empty(self.size, dtype=self.dtype, device=device)
        for entry, view in zip(self.entries, self.views(vector), strict=True):
            if tuple(tensors[entry.name].shape) != entry.shape:
                raise InvalidInput(
                    f"parameter {entry.name!r}: shape {tuple(tensors[entry.name].shape)}, "
                    f"the model has {entry.shape}"
                )
            view.copy_(tensors[entry.name].detach())
        return vector

    def unpack(self, vector: Vector) -> dict[str, Tensor]:
        """Named tensors in torch's own memory order, owning their storage: ready for a state dict."""
        self.check(vector, "vector")
        views = zip(self.entries, self.views(vector), strict=True)
        return {e.name: v.detach().clone(memory_format=torch.contiguous_format) for e, v in views}

    def flatten(self, module: nn.Module) -> Vector:
        """The module's trainable parameters as a new vector."""
        parameters = dict(module.named_parameters())
        return self.pack({e.name: parameters[e.name] for e in self.entries})

    def load(self, module: nn.Module, vector: Vector) -> None:
        """Copy the vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, tensor in self.unpack(vector).items():
                parameters[name].copy_(tensor)

    def check(self, vector: Vector, what: str) -> None:
        """Refuse a vector that is not of this layout."""
        if tuple(vector.shape) != (self.size,):
            raise InvalidInput(f"{what}: shape {tuple(vector.shape)}, the model needs ({self.size},)")

    def first_non_finite(self, vector: Vector) -> str | None:
        """The name of the first parameter tensor that holds a NaN or infinity, if any."""
        for entry in self.entries:
            if not bool(torch.isfinite(vector[entry.start : entry.stop]).all()):
                return entry.name
        return None

    def weight_mask(self, device: torch.device | None = None) -> Tensor:
        """True where the parameter's name contains 'weight': what ASAM rescales."""
        mask = torch.zeros(self.size, dtype=torch.bool, device=device)
        for entry in self.entries:
            if "weight" in entry.name:
                mask[entry.start : entry.stop] = True
        return mask


def _refuse_running_statistics(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if getattr(child, "running_mean", None) is not None:
            raise InvalidInput(
                f"model: layer {name or 'itself'!r} ({type(child).__name__}) keeps running statistics, which are "
                "no parameters and cannot be averaged over clients; use torch.nn.GroupNorm instead"
            )
