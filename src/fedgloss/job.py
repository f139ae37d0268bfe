"""From a configuration to all that a run needs: data, network, method and plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from .algorithm import Algorithm
from .algorithms import METHODS, build
from .compute import check_device
from .config import Config, bytes_of, to_toml
from .data import Federation
from .data.datasets import load
from .data.federate import SPLITS, federate
from .divergence import Limits
from .errors import InvalidInput, require
from .local import LocalTraining
from .models import build as build_model
from .models import load_weights
from .run import Execution, Job
from .sampling import ExactCohort, IndependentCohort, Sampling
from .tasks import Problem
from .training import Plan

SITES = "sites"
"""The name of data that only the sites of a federation have."""


@dataclass(frozen=True)
class Network:
    """Builds the configured network; a value, so that every worker can build its own."""

    name: str
    shape: tuple[int, ...]
    classes: int
    weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> nn.Module:
        module = build_model(self.name, self.shape, self.classes, **self.options)
        if self.weights is not None:
            load_weights(module, self.weights)
        return module


def build_federation(config: Config) -> Federation:
    """The configured data, divided among its clients."""
    data = config.data
    if data.name == SITES:
        raise InvalidInput(
            "data.name: a federation's data are at its sites; go on with its run by flwr run, and take its model "
            "from model.safetensors in the run's folder"
        )
    options = dict(data.options)
    if data.path is not None:
        options["path"] = data.path
    if config.fidelity == "released" and options.get("emulate_leak"):
        options.setdefault("lists", data.lists)
    loaded = load(data.name, **{k: v for k, v in options.items() if v is not None})
    if isinstance(loaded, Federation):
        return loaded
    if data.split not in SPLITS:
        raise InvalidInput(f"data.split: unknown split {data.split!r}; there are {', '.join(SPLITS)}")
    if data.split == "official" and data.lists is None:
        raise InvalidInput(
            "data.lists: the official split needs the folder of the authors' JSON files, from your copy of their "
            "repository: --set data.lists=PATH"
        )
    settings: dict[str, Any] = {
        "clients": data.clients,
        "alpha": data.alpha,
        "classes_per_client": data.classes_per_client,
        "path": data.lists if data.split == "official" else None,
    }
    return federate(loaded, split=data.split, seed=data.seed, validation=data.validation, **settings)


def build_local(config: Config) -> LocalTraining:
    return LocalTraining(**config.local.model_dump())


def build_algorithm(config: Config) -> Algorithm:
    options = dict(config.algorithm)
    return build(options.pop("name"), build_local(config), **options)


def build_problem(config: Config) -> Problem:
    federation = build_federation(config)
    if METHODS[config.algorithm["name"]].centralised:
        federation = federation.union()
    picture, _ = federation.train.fetch(federation.partition[0][:1].astype(np.int64))
    shape = tuple(federation.transform.test(picture).shape[1:])
    classes = len(federation.classes) or int(federation.train.targets.max()) + 1
    network = Network(config.model.name, shape, classes, config.model.weights, dict(config.model.options))
    return Problem(federation, network, device=config.run.device, precision=config.training.precision)


def build_plan(config: Config) -> Plan:
    training = config.training
    sampling: Sampling = ExactCohort(training.cohort)
    if training.participation is not None:
        sampling = IndependentCohort(training.participation)
    if METHODS[config.algorithm["name"]].centralised:
        sampling = ExactCohort(1)
    return Plan(
        rounds=training.rounds,
        sampling=sampling,
        seed=training.seed,
        eval_every=training.eval_every,
        window=training.window,
        true_delta_eps=training.true_delta_eps,
        limits=Limits(training.max_norm),
    )


def build_job(config: Config) -> Job:
    """Everything checked and loaded, ready to run."""
    check_device(config.run.device)
    algorithm, plan = build_algorithm(config), build_plan(config)
    problem = build_problem(config)
    plan.sampling.check(problem.federation.population)
    if config.training.evaluate_on == "validation":
        ok = problem.federation.validation is not None
        require(ok, "training.evaluate_on", "'validation' needs a share of the data: --set data.validation=0.1")
    return Job(
        algorithm=algorithm,
        problem=problem,
        plan=plan,
        config=to_toml(config),
        evaluate_on=config.training.evaluate_on,
        client_accuracy=config.training.client_accuracy,
    )


def build_execution(config: Config) -> Execution:
    run = config.run
    return Execution(
        transport=run.transport,
        address=run.address,
        workers=run.workers,
        on_failure=run.on_failure,
        checkpoint_seconds=run.checkpoint_seconds,
        keep_every=run.keep_every,
        client_memory=None if run.client_memory is None else bytes_of(run.client_memory),
    )
