"""The paper as data: every table and figure, the printed values, and the run that produces each of them.

An :class:`Exhibit` is a table, a figure, an ablation the text speaks of, or a question the paper leaves open. It
is a set of cells, each with a stable id such as ``sota_cnn/cifar10/alpha=0/fedgloss-sam``, the :class:`Setting` to
train and the quantity to measure. Nothing here trains or measures; :mod:`fedgloss.reports.verdict` compares.

>>> cell = table("tab:sota_cnn").at("fedgloss-sam", "cifar10/alpha=0")
>>> cell.published.text, cell.setting.options
('83.9±0.4', {'rho': 0.15, 'local_rho': 0.15, 'beta': 10, 'warm_up': 2000})
>>> [cell.id for cell in cells("hom/cifar10/*/accuracy/*no-admm")]
['hom/cifar10/alpha=100/accuracy/fedgloss-sgd-no-admm', 'hom/cifar10/alpha=100/accuracy/fedgloss-sam-no-admm']
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import InvalidInput, require

Client: TypeAlias = Literal["sgd", "sam"]
Kind: TypeAlias = Literal["table", "figure", "text", "open"]
Outcome: TypeAlias = Literal["value", "diverged", "not reached", "absent"]
Value: TypeAlias = bool | int | float | str


@dataclass(frozen=True)
class Quantity:
    """Something to measure. ``share`` of the run's rounds must be done before it is known."""

    about: str
    share: float = 1.0
    slack: float | None = None
    """What counts as equal beyond the seeds' spread; ``None``: half a unit of the last printed digit."""
    to_target: bool = False
    """Known as soon as a target is reached, so a run stopped early can still answer."""
    exact: bool = False
    """The same for every seed: one run settles it."""
    by_client: bool = False
    """Of clients that depend on the seed: shown beside the paper's, never judged."""


HALF_A_POINT = 0.5
"""What two implementations of one experiment may differ by, in percentage points."""

QUANTITIES: Mapping[str, Quantity] = {
    "accuracy": Quantity("test accuracy in %, mean over the last 100 rounds", slack=HALF_A_POINT),
    "accuracy_half": Quantity("test accuracy in % after half of the rounds", share=0.5, slack=HALF_A_POINT),
    "accuracy_lost": Quantity("share of the reference's accuracy that is lost, in %", slack=HALF_A_POINT),
    "lambda_1": Quantity("largest eigenvalue of the Hessian at the final global model"),
    "lambda_1_local": Quantity("the same at a last-round local model, on that client's data", by_client=True),
    "lambda_1_global": Quantity("the same at a last-round local model, on all clients' data", by_client=True),
    "rounds": Quantity("rounds to the reference's accuracy", slack=100, to_target=True),
    "speed_up": Quantity("the reference's rounds over those to its accuracy", to_target=True),
    "cost": Quantity("bits to the reference's accuracy, its own run being 1", to_target=True),
    "communication": Quantity("bytes per round, FedAvg's being 1", share=0, slack=0.05, exact=True),
    "gradients": Quantity("gradients per local step", share=0, slack=0.05, exact=True),
    "parameter_norm": Quantity("norm of the final global model"),
    "parameter_norm_curve": Quantity("norm of the global model over the rounds"),
    "accuracy_curve": Quantity("test accuracy over the rounds"),
    "accuracy_against_cost": Quantity("final test accuracy against models sent"),
    "delta_eps": Quantity("distance between FedGloSS's perturbation and the true one, over the rounds"),
    "landscape": Quantity("loss on a plane of random directions through the final global model"),
    "local_landscape": Quantity("loss on a plane of random directions through a last-round local model"),
    "interpolation": Quantity("loss on the line through two final global models"),
    "client_classes": Quantity("images per client and class", share=0, exact=True),
}

FIXED_CLIENTS: Mapping[str, Client] = {
    "fedavg": "sgd",
    "fedprox": "sgd",
    "scaffold": "sgd",
    "fedsam": "sam",
    "fedspeed": "sam",
    "fedgamma": "sam",
    "fedsmoo": "sam",
    "sgd": "sgd",
    "sam": "sam",
    "sam-previous": "sam",
}
EITHER_CLIENT = ("feddyn", "fedgloss", "naive-fedgloss")
CENTRALISED = ("sgd", "sam", "sam-previous")

