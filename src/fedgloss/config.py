"""Configuration: typed sections, where each value came from, and errors that name the key and the fix.

A run is decided by five sections (``data``, ``model``, ``local``, ``algorithm``, ``training``); ``run`` says how to
carry it out and changes no number. Values are layered: built-in defaults, a preset, what the preset chose for the
method, what ``fidelity`` implies, a file, command-line options, ``--set``. Each layer overrides those before it.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from .algorithms import FIDELITIES, METHODS
from .compute import Precision
from .data.federate import SPLITS
from .errors import InvalidInput
from .files import read_text

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
LARGEST = 2**63 - 1  # TOML's own limit for whole numbers
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=LARGEST)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(Section):
    """Which samples, and who owns them."""

    name: str = "digits"
    path: str | None = None
    split: str = "iid"
    clients: Count | None = 20
    alpha: NotNegative | None = None
    classes_per_client: Count | None = None
    seed: Seed = 0
    lists: str | None = None
    validation: Share = 0.0
    options: dict[str, Any] = Field(default_factory=dict)


class ModelSection(Section):
    """Which network, and what it starts from."""

    name: str = "cnn"
    weights: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class LocalSection(Section):
    """A client's own training in a round."""

    lr: Positive = 0.01
    epochs: Count = 1
    batch_size: Count = 64
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.0
    clip: Positive | None = None


class TrainingSection(Section):
    """How long, with whom, and when to evaluate."""

    rounds: Count = 100
    cohort: Count = 5
    participation: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed = 0
    eval_every: Count = 100
    window: Count | None = None
    evaluate_on: Literal["test", "validation"] = "test"
    client_accuracy: bool = False
    true_delta_eps: bool = False
    max_norm: Positive = 1e6
    precision: Precision = "float32"


class RunSection(Section):
    """How to carry the run out; nothing here changes its numbers, but for the device, and clients that drop out."""

    transport: Literal["local", "ray"] = "local"
    address: str = "auto"
    workers: Count | Literal["auto"] = "auto"
    on_failure: Literal["redo", "drop", "stop"] = "redo"
    device: str = "cpu"
    client_memory: Annotated[str, Field(pattern=r"^\d{1,18}(\.\d+)?\s*[KMGT]?i?B?$")] | None = None
    checkpoint_seconds: NotNegative = 60.0
    keep_every: Count | None = None
    note: str | None = None


class Config(Section):
    """A resolved configuration. ``algorithm`` was checked against the method's own hyper-parameters."""

    fidelity: Literal["paper", "released"] = "paper"
    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection = Field(default_factory=ModelSection)
    local: LocalSection = Field(default_factory=LocalSection)
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"})
    training: TrainingSection = Field(default_factory=TrainingSection)
    run: RunSection = Field(default_factory=RunSection)


@dataclass(frozen=True)
class Resolved:
    """A configuration and, for every value, which layer it came from."""

    config: Config
    origins: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(key, value, origin) for every value, in order."""
        for key, value in flatten(self.config.model_dump(mode="json")):
            yield key, value, self.origins.get(key, "default")


def presets() -> dict[str, str]:
    """The names of the presets that ship with the package, each with its one-line description."""
    folder = resources.files("fedgloss") / "presets"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            content = tomllib.loads(entry.read_text())
            found[entry.name.removesuffix(".toml")] = str(content.get("summary", ""))
    return found


def resolve(
    source: str | Path | None,
    options: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> Resolved:
    """The configuration of a preset or file, with ``options`` and ``key=value`` settings over it.

    An option is a key and its value, or None where it was not given.
    """
    given = [parse_setting(text) for text in settings]
    preset, own = _source(source)
    shipped, tables = _preset(preset)
    ours = f"preset {preset}"
    layers = [
        (ours, shipped),
        (str(source), own),
        ("option", _nested({k: v for k, v in (options or {}).items() if v is not None})),
        ("--set", _nested(dict(given))),
    ]
    layers[1:1] = _chosen_for_the_method(layers, tables)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _merge(merged, layer)
        origins |= {key: origin for key, _ in flatten(layer)}
    _reconcile_the_split(merged, origins, ours)
    return Resolved(_validate(merged, origins), origins)


def _reconcile_the_split(merged: dict[str, Any], origins: dict[str, str], ours: str) -> None:
    """A split and its settings may come from different layers: what the user asked for wins over ``ours``.

    ``--alpha`` over a preset whose split has no alpha means the split that has one, and a preset's alpha means
    nothing once the user asked for a split without. Settings of the user's that do not fit stay, to be refused.
    """
    data = merged.get("data")
    if not isinstance(data, dict) or data.get("split") not in list(SPLITS):  # a list: the value may be anything
        return

    def by_user(key: str) -> bool:
        return origins.get(f"data.{key}", ours) != ours

    def taken(key: str) -> bool:
        split = SPLITS[data["split"]]
        return key in (*split.takes, *split.may_take)

    if by_user("alpha") and not by_user("split") and not taken("alpha"):
        data["split"], origins["data.split"] = "hsu", "implied by alpha"
    for key in ("clients", "alpha", "classes_per_client"):
        if not taken(key) and not by_user(key):
            data[key] = None
            origins[f"data.{key}"] = f"no setting of split {data['split']}"


def parse_setting(text: str) -> tuple[str, Any]:
    """``local.lr=0.1`` -> ("local.lr", 0.1); the value is TOML, or a string where it is not."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise InvalidInput(f"--set {text}: write it as key=value, for example --set local.lr=0.05")
    return key, parse_value(value.strip())


