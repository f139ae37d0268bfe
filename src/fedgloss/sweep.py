"""Searching hyper-parameters: every trial a run of its own, judged on validation data, never on the test set."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .config import Config, parse_value
from .errors import Busy, InvalidInput, require
from .files import disk_errors

if TYPE_CHECKING:
    import optuna

Space = Mapping[str, Sequence[Any]]
"""Configuration key -> the values to try."""


@dataclass(frozen=True)
class Trial:
    """One point of the space and what it reached over the seeds; a run that diverged reached None, and so did its
    point."""

    settings: Mapping[str, Any]
    values: Sequence[float | None]
    folders: Sequence[Path]

    @property
    def value(self) -> float | None:
        found = [value for value in self.values if value is not None]
        return fmean(found) if len(found) == len(self.values) else None


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``["local.lr=0.01,0.1"]`` -> ``{"local.lr": [0.01, 0.1]}``."""
    space: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key, found = key.strip(), [parse_value(v.strip()) for v in values.split(",") if v.strip()]
        if not equals or not key or not found:
            raise InvalidInput(
                f"--grid {text}: write it as key=value1,value2, for example --grid local.lr=0.01,0.1"
            )
        require(key not in space, f"--grid {text}", f"{key} has its values already; list them all at once")
        space[key] = found
    return space


def size_of(space: Space) -> int:
    """How many points a space has."""
    return prod(len(values) for values in space.values())


def identity(config: Config) -> str:
    """Equal for configurations that ask for the same numbers, over the same rounds."""
    content = config.model_dump(mode="json", exclude={"run"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def search(
    space: Space,
    make: Callable[[Mapping[str, Any]], Config],
    run: Callable[[Config, Path], Mapping[str, Any]],
    out: Path,
    *,
    seeds: Sequence[int],
    trials: int | None,
    metric: str = "accuracy",
) -> list[Trial]:
    """Try the space, all of it or as many ``trials`` as asked for, and return every trial, best first.

    A point is as good as the mean over ``seeds``, a run each. The whole grid is walked point by point; fewer trials
    than points are chosen by TPE. Trials are kept in SQLite under ``out``, apart for each configuration they vary:
    several processes may work on one sweep (a point that another one is at is passed over), and a sweep that was
    stopped goes on.
    """
    try:
        import optuna
    except ImportError:
        raise InvalidInput("sweep: pip install 'fedgloss[sweep]'") from None
    choices = {key: [json.dumps(value) for value in values] for key, values in space.items()}
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.CategoricalDistribution(texts) for key, texts in choices.items()
    }
    study = _open_study(out, f"{identity(make({}))} {json.dumps(choices, sort_keys=True)} {list(seeds)}")

    def attempt(parameters: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        settings = {key: json.loads(text) for key, text in parameters.items()}
        configs = [make({**settings, "training.seed": seed}) for seed in seeds]
        folders = [out / "trials" / identity(config) for config in configs]
        values = [
            None if summary["status"] == "diverged" else float(summary["reported"][metric])
            for summary in map(run, configs, folders)
        ]
        trial = Trial(settings, values, folders)
        facts = {"settings": settings, "values": values, "folders": [str(folder) for folder in folders]}
        return trial.value or 0.0, facts

    if trials is None or trials >= size_of(space):
        for values in product(*choices.values()):
            parameters = dict(zip(choices, values, strict=True))
            if any(parameters == trial.params for trial in _complete(study)):
                continue
            with suppress(Busy):
                value, facts = attempt(parameters)
                study.add_trial(
                    optuna.trial.create_trial(
                        params=parameters, distributions=distributions, value=value, user_attrs=facts
                    )
                )
    else:
        for _ in range(trials - len(_complete(study))):
            trial = study.ask(distributions)
            try:
                value, facts = attempt(trial.params)
            except BaseException as error:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                if isinstance(error, Busy):
                    continue
                raise
            for name, fact in facts.items():
                trial.set_user_attr(name, fact)
            study.tell(trial, value)
    found = {json.dumps(trial.params, sort_keys=True): _trial(trial) for trial in _complete(study)}
    return sorted(found.values(), key=lambda t: -1.0 if t.value is None else t.value, reverse=True)


def _open_study(out: Path, described: str) -> optuna.Study:
    """The trials of this sweep so far; another configuration or other values are another study in the same file."""
    import optuna
    from sqlalchemy import URL
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = out / "sweep.db"
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes that begin at once would both make the tables
        try:
            study = optuna.create_study(
                study_name=hashlib.sha256(described.encode()).hexdigest()[:12],
                storage=URL.create("sqlite", database=str(file)).render_as_string(),  # any name, %, ? and # too
                direction="maximize",
                load_if_exists=True,
            )
            begun = len(study.get_trials(deepcopy=False))
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise InvalidInput(f"{file}: cannot be used ({reason})") from error
    study.sampler = optuna.samplers.TPESampler(seed=begun, constant_liar=True)  # who joins begins elsewhere
    return study


def _complete(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]


def _trial(trial: optuna.trial.FrozenTrial) -> Trial:
    facts = trial.user_attrs
    return Trial(facts["settings"], facts["values"], [Path(folder) for folder in facts["folders"]])