TUNED_AS = {"naive-fedgloss": "fedgloss", "sam": "fedsam", "sam-previous": "fedsam"}
"""Methods the paper lists no hyper-parameters for, and whose they use here."""

LOCAL_TRAINING = ("lr", "epochs", "batch_size", "weight_decay", "momentum")
METHOD_OPTIONS = ("rho", "local_rho", "beta", "mu", "mix", "warm_up", "dual", "admm")

SETTINGS_TABLES = ("tab:ds-stats", "tab:base-hp", "tab:hp")
"""Known through datasets(), training(), and searches(), chosen() and grid(); not exhibits: nothing to run."""

SKETCHES = ("fig:method",)
"""Figures without data."""


@dataclass(frozen=True)
class Published:
    """One printed entry.

    >>> Published.parse("59.9±0.4", "accuracy")
    Published(text='59.9±0.4', outcome='value', value=59.9, sd=0.4, digit=0.1)
    >>> Published.parse("7.6k", "rounds").value, Published.parse("X", "rounds").outcome
    (7600.0, 'diverged')
    """

    text: str
    outcome: Outcome
    value: float | None = None
    sd: float | None = None
    digit: float = 0.0
    """One unit of the last printed digit."""

    @classmethod
    def parse(cls, text: str, quantity: str) -> Published:
        if text == "X":
            return cls(text, "diverged")
        if text == "-":
            return cls(text, "not reached" if QUANTITIES[quantity].to_target else "absent")
        match = re.fullmatch(r"(\d+(?:\.(\d+))?)([kBx%]?)(?:±(\d+(?:\.\d+)?))?", text)
        if match is None:
            raise InvalidInput(f"{text!r}: not a printed value such as 59.9±0.4, 7.6k, 0.8B, 1x, 45%, X or -")
        number, decimals, unit, sd = match.groups()
        scale = 1000 if unit == "k" else 1
        value = round(float(number) * scale, 6)
        return cls(text, "value", value, float(sd) if sd else None, scale * 10.0 ** -len(decimals or ""))


@dataclass(frozen=True)
class Setting:
    """What to train. Two cells with equal settings share their runs."""

    preset: str
    alpha: float | None
    """The data's Dirichlet parameter; ``None`` for Landmarks' own clients and for centralised training."""
    method: str
    client: Client
    rounds: int
    """Of the whole run; epochs if centralised."""
    changes: tuple[tuple[str, Value], ...] = ()
    """What differs from the values the paper chose for the preset, by name."""

    @property
    def dataset(self) -> str:
        return self.preset.partition("-")[0]

    @property
    def options(self) -> dict[str, Value]:
        """The method's hyper-parameters: those the paper chose, with the changes."""
        changes = {name: value for name, value in self.changes if name not in LOCAL_TRAINING}
        return {**chosen(self.preset, self.method, self.client), **changes}

    @property
    def local_training(self) -> dict[str, Value]:
        """The clients' local training: that of tab:base-hp, with the changes."""
        base = training()[self.preset]
        changes = {name: value for name, value in self.changes if name in LOCAL_TRAINING}
        return {**{name: getattr(base, name) for name in LOCAL_TRAINING}, **changes}


@dataclass(frozen=True)
class Run:
    """A setting with its seed: what is started, resumed, or found finished."""

    setting: Setting
    seed: int


@dataclass(frozen=True)
class Cell:
    """One entry of a table, or one thing drawn in a figure."""

    id: str
    row: str
    column: str
    quantity: str
    setting: Setting
    seeds: tuple[int, ...]
    published: Published | None
    reference: str | None
    """The id of the cell whose run sets the target or the comparison."""
    details: Mapping[str, Any]
    """How to measure or draw: ``client`` (place in the last cohort), ``class``, ``data``, ``range``, ``style``."""
    notes: tuple[str, ...] = ()

    @property
    def rounds_needed(self) -> int:
        """0 if the data alone answer, 1 if any round does."""
        if self.quantity == "client_classes":
            return 0
        return max(1, math.ceil(QUANTITIES[self.quantity].share * self.setting.rounds))

    @property
    def runs(self) -> tuple[Run, ...]:
        if self.rounds_needed == 0:
            return ()
        return tuple(Run(self.setting, seed) for seed in self.seeds)


