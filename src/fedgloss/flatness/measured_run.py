"""A run opened for measuring: on which terms, its weights, its data, its last round once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from ..algorithm import UnreliableTransport, run_round
from ..analysis import MeanLoss
from ..analysis.mean_loss import Weighting
from ..checkpoint import Checkpoints
from ..config import Config
from ..data import Samples, Subset, Transform
from ..data.cifar import CIFAR10, CIFAR100
from ..data.transforms import PictureTransform
from ..errors import InvalidInput, require
from ..export import run_config, run_weights
from ..job import build_algorithm, build_plan, build_problem
from ..messages import Broadcast, Update
from ..records import RunFolder, read_json, read_lines
from ..tasks import Objective, Problem
from ..transports import DiskStore, MemoryStore, on_device, open_simulation
from ..vectors import Layout, Vector, norm

Model: TypeAlias = Literal["last", "average100"]
Split: TypeAlias = Literal["train", "test"]
Constants: TypeAlias = Literal["own", "swapped"]
Fidelity: TypeAlias = Literal["paper", "released"]

SURFACE_SAMPLES = 2000
REPLAY_TOLERANCE = 1e-3
SWAPPED = {"cifar10": CIFAR100, "cifar100": CIFAR10}
"""Whose constants the paper's released code normalises a data set with."""


@dataclass(frozen=True)
class Terms:
    """Which weights are measured, on which samples, and how these are prepared and weighed.

    ``average100`` is the mean of the models of the run's evaluation window, by default a tenth of its rounds and at
    most 100. ``swapped`` normalises CIFAR-10 with the constants of CIFAR-100 and the other way round;
    ``weighting="batches"`` gives a short last batch of 64 the weight of a full one.
    """

    model: Model = "last"
    on: Split = "train"
    samples: int | None = None
    constants: Constants = "own"
    weighting: Weighting = "samples"
    seed: int = 0

    @property
    def stem(self) -> str:
        """The part of a result's file name that tells these terms from others."""
        return self._stem(self.on)

    @property
    def stem_of_splits(self) -> str:
        """The same where one file holds several splits."""
        return self._stem()

    def _stem(self, *split: str) -> str:
        parts = [self.model, *split, *([] if self.samples is None else [str(self.samples)])]
        parts += ["swapped"] if self.constants == "swapped" else []
        parts += ["batches"] if self.weighting == "batches" else []
        parts += [f"seed{self.seed}"] if self.seed else []
        return "-".join(parts)


RELEASED = Terms(model="average100", on="test", constants="swapped", weighting="batches")
"""How the paper's released code measures; with ``method="power"``."""


@dataclass(frozen=True)
class LastRound:
    """The clients of a run's last round, trained again: local models before aggregation, updates and sizes.

    ``exact``: the round led to the very bits the run reached.
    """

    models: Mapping[int, Vector]
    deltas: Mapping[int, Vector]
    sizes: Mapping[int, int]
    exact: bool

    def first(self, clients: int | None) -> dict[int, Vector]:
        """The models of so many of its clients, in the order of the round; all by default."""
        if clients is None:
            return dict(self.models)
        require(clients >= 1, "clients", f"must be at least 1, got {clients}")
        found = len(self.models)
        require(clients <= found, "clients", f"{clients} asked for, but the last round had {found}")
        return dict(list(self.models.items())[:clients])


