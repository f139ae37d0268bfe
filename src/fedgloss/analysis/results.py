"""Results are frozen values that go to JSON and come back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from ..errors import InvalidInput
from ..files import read_text, write_atomically

Progress: TypeAlias = Callable[[int, int], None]
"""(done, at most to do), called after each step of a measurement."""

Json: TypeAlias = Any
Result = TypeVar("Result")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a measurement. ``partial`` is the result so far, None where there is none yet."""

    def __init__(self, partial: object) -> None:
        super().__init__()
        self.partial = partial


def to_json(result: object) -> Json:
    """Plain lists, dictionaries and numbers. Tensors stay behind, a NaN or infinity becomes null."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: to_json(getattr(result, field.name)) for field in _kept(type(result))}
    if isinstance(result, Mapping):
        return {str(key): to_json(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return [to_json(value) for value in result]
    if isinstance(result, float) and not math.isfinite(result):
        return None
    return result


def from_json(kind: type[Result], data: Json) -> Result:
    """The result that ``to_json`` wrote, without its tensors."""
    return typing.cast(Result, _read(kind, data))


def save(path: Path, result: object) -> None:
    """Write a result to a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(to_json(result), allow_nan=False) + "\n").encode())


def load(path: Path, kind: type[Result]) -> Result:
    """Read a result from a JSON file."""
    text = read_text(path)
    try:
        return from_json(kind, json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{path}: cannot be read as {kind.__name__} ({error}); remove it to have it measured anew"
        ) from error


def _kept(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    hints = typing.get_type_hints(kind)
    return [field for field in dataclasses.fields(kind) if not _holds_tensors(hints[field.name])]


def _holds_tensors(hint: Any) -> bool:
    return hint is Tensor or any(_holds_tensors(inner) for inner in typing.get_args(hint))


def _read(hint: Any, data: Json) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        given = [field.name for field in _kept(hint) if field.name in data or _required(field)]
        return hint(**{name: _read(hints[name], data[name]) for name in given})
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (only,) = [kind for kind in inner if kind is not type(None)]
        return None if data is None else _read(only, data)
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is ... else inner
        return tuple(_read(kind, value) for kind, value in zip(kinds, data, strict=True))
    if hint is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _read(inner[1], value) for key, value in data.items()}
    if hint is float:
        return math.nan if data is None else float(data)
    if type(data) is not hint if origin is None else data not in inner:
        raise TypeError(f"{data!r} where {hint} belongs")
    return data


def _required(field: dataclasses.Field[Any]) -> bool:
    """What has a default may be missing: an earlier version did not write it."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