@dataclass(frozen=True)
class Exhibit:
    """A table, a figure, an ablation of the text or an open question."""

    label: str
    about: str
    cells: tuple[Cell, ...]
    properties: Mapping[str, Mapping[str, Value]]
    """What a table says of a row besides its values, such as ``admm`` or ``global_flatness``."""

    @property
    def kind(self) -> Kind:
        kinds: dict[str, Kind] = {"tab": "table", "fig": "figure", "text": "text", "open": "open"}
        return kinds[self.label.partition(":")[0]]

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.column for cell in self.cells))

    def at(self, row: str, column: str) -> Cell | None:
        """The cell in a row and a column, where the grid has one."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)


@dataclass(frozen=True)
class Dataset:
    """A row of tab:ds-stats."""

    clients: int
    train: int
    test: int


@dataclass(frozen=True)
class Training:
    """A row of tab:base-hp; ``printed`` is false where the paper forgot the row."""

    rounds: int
    cohort: int
    epochs: int
    lr: float
    weight_decay: float
    momentum: float
    batch_size: int
    centralised_epochs: int | None = None
    """Ours: as many samples as the federated run sees."""
    printed: bool = True


@dataclass(frozen=True)
class Tried:
    tried: tuple[int | float, ...]
    chosen: int | float


@dataclass(frozen=True)
class Search:
    """A row of tab:hp: one hyper-parameter of a method, in the paper's own symbol and values, by preset."""

    method: str
    symbol: str
    name: str
    """Ours."""
    values: dict[str, Tried]
    sam_only: bool = False
    inverse: bool = False

    def ours(self, value: float) -> float:
        """A value of theirs as ours: FedDyn's alpha is one over beta."""
        return 1 / value if self.inverse else value


# ---- lookups ----------------------------------------------------------------------------------------------------


def exhibits() -> tuple[Exhibit, ...]:
    """Everything: tables, figures, ablations of the text, open questions."""
    return tuple(_exhibits().values())


def tables() -> tuple[Exhibit, ...]:
    return tuple(exhibit for exhibit in exhibits() if exhibit.kind == "table")


def figures() -> tuple[Exhibit, ...]:
    return tuple(exhibit for exhibit in exhibits() if exhibit.kind == "figure")


def exhibit(label: str) -> Exhibit:
    """One of them by its label, such as ``tab:sota_cnn``, ``fig:eigs`` or ``open:dual-rule``."""
    if label in SETTINGS_TABLES:
        raise InvalidInput(f"{label}: holds the paper's settings, there is nothing to run; see docs/paper.md")
    if label in SKETCHES:
        raise InvalidInput(f"{label}: is a sketch, there is nothing to run")
    try:
        return _exhibits()[label]
    except KeyError:
        raise InvalidInput(f"{label}: unknown table or figure{_nearest(label, _exhibits())}") from None


def table(label: str) -> Exhibit:
    found = exhibit(label)
    require(found.kind == "table", label, f"is not a table but {found.about!r}")
    return found


def cells(pattern: str = "*", label: str | None = None) -> tuple[Cell, ...]:
    """The cells whose ids match a glob (``*`` also crosses slashes), of one exhibit or of all."""
    pool = [cell for found in ([exhibit(label)] if label else exhibits()) for cell in found.cells]
    matching = tuple(cell for cell in pool if fnmatchcase(cell.id, pattern))
    if not matching:
        raise InvalidInput(f"{pattern}: matches no cell{_nearest(pattern, [cell.id for cell in pool])}")
    return matching


def runs(wanted: Iterable[Cell]) -> dict[Run, int]:
    """Every run that cells need, each once, and after how many rounds it has answered them all."""
    needed: dict[Run, int] = {}
    for cell in wanted:
        for run in cell.runs:
            needed[run] = max(needed.get(run, 0), cell.rounds_needed)
    return needed


def chosen(preset: str, method: str, client: Client) -> dict[str, Value]:
    """The hyper-parameters the paper settled on, by our names.

    >>> chosen("cifar10-cnn", "feddyn", "sam")
    {'beta': 100.0, 'local_rho': 0.15}
    """
    return {search.name: search.ours(search.values[preset].chosen) for search in _searches(preset, method, client)}