class MeasuredRun:
    """A run opened for measuring: its network, its data, its checkpoints. Refuses one that diverged."""

    def __init__(self, path: Path | str, *, workers: int | None = None) -> None:
        self.folder = RunFolder(Path(path)).require()
        self.path = self.folder.path
        self.name = self.path.resolve().name
        self.workers = workers
        summary = read_json(self.folder.summary) if self.folder.summary.exists() else {}
        if summary.get("status") == "diverged":
            where = (summary.get("divergence") or {}).get("round")
            raise InvalidInput(f"{self.path}: the run diverged in round {where}: there is no minimum to measure")
        self.config: Config = run_config(self.folder)
        self.checkpoints = Checkpoints(self.folder)
        kept = self.checkpoints.rounds()
        if not kept:
            raise InvalidInput(f"{self.path}: has no checkpoint yet; go on with it: fedgloss resume {self.path}")
        self.rounds = kept[-1]
        self.problem: Problem = build_problem(self.config)
        self.module: nn.Module = self.problem.build(self.config.training.seed)
        self.layout = Layout.of(self.module)
        if self.checkpoints.manifest(self.rounds).layout != self.layout.fingerprint:
            raise InvalidInput(
                f"{self.path}: its checkpoint is of another network than the {self.config.model.name!r} of its "
                "config.toml; measure the run it belongs to"
            )

    def usual_terms(self, fidelity: Fidelity) -> Terms:
        """Those of the paper, or of its released code, which swaps constants where there are any to swap."""
        if fidelity == "paper":
            return Terms()
        return RELEASED if self.config.data.name in SWAPPED else replace(RELEASED, constants="own")

    @property
    def algorithm(self) -> str:
        """The method's name, with the clients' optimiser where it has a choice."""
        chosen = self.config.algorithm
        return "-".join(str(chosen[key]) for key in ("name", "client") if key in chosen)

    def weights(self, model: Model = "last") -> Vector:
        """The weights to measure, checked."""
        vector = run_weights(self.folder, average=model == "average100", done=self.rounds)
        self.layout.check(vector, f"{self.path}: weights")
        if (name := self.layout.first_non_finite(vector)) is not None:
            raise InvalidInput(f"{self.path}: its weights {name!r} hold a NaN or infinity: nothing to measure")
        return vector

    def models(self, model: Model) -> int:
        """Of how many models the weights are the mean."""
        return build_plan(self.config).evaluation_window if model == "average100" else 1

    def loss(self, terms: Terms) -> MeanLoss:
        """The mean loss on the whole split, without augmentation."""
        transform, preprocessing = self._transform(terms.constants)
        return MeanLoss(
            self.module,
            self.problem.loss,
            self._samples(terms.on),
            transform=transform.test,
            metrics=self.problem.metrics,
            weighting=terms.weighting,
            workers=self.workers,
            device=self.problem.device,
            split=terms.on,
            preprocessing=preprocessing,
        )

    def most_samples(self, on: Split, wanted: int = SURFACE_SAMPLES) -> int:
        """So many samples as wanted, or all the split has."""
        return min(wanted, len(self._samples(on)))

    def own_samples(self, client: int) -> Samples:
        federation = self.problem.federation
        return Subset(federation.train, federation.partition[client])

    @cached_property
    def last_round(self) -> LastRound:
        """The last round once more, from the state before it, which every finished run keeps."""
        before = self.rounds - 1
        if before not in self.checkpoints.rounds():
            raise InvalidInput(
                f"{self.path}: the state before its last round, which the local models need, was not kept; "
                f"finish the run: fedgloss resume {self.path}"
            )
        used = read_json(self.folder.environment).get(
            "precision", "float32"
        )  # bfloat16 may have been asked in vain
        problem = replace(self.problem, precision=used)
        objective = Objective(problem.build(self.config.training.seed), problem.loss, problem.device)
        state = on_device(self.checkpoints.state(before), objective.device)
        plan, algorithm = build_plan(self.config), build_algorithm(self.config)
        lines = read_lines(self.folder.rounds, "round")
        require(len(lines) > before, str(self.folder.rounds), f"ends before round {before}; put it back as it was")
        dropped = lines[before].get("dropped", {})
        sampled = plan.sampling.cohort(state.population, plan.seed, state.round)
        cohort = [client for client in sampled if str(client) not in dropped]
        disk, memories = DiskStore(self.folder.clients, size=self.layout.size), MemoryStore()
        versions = self.checkpoints.versions(before)
        for client in cohort:
            if client in versions:
                memories.put(client, disk.read(client, versions[client]), before)
        with open_simulation(algorithm, problem, objective, memories, seed=plan.seed) as simulation:
            watched = _Watched(simulation.transport)
            reached = run_round(algorithm, state, cohort, watched)["params"].cpu()
        expected = self.checkpoints.state(self.rounds)["params"].cpu()
        if norm(reached - expected) > REPLAY_TOLERANCE * norm(expected):
            raise InvalidInput(
                f"{self.path}: its last round, run again, leads elsewhere: the data or the program changed since"
            )
        return LastRound(watched.models, watched.deltas, watched.sizes, torch.equal(reached, expected))

    def pseudo_gradient(self) -> tuple[str, Vector] | None:
        """The last pseudo-gradient, or the server's last step where the method keeps none; None without either."""
        state = self.checkpoints.state(self.rounds)
        if "pseudo_gradient" in state.vectors:
            return "pseudo-gradient", state["pseudo_gradient"]
        if self.rounds - 1 not in self.checkpoints.rounds():
            return None
        return "last server step", self.checkpoints.state(self.rounds - 1)["params"] - state["params"]

    def delta_eps(self) -> dict[str, float]:
        """The mean of each reading of delta_eps over the run's last evaluation window."""
        window = build_plan(self.config).evaluation_window
        lines = [line["delta_eps"] for line in read_lines(self.folder.rounds, "round")[-window:]]
        names = sorted({name for line in lines for name in line})
        return {name: float(np.mean([line[name] for line in lines if name in line])) for name in names}

    def _samples(self, on: Split) -> Samples:
        federation = self.problem.federation
        if on == "train":
            return Subset(federation.train, np.sort(federation.partition.indices))
        require(on == "test", "on", f"is 'train' or 'test', got {on!r}")
        if federation.test is None or len(federation.test) == 0:
            raise InvalidInput(
                f"{self.path}: its data {federation.name!r} have no test samples; measure --on train"
            )
        return federation.test

    def _transform(self, constants: Constants) -> tuple[Transform, str]:
        transform = self.problem.federation.transform
        if constants == "own":
            return transform, "as in evaluation"
        other = SWAPPED.get(self.config.data.name)
        if other is None or not isinstance(transform, PictureTransform):
            raise InvalidInput(
                f"constants: 'swapped' is for cifar10 and cifar100; the data of {self.path} are "
                f"{self.config.data.name!r}"
            )
        return replace(transform, mean=other.mean, std=other.std), f"constants of {other.name}"


class _Watched:
    """A transport that keeps what each client arrived at in the round's training exchange."""

    def __init__(self, transport: UnreliableTransport) -> None:
        self._transport = transport
        self.models: dict[int, Vector] = {}
        self.deltas: dict[int, Vector] = {}
        self.sizes: dict[int, int] = {}

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update]:
        for client, update in zip(cohort, self._transport(broadcast, cohort), strict=True):
            assert isinstance(update, Update)  # nobody drops out in this process
            if broadcast.purpose == "train":
                self.models[client] = (broadcast["params"] + update["delta"]).cpu()
                self.deltas[client] = update["delta"].cpu()
                self.sizes[client] = update.size
            yield update