def parse_value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also a number of more digits than Python reads
        return text
    return found["value"] if len(found) == 1 else text


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested tables, an empty table counting as a value."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_toml(config: Config) -> str:
    """The configuration as TOML that ``resolve`` reads back to the same one."""
    plain = config.model_dump(mode="json")
    lines = [f"fidelity = {_toml(plain.pop('fidelity'))}"]
    for section, values in plain.items():
        lines += ["", *_toml_table(section, values)]
    return "\n".join(lines) + "\n"


def bytes_of(text: str) -> int:
    """``"2GB"`` -> 2_000_000_000; ``KiB`` and the like count in 1024s."""
    number = text.rstrip("KMGTiB ").strip()
    unit = text[len(number) :].strip()
    base = 1024 if "i" in unit else 1000
    power = "KMGT".index(unit[0]) + 1 if unit and unit[0] in "KMGT" else 0
    return int(float(number) * base**power)


def _toml_table(name: str, values: Mapping[str, Any]) -> list[str]:
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    lines = [f"[{name}]"]
    lines += [f"{_key(k)} = {_toml(v)}" for k, v in values.items() if k not in tables and v is not None]
    for key, table in tables.items():
        if table:
            lines += ["", *_toml_table(f"{name}.{_key(key)}", table)]
    return lines


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _text(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)  # TOML's nan and inf are Python's
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    """As TOML wants it: no pairs of surrogates, which JSON writes for what lies beyond the first plane."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _source(source: str | Path | None) -> tuple[str | None, dict[str, Any]]:
    """The preset to start from, and what a file of the user's says over it."""
    if source is None:
        return None, {}
    known = presets()
    if str(source) in known:
        return str(source), {}
    path = Path(source)
    if not os.path.exists(path):  # not Path's own: it raises at a name that is too long
        if path.suffix == ".toml" or path.parent != Path():
            raise InvalidInput(f"{path}: no such file")
        raise InvalidInput(f"{source}: {_unknown(str(source), known, 'preset')}; or give a .toml file")
    own = _read_toml(path)
    preset = own.pop("preset", None)
    if preset is not None and str(preset) not in known:
        raise InvalidInput(f"{path}: preset: {_unknown(str(preset), known, 'preset')}")
    return preset, own


def _preset(name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A preset's values, and what it chose for each method."""
    if name is None:
        return {}, {}
    content = tomllib.loads((resources.files("fedgloss") / "presets" / f"{name}.toml").read_text())
    tables = content.pop("methods", {})
    del content["summary"]
    return content, tables


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path).removeprefix("\ufeff")  # the mark some editors put before UTF-8
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: is not TOML: {error}") from None


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, last = key.split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise InvalidInput(f"{key}: {table} is a value, not a section")
        place[last] = value
    return nested


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _last(layers: Sequence[tuple[str, Mapping[str, Any]]], *keys: str) -> Any:
    found = None
    for _, layer in layers:
        value: Any = layer
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        found = found if value is None else value
    return found


def _chosen_for_the_method(
    layers: Sequence[tuple[str, Mapping[str, Any]]], tables: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, dict[str, Any]]]:
    """What the preset chose for the method asked for, and what the fidelity implies for it."""
    name = _last(layers, "algorithm", "name") or "fedavg"
    if not isinstance(name, str) or name not in METHODS:
        return []  # to be refused, with all that is wrong beside
    inside = _last(layers, "algorithm", "inner", "name") or "fedavg"
    wraps = METHODS[name].wraps and isinstance(inside, str) and inside in METHODS
    found: list[tuple[str, dict[str, Any]]] = []
    if name in tables:
        found.append((f"chosen for {name}", {"algorithm": dict(tables[name])}))
    if wraps and inside in tables:
        found.append((f"chosen for {inside}", {"algorithm": {"inner": dict(tables[inside])}}))
    if _last(layers, "fidelity") == "released":
        implied = _implied(name)
        if wraps and (within := _implied(inside)):
            implied["inner"] = within
        content: dict[str, Any] = {"algorithm": implied} if implied else {}
        if str(_last(layers, "data", "name")).startswith("cifar"):
            content["data"] = {"split": "official", "options": {"emulate_leak": True, "draw": "batch"}}
        found.append(("fidelity released", content))
    return found


def _implied(method: str) -> dict[str, Any]:
    """What the released code does otherwise, of the options this method has."""
    return {k: v for k, v in FIDELITIES["released"].items() if k in METHODS[method].options}