def grid(preset: str, method: str, client: Client) -> dict[str, tuple[float, ...]]:
    """The values the paper tried, by our names; empty for methods without hyper-parameters.

    >>> grid("landmarks-mobilenetv2", "feddyn", "sgd")
    {'beta': (1000.0, 100.0)}
    """
    found = _searches(preset, method, client)
    return {search.name: tuple(search.ours(value) for value in search.values[preset].tried) for search in found}


def datasets() -> Mapping[str, Dataset]:
    """tab:ds-stats."""
    return _settings().datasets


def training() -> Mapping[str, Training]:
    """tab:base-hp, by preset."""
    return _settings().presets


def searches() -> tuple[Search, ...]:
    """tab:hp, row by row, in the paper's own symbols and values."""
    return _settings().searches


# ---- reading the files beside this one --------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Column(_Strict):
    name: str
    preset: str
    quantities: list[str] = Field(min_length=1)
    alpha: float | None = None
    changes: dict[str, Value] = {}
    reference: str | None = None
    details: dict[str, Any] = {}


class _Row(_Strict):
    row: str
    variant: str | None = None
    values: str | None = None
    changes: dict[str, Value] = {}
    properties: dict[str, Value] = {}
    details: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return f"{self.row}-{self.variant}" if self.variant else self.row


class _Part(_Strict):
    columns: list[_Column]
    rows: list[_Row]


class _Note(_Strict):
    cells: str
    text: str


class _Exhibit(_Strict):
    label: str = Field(pattern="^(tab|fig|text|open):")
    about: str
    parts: list[_Part]
    one_seed: bool = False
    details: dict[str, Any] = {}
    notes: list[_Note] = []


class _Exhibits(_Strict):
    exhibits: list[_Exhibit]


class _Settings(_Strict):
    seeds: tuple[int, ...]
    datasets: dict[str, Dataset]
    presets: dict[str, Training]
    searches: tuple[Search, ...]


File = TypeVar("File", bound=_Strict)


def _validated(text: str, name: str, model: type[File]) -> File:
    try:
        # By way of JSON, where arrays may become tuples and all else stays strict.
        return model.model_validate_json(json.dumps(tomllib.loads(text)))
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _text(name: str) -> str:
    return resources.files("fedgloss.reports").joinpath(name).read_text(encoding="utf-8")


@cache
def _settings() -> _Settings:
    return _read_settings(_text("paper_settings.toml"), "paper_settings.toml")


@cache
def _exhibits() -> dict[str, Exhibit]:
    names = ("paper_tables.toml", "paper_figures.toml", "paper_studies.toml")
    return _read_exhibits({name: _text(name) for name in names})


def _read_settings(text: str, name: str) -> _Settings:
    settings = _validated(text, name, _Settings)
    for search in settings.searches:
        where = f"{name}: {search.method} {search.symbol}"
        require(search.name in METHOD_OPTIONS, where, f"no hyper-parameter is called {search.name!r}")
        require(set(search.values) == set(settings.presets), where, "needs one entry per preset")
        odd = [preset for preset, values in search.values.items() if values.chosen not in values.tried]
        require(not odd, where, f"the value chosen for {', '.join(odd)} was never tried")
    return settings


def _read_exhibits(texts: Mapping[str, str]) -> dict[str, Exhibit]:
    found: dict[str, Exhibit] = {}
    for name, text in texts.items():
        for raw in _validated(text, name, _Exhibits).exhibits:
            require(raw.label not in found, f"{name}: {raw.label}", "comes twice")
            found[raw.label] = _exhibit(raw, f"{name}: {raw.label}")
    known: set[str] = set()
    every = [cell for exhibit in found.values() for cell in exhibit.cells]
    for cell in every:
        require(cell.id not in known, cell.id, "comes twice")
        known.add(cell.id)
    for cell in every:
        exists = cell.reference is None or cell.reference in known
        require(exists, cell.id, f"refers to {cell.reference!r}, which does not exist")
    return found


