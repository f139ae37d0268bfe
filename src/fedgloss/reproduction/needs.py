"""What an exhibit of the paper takes on this machine, before anything of it is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from .. import job, plan
from ..algorithms import METHODS
from ..config import Config, resolve
from ..errors import InvalidInput
from ..reports import paper
from ..transports import usable_workers
from .terms import Terms


def counted(runs: int) -> str:
    return f"{runs:,} run{'' if runs == 1 else 's'}"


@dataclass(frozen=True)
class Needs:
    """What an exhibit takes, before anything is measured."""

    data: str
    presets: tuple[str, ...]
    runs: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.data}; {counted(self.runs)}, {self.rounds:,} rounds"

    @classmethod
    def of(cls, exhibit: paper.Exhibit) -> Needs:
        runs = paper.runs(exhibit.cells)
        presets = tuple(dict.fromkeys(cell.setting.preset for cell in exhibit.cells))
        data = dict.fromkeys(preset.partition("-")[0] for preset in presets)
        return cls(", ".join(data), presets, len(runs), sum(runs.values()))


class Rates:
    """What a preset's runs take here, measured with FedAvg; a SAM client takes two gradients for one."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._found: dict[str, plan.Forecast | str] = {}

    def of(self, preset: str) -> plan.Forecast | str:
        """A forecast, or what is missing for it."""
        if preset not in self._found:
            try:
                options = {"algorithm.name": "fedavg", "fidelity": self._terms.fidelity}
                self._found[preset] = forecast_of(resolve(preset, options, self._terms.settings).config)
            except InvalidInput as error:
                self._found[preset] = str(error)
        return self._found[preset]

    def seconds(self, setting: paper.Setting, rounds: int) -> float | None:
        found = self.of(setting.preset)
        if isinstance(found, str):
            return None
        evaluations = found.evaluations * rounds / found.rounds * found.seconds_per_evaluation
        gradients = 2 if setting.client == "sam" else 1
        exchanges = 2 if setting.method == "naive-fedgloss" else 1
        training = rounds * found.seconds_per_round * gradients
        if METHODS[setting.method].centralised:  # an epoch over everybody's samples
            return training * found.clients / found.cohort
        return training * exchanges + evaluations

    def disk(self, setting: paper.Setting) -> int:
        found = self.of(setting.preset)
        if isinstance(found, str):
            return 0
        clients = 1 if METHODS[setting.method].centralised else found.clients
        return found.disk + clients * vectors_kept(setting.preset, setting.method) * 4 * found.parameters


@cache
def vectors_kept(preset: str, method: str) -> int:
    """By each client of a method, for itself."""
    algorithm = job.build_algorithm(resolve(preset, {"algorithm.name": method}).config)
    return len(algorithm.init_client(torch.zeros(1)).vectors)


def forecast_of(config: Config) -> plan.Forecast:
    execution = job.build_execution(config)
    workers = usable_workers(execution.workers, config.run.device)
    return plan.forecast(job.build_job(config), job.build_local(config), execution, workers)