def _validate(merged: dict[str, Any], origins: Mapping[str, str]) -> Config:
    problems: list[str] = []
    algorithm = merged.get("algorithm", {"name": "fedavg"})
    if isinstance(algorithm, Mapping):
        merged = {**merged, "algorithm": _validate_method(dict(algorithm), "algorithm", problems, origins)}
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += [_explain(e, Config, origins) for e in error.errors(include_url=False)]
    if problems:
        raise InvalidInput("\n".join(problems))
    return config


def _validate_method(
    given: dict[str, Any], place: str, problems: list[str], origins: Mapping[str, str]
) -> dict[str, Any]:
    """The method's hyper-parameters, completed with its defaults."""
    name = given.pop("name", "fedavg")
    if not isinstance(name, str) or name not in METHODS:
        problems.append(f"{_where(f'{place}.name', origins)}: {_unknown(str(name), METHODS, 'method')}")
        return {"name": name}
    inner = given.pop("inner", None)
    model = _method_model(name)
    if "client" in given and "client" not in model.model_fields:
        del given["client"]
        problems.append(f"{_where(f'{place}.client', origins)}: {_fixed_client(name)}")
    try:
        checked = model.model_validate(given).model_dump()
    except ValidationError as error:
        problems += [_explain(e, model, origins, place) for e in error.errors(include_url=False)]
        checked = {}
    if METHODS[name].wraps and isinstance(inner, Mapping | None):
        checked["inner"] = _validate_method(dict(inner or {}), f"{place}.inner", problems, origins)
    elif METHODS[name].wraps:
        where = _where(f"{place}.inner", origins)
        problems.append(f"{where}: is a section; the method inside is {place}.inner.name, got {inner!r}")
    elif inner is not None:
        problems.append(f"{_where(f'{place}.inner', origins)}: {name} wraps no other method")
    return {"name": name, **checked}


_RANGES: Mapping[str, Any] = {
    "rho": NotNegative,
    "local_rho": NotNegative,
    "beta": Positive,
    "mu": NotNegative,
    "mix": Annotated[float, Field(ge=0, le=1)],
    "warm_up": Annotated[int, Field(ge=0, le=LARGEST)],
    "server_lr": Positive,
    "momentum": Share,
    "b1": Share,
    "b2": Share,
    "b": Share,
    "tau": Positive,
    "offset": NotNegative,
    "window": Count,
    "start": Annotated[int, Field(ge=0, le=LARGEST)],
    "cycle": Count,
    "low": Positive,
    "mean_size": Positive | None,
}


def _method_model(name: str) -> type[BaseModel]:
    """A section made from the builder's own signature, so that a method is declared once."""
    fields: dict[str, Any] = {}
    for option, parameter in METHODS[name].options.items():
        if option != "inner":
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[option] = (_RANGES.get(option, parameter.annotation), default)
    model: type[BaseModel] = create_model(f"{name} section", __base__=Section, **fields)
    return model


def _fixed_client(name: str) -> str:
    alternatives = {
        "fedavg": "FedAvg with SAM clients is fedsam",
        "fedsam": "FedSAM with SGD clients is fedavg",
        "fedgamma": "FedGamma with SGD clients is scaffold",
        "scaffold": "SCAFFOLD with SAM clients is fedgamma",
    }
    reason = alternatives.get(name, f"{name} fixes its clients' optimiser")
    free = ", ".join(n for n, method in METHODS.items() if method.takes_client)
    return f"{reason}; methods that take a client are {free}"


def _where(key: str, origins: Mapping[str, str]) -> str:
    """A key, after the file it came from if it did."""
    origin = origins.get(key) or next((o for k, o in origins.items() if k.startswith(f"{key}.")), "")
    return f"{origin}: {key}" if origin and origin not in ("option", "--set") else key


def _explain(error: Mapping[str, Any], model: type[BaseModel], origins: Mapping[str, str], prefix: str = "") -> str:
    """One line: where the value came from, its key, what is wrong and what would be right."""
    parts = [str(p) for p in error["loc"] if not (isinstance(p, str) and p.startswith(("function-", "literal[")))]
    parts = [p for p in parts if p not in ("int", "float", "str", "constrained-str", "constrained-int")]
    key = ".".join([prefix, *parts] if prefix else parts)
    where = _where(key, origins)
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key; {_hint(parts, model)}"
    if error["type"] == "missing":
        return f"{where}: is needed"
    value = error.get("input")
    shown = f", got {value!r}" if not isinstance(value, Mapping | list) else ""
    message = str(error["msg"])[:1].lower() + str(error["msg"])[1:]
    return f"{where}: {message}{shown}"


def _hint(parts: Sequence[str], model: type[BaseModel]) -> str:
    for part in parts[:-1]:
        info: FieldInfo | None = model.model_fields.get(part)
        inner = info.annotation if info else None
        candidates = [inner, *get_args(inner)] if inner else []
        nested = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if nested is None:
            break
        model = nested
    known = list(model.model_fields)
    near = difflib.get_close_matches(parts[-1], known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def _unknown(name: str, known: Mapping[str, Any], what: str) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"