def _exhibit(raw: _Exhibit, where: str) -> Exhibit:
    cells = [cell for part in raw.parts for row in part.rows for cell in _row_cells(raw, part, row, where)]
    for note in raw.notes:
        concerned = {cell.id for cell in cells if fnmatchcase(cell.id, note.cells)}
        require(bool(concerned), where, f"the note on {note.cells!r} concerns no cell")
        cells = [replace(cell, notes=(*cell.notes, note.text)) if cell.id in concerned else cell for cell in cells]
    properties = {row.name: row.properties for part in raw.parts for row in part.rows if row.properties}
    return Exhibit(raw.label, raw.about, tuple(cells), properties)


def _row_cells(raw: _Exhibit, part: _Part, row: _Row, where: str) -> list[Cell]:
    """One row's cells. The values stand in the order of the columns, each column's quantities side by side."""
    slots = [(column, quantity) for column in part.columns for quantity in column.quantities]
    texts = row.values.split() if row.values is not None else ["."] * len(slots)
    require(len(texts) == len(slots), f"{where}: {row.name}", f"has {len(texts)} values for {len(slots)} columns")
    seeds = _settings().seeds
    cells = []
    for (column, quantity), text in zip(slots, texts, strict=True):
        require(quantity in QUANTITIES, f"{where}: {column.name}", f"unknown quantity {quantity!r}")
        name = column.name if len(column.quantities) == 1 else f"{column.name}/{quantity}"
        cells.append(
            Cell(
                id=f"{raw.label.partition(':')[2]}/{name}/{row.name}",
                row=row.name,
                column=name,
                quantity=quantity,
                setting=_setting(column, row, where),
                seeds=seeds[:1] if raw.one_seed or QUANTITIES[quantity].exact else seeds,
                published=None if text == "." else Published.parse(text, quantity),
                reference=column.reference.format(row=row.name) if column.reference else None,
                details={**raw.details, **column.details, **row.details},
            )
        )
    return cells


def _setting(column: _Column, row: _Row, where: str) -> Setting:
    presets = _settings().presets
    require(column.preset in presets, f"{where}: {column.name}", f"unknown preset {column.preset!r}")
    method, client = _method(row.row)
    alpha, rounds = column.alpha, presets[column.preset].rounds
    if method in CENTRALISED:
        epochs = presets[column.preset].centralised_epochs
        if epochs is None:
            raise InvalidInput(f"{where}: {column.preset} has no centralised_epochs")
        alpha, rounds = None, epochs
    changes = {**column.changes, **row.changes}
    unknown = sorted(set(changes) - {*LOCAL_TRAINING, *METHOD_OPTIONS})
    require(not unknown, f"{where}: {row.name}", f"unknown change {', '.join(unknown)}")
    standard = Setting(column.preset, alpha, method, client, rounds)
    usual = {**standard.local_training, **standard.options}
    differing = {name: value for name, value in changes.items() if usual.get(name) != value}
    return replace(standard, changes=tuple(sorted(differing.items())))


def _method(row: str) -> tuple[str, Client]:
    """A row's method and client: ``feddyn-sam`` is FedDyn with SAM clients, ``data`` needs neither."""
    if row == "data":
        row = "fedavg"
    if row in FIXED_CLIENTS:
        return row, FIXED_CLIENTS[row]
    method, _, client = row.rpartition("-")
    if method in EITHER_CLIENT and client in ("sgd", "sam"):
        return method, "sam" if client == "sam" else "sgd"
    raise InvalidInput(
        f"{row}: unknown row; it must be a method, and for {', '.join(EITHER_CLIENT)} its client too"
    )


def _searches(preset: str, method: str, client: Client) -> list[Search]:
    settings = _settings()
    require(preset in settings.presets, preset, f"unknown preset; known are {', '.join(settings.presets)}")
    require(method in (*FIXED_CLIENTS, *EITHER_CLIENT), method, "not a method of the paper")
    only = FIXED_CLIENTS.get(method, client)
    require(client == only, method, f"its clients use {only}, not {client}")
    listed = TUNED_AS.get(method, method)
    return [
        search
        for search in settings.searches
        if search.method == listed and (client == "sam" or not search.sam_only)
    ]


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.3)
    return f"; did you mean {close[0]!r}?" if close else ""
