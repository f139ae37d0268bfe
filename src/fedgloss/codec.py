"""Messages as bytes: safetensors, with nothing in it that could run.

The length depends on the names and shapes alone, never on the values, so a message's cost can be known without
writing it. What comes from outside is checked before it is believed: kind, size, names, types and shapes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from .errors import InvalidInput
from .messages import Broadcast, ClientState, ServerState, Update

Message: TypeAlias = ServerState | ClientState | Broadcast | Update
M = TypeVar("M", ServerState, ClientState, Broadcast, Update)

_WHOLE_NUMBERS: dict[type, tuple[str, ...]] = {
    ServerState: ("round", "population"),
    ClientState: (),
    Broadcast: ("round",),
    Update: ("size",),
}
_PURPOSES = ("train", "probe", "diagnostic")
_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


def encode(message: Message) -> bytes:
    scalars = {} if isinstance(message, Broadcast) else dict(message.scalars)
    tensors = {f"vector.{n}": v.detach().cpu().numpy() for n, v in message.vectors.items()}
    tensors["scalars"] = np.array(list(scalars.values()), dtype=np.float64)
    whole = [int(getattr(message, name)) for name in _WHOLE_NUMBERS[type(message)]]
    tensors["whole"] = np.array(whole, dtype=np.int64)
    header: dict[str, Any] = {"kind": type(message).__name__, "scalars": list(scalars)}
    if isinstance(message, Broadcast):
        header["purpose"] = message.purpose
    # one key, since safetensors writes several in no fixed order: equal messages are equal bytes
    return safetensors.numpy.save(tensors, {"message": json.dumps(header)})


def decode(kind: type[M], data: bytes, *, size: int | None = None) -> M:
    """The message in ``data``, refused unless it is of this ``kind`` and each vector has ``size`` entries."""
    header = _header(data)
    if header.get("kind") != kind.__name__:
        raise InvalidInput(f"message: a {kind.__name__} was expected, got {header.get('kind')!r}")
    try:
        tensors = safetensors.numpy.load(data)
        values, whole = tensors.pop("scalars"), tensors.pop("whole")
        if (values.dtype, whole.dtype) != (np.float64, np.int64):
            raise ValueError(f"numbers of type {values.dtype} and {whole.dtype}")
        scalars = {str(n): float(v) for n, v in zip(header["scalars"], values, strict=True)}
        fields: dict[str, Any] = dict(zip(_WHOLE_NUMBERS[kind], map(int, whole), strict=True))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"message: not a well-formed {kind.__name__} ({error})") from None
    vectors = {}
    for name, array in tensors.items():
        good = array.ndim == 1 and array.dtype in _TYPES and size in (None, len(array))
        if not (good and name.startswith("vector.")):
            raise InvalidInput(
                f"message: {name!r} has type {array.dtype} and shape {array.shape}, "
                f"expected a vector of {'any size' if size is None else size}"
            )
        vectors[name.removeprefix("vector.")] = torch.from_numpy(array)
    if kind is Broadcast:
        fields["purpose"] = header.get("purpose")
        if fields["purpose"] not in _PURPOSES or scalars:
            raise InvalidInput(f"message: unknown purpose {fields['purpose']!r}")
    else:
        fields["scalars"] = scalars
    return kind(vectors=vectors, **fields)


def encoded_size(message: Message) -> int:
    """``len(encode(message))`` without encoding it."""
    scalars = () if isinstance(message, Broadcast) else tuple(message.scalars)
    purpose = message.purpose if isinstance(message, Broadcast) else "train"
    shapes = tuple((n, v.numel(), v.dtype) for n, v in message.vectors.items())
    return _structure_size(type(message).__name__, purpose, shapes, scalars)


@lru_cache(maxsize=256)
def _structure_size(
    name: str,
    purpose: str,
    shapes: Sequence[tuple[str, int, torch.dtype]],
    scalars: Sequence[str],
) -> int:
    kind = next(k for k in _WHOLE_NUMBERS if k.__name__ == name)
    fields: dict[str, Any] = dict.fromkeys(_WHOLE_NUMBERS[kind], 0)
    fields |= {"purpose": purpose} if kind is Broadcast else {"scalars": dict.fromkeys(scalars, 0.0)}
    vectors = {vector: torch.empty(count, dtype=dtype) for vector, count, dtype in shapes}
    return len(encode(kind(vectors=vectors, **fields)))


def _header(data: bytes) -> dict[str, Any]:
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        return dict(json.loads(header["__metadata__"]["message"]))
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise InvalidInput("message: not a safetensors message") from None
