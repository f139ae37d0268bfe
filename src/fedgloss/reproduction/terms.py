"""From the paper's cells to runs: their configurations, their folders, and how they are found again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..algorithms import METHODS
from ..config import Config, resolve, to_toml
from ..reports.paper import LOCAL_TRAINING, Cell, Setting
from ..reports.reproduction import Finder, key

WINDOW = 100
"""Rounds over which the paper takes the mean of its accuracies."""


@dataclass(frozen=True)
class Terms:
    """How the paper's runs are carried out here."""

    fidelity: str | None = None
    settings: tuple[str, ...] = ()
    rounds: int | None = None
    scale: float | None = None
    seeds: tuple[int, ...] | None = None

    def seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """The cell's own, or as many of those asked for as it takes."""
        if self.seeds is None:
            return cell.seeds
        return self.seeds if len(cell.seeds) > 1 else self.seeds[:1]

    def planned(self, needed: int) -> int:
        """The rounds to run where so many would answer."""
        if self.scale is not None:
            return max(1, round(needed * self.scale))
        return needed if self.rounds is None else min(needed, self.rounds)

    def config(self, setting: Setting, seed: int, true_delta_eps: bool, needed: int | None = None) -> Config:
        """A setting of the paper as the configuration of a run."""
        options: dict[str, Any] = {
            "algorithm.name": setting.method,
            "algorithm.client": setting.client if METHODS[setting.method].takes_client else None,
            "data.alpha": setting.alpha,
            "training.rounds": self.planned(setting.rounds if needed is None else needed),
            "training.seed": seed,
            "training.true_delta_eps": true_delta_eps or None,
            "fidelity": self.fidelity,
        }
        for name, value in setting.changes:
            options[f"{'local' if name in LOCAL_TRAINING else 'algorithm'}.{name}"] = value
        if self.scale is not None:
            options |= self._shrunk(setting)
        return resolve(setting.preset, options, self.settings).config

    def _shrunk(self, setting: Setting) -> dict[str, Any]:
        """The window, the evaluations and T_s shrink with the rounds."""
        assert self.scale is not None
        usual = resolve(setting.preset).config.training
        warm_up = setting.options.get("warm_up", 0)
        found: dict[str, Any] = {
            "training.window": max(1, round(min(WINDOW, setting.rounds // 10) * self.scale)),
            "training.eval_every": max(1, round(usual.eval_every * self.scale)),
        }
        return found | ({"algorithm.warm_up": round(float(warm_up) * self.scale)} if warm_up else {})


@dataclass(frozen=True)
class Work:
    """A run that cells ask for, by the name of its folder."""

    name: str
    config: Config

    @property
    def key(self) -> str:
        """What it is found by, whatever its folder is called."""
        return key(_content(self.config))

    @property
    def method(self) -> str:
        """Equal for runs that differ in their seed alone."""
        return self.name.rpartition("-seed")[0]


def work(wanted: Sequence[Cell], terms: Terms) -> list[Work]:
    """Every run the cells need, once, with the rounds that answer them all; first those all methods are held to."""
    found: dict[str, Work] = {}
    for cell in wanted:
        if cell.rounds_needed == 0:
            continue
        with_true = cell.quantity == "delta_eps"
        for seed in terms.seeds_of(cell):
            config = terms.config(cell.setting, seed, with_true, cell.rounds_needed)
            one = Work(_folder_name(cell.setting, config, with_true), config)
            known = found.get(one.key)
            if known is None or known.config.training.rounds < config.training.rounds:
                found[one.key] = one
    return list(found.values())


def finder(terms: Terms, folder: Path) -> Finder:
    """Finds the runs of a folder by what the terms make of the paper's settings."""

    @cache
    def content(setting: Setting, true_delta_eps: bool) -> dict[str, Any]:
        return _content(terms.config(setting, 0, true_delta_eps))

    def config_of(setting: Setting, seed: int, true_delta_eps: bool) -> dict[str, Any]:
        found = content(setting, true_delta_eps)
        return {**found, "training": {**found["training"], "seed": seed}}

    return Finder(folder, config_of)


def _content(config: Config) -> dict[str, Any]:
    """The configuration as a run's folder holds it."""
    return tomllib.loads(to_toml(config))


def _folder_name(setting: Setting, config: Config, with_true: bool) -> str:
    parts = [setting.preset, setting.method]
    parts += [setting.client] if METHODS[setting.method].takes_client else []
    parts += [] if setting.alpha is None else [f"alpha{setting.alpha:g}"]
    parts += [f"{name}{value}" for name, value in setting.changes]
    parts += ["true-delta-eps"] if with_true else []
    parts += [] if config.fidelity == "paper" else [config.fidelity]
    return "-".join([*parts, f"seed{config.training.seed}"])
