"""Searching hyper-parameters: every trial a run of its own, judged on validation data, never on the test set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config, parse_value
from .errors import InvalidInput, require

Space = Mapping[str, Sequence[Any]]
"""Configuration key -> the values to try."""


@dataclass(frozen=True)
class Trial:
    """One point of the space and what it reached; ``value`` is None where the run diverged."""

    settings: Mapping[str, Any]
    value: float | None
    folder: Path


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``["local.lr=0.01,0.1"]`` -> ``{"local.lr": [0.01, 0.1]}``."""
    space: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        found = [parse_value(v.strip()) for v in values.split(",") if v.strip()]
        if not equals or not key.strip() or not found:
            raise InvalidInput(
                f"--grid {text}: write it as key=value1,value2, for example --grid local.lr=0.01,0.1"
            )
        space[key.strip()] = found
    return space


def folder_of(out: Path, settings: Mapping[str, Any]) -> Path:
    """The same point always has the same folder, so a sweep that is started again finds its finished runs."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return out / "trials" / digest


def search(
    space: Space,
    make: Callable[[Mapping[str, Any]], Config],
    run: Callable[[Config, Path], Mapping[str, Any]],
    out: Path,
    *,
    trials: int | None,
    metric: str = "accuracy",
) -> list[Trial]:
    """Try the space, all of it or as many ``trials`` as asked for, and return every trial, best first.

    The whole grid is walked point by point; fewer trials than points are chosen by TPE. Trials are kept in SQLite
    under ``out``: several processes may work on one sweep, and a sweep that was stopped goes on.
    """
    try:
        import optuna
    except ImportError:
        raise InvalidInput("sweep: pip install 'fedgloss[sweep]'") from None
    require(bool(space), "--grid", "names nothing to try")
    points = 1
    for values in space.values():
        points *= len(values)
    whole = trials is None or trials >= points
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    out.mkdir(parents=True, exist_ok=True)
    described = json.dumps({key: list(values) for key, values in space.items()}, sort_keys=True)
    choices = {key: [json.dumps(value) for value in values] for key, values in space.items()}
    sampler = optuna.samplers.GridSampler(choices, seed=0) if whole else optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(
        study_name=hashlib.sha256(described.encode()).hexdigest()[:12],
        storage=f"sqlite:///{out / 'sweep.db'}",
        sampler=sampler,
        direction="maximize",
        load_if_exists=True,
    )

    def objective(trial: Any) -> float:
        settings = {k: json.loads(trial.suggest_categorical(k, c)) for k, c in choices.items()}
        folder = folder_of(out, settings)
        trial.set_user_attr("settings", settings)
        trial.set_user_attr("folder", str(folder))
        summary = run(make(settings), folder)
        if summary["status"] == "interrupted":
            study.stop()
            raise optuna.TrialPruned
        if summary["status"] == "diverged":
            return 0.0
        return float(summary["reported"][metric])

    finished = optuna.trial.TrialState.COMPLETE
    done = sum(trial.state is finished for trial in study.get_trials(deepcopy=False))
    wanted = points if whole else (trials or points)
    if done < wanted:
        study.optimize(objective, n_trials=wanted - done, catch=(InvalidInput,))
    found: dict[str, Trial] = {}
    for trial in study.get_trials(deepcopy=False, states=(finished,)):
        folder = str(trial.user_attrs["folder"])
        value = trial.value if trial.value else None
        found[folder] = Trial(trial.user_attrs["settings"], value, Path(folder))
    return sorted(found.values(), key=lambda t: -1.0 if t.value is None else t.value, reverse=True)
