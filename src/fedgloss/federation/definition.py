"""What a federation learns: the same for the server and every site, but for the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch.nn.functional as F
from torch import nn

from ..algorithm import Algorithm
from ..algorithms import METHODS
from ..config import Config, resolve, to_toml
from ..data import ArraySamples, Federation, Identity, Partition, Samples, Transform
from ..errors import InvalidInput
from ..job import Network, build_algorithm, build_local, build_plan
from ..local import LocalTraining
from ..tasks import Loss, Metric, Objective, Problem, accuracy, try_out
from ..training import Plan
from .privacy import Privacy

Arrays: TypeAlias = Samples | tuple[Any, Any]
"""Samples, or arrays of inputs and targets."""


@dataclass(frozen=True)
class Learning:
    """A method, a network and a plan; ``client_data`` is called at a site, with its node configuration, and
    ``test_data``, if there is one, at the server."""

    algorithm: Algorithm
    plan: Plan
    model: Callable[[], nn.Module]
    sites: int
    client_data: Callable[[Mapping[str, Any]], Arrays]
    test_data: Callable[[], Arrays] | None = None
    transform: Transform = field(default_factory=Identity)
    loss: Loss = F.cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": accuracy})
    config: str = ""
    privacy: Privacy | None = None

    def problem(self) -> Problem:
        """What is learnt, without anybody's data."""
        nobody = Federation.from_arrays([[0.0]], [0], clients=[[0]])
        return Problem(nobody, self.model, self.loss, self.metrics)

    def objective(self) -> Objective:
        return Objective(self.problem().build(self.plan.seed), self.loss)


def from_config(
    path: Path,
    *,
    shape: tuple[int, ...],
    classes: int,
    client_data: Callable[[Mapping[str, Any]], Arrays],
    test_data: Callable[[], Arrays] | None = None,
    transform: Transform | None = None,
    privacy: Privacy | None = None,
) -> Learning:
    """What a configuration file describes, ``data.clients`` being the number of sites; ``shape`` is that of one
    input of the network."""
    config = resolve(path).config
    if config.data.clients is None:
        raise InvalidInput(f"{path}: data.clients: say how many sites there are")
    _require_federated(path, config)
    network = Network(config.model.name, shape, classes, config.model.weights, dict(config.model.options))
    return Learning(
        algorithm=_algorithm(config, privacy),
        plan=build_plan(config),
        model=network,
        sites=config.data.clients,
        client_data=client_data,
        test_data=test_data,
        transform=transform or Identity(),
        config=to_toml(config),
        privacy=privacy,
    )


def _require_federated(path: Path, config: Config) -> None:
    """Refuse what a federation would not do: to leave it out in silence would be to do something else."""
    name, training = config.algorithm["name"], config.training
    if METHODS[name].centralised:
        raise InvalidInput(f"{path}: algorithm.name: {name} trains on all data in one place; choose another method")
    only: dict[str, tuple[Any, Any, str]] = {
        "training.precision": (training.precision, "float32", "sites compute in float32"),
        "training.evaluate_on": (training.evaluate_on, "test", "the server evaluates on its test_data alone"),
        "training.client_accuracy": (training.client_accuracy, False, "the server does not see the sites' samples"),
        "run.device": (config.run.device, "cpu", "server and sites compute on the CPU"),
    }
    for key, (value, possible, reason) in only.items():
        if value != possible:
            raise InvalidInput(f"{path}: {key}: {reason}")


def _algorithm(config: Config, privacy: Privacy | None) -> Algorithm:
    algorithm = build_algorithm(config)
    if privacy is None:
        return algorithm
    if not isinstance(getattr(algorithm, "local", None), LocalTraining):
        raise InvalidInput(f"privacy: {config.algorithm['name']} cannot be made private")
    return replace(algorithm, local=privacy.clipped(build_local(config)))  # type: ignore[type-var]


def as_samples(arrays: Arrays, what: str) -> Samples:
    """The samples a user's loader gave."""
    if not isinstance(arrays, tuple | list):
        if all(hasattr(arrays, name) for name in ("fetch", "targets", "__len__")):
            return arrays
        raise InvalidInput(f"{what}: must return inputs and targets, got {type(arrays).__name__}")
    if len(arrays) != 2:
        raise InvalidInput(f"{what}: must return inputs and targets, got {len(arrays)} things")
    try:
        return Federation.from_arrays(*arrays, clients=[range(len(arrays[1]))]).train
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what}: {error}") from None


def check_samples(objective: Objective, samples: Samples, transform: Transform, what: str) -> Federation:
    """Samples that the network can be trained on, as a federation of one client."""
    try:
        federation = Federation(samples, Partition.of([np.arange(len(samples))]), transform=transform)
        try_out(objective, objective.initial(), federation)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error
    return federation


def evaluation_federation(learning: Learning, objective: Objective) -> Federation | None:
    """The server's test set, as what evaluation takes."""
    if learning.test_data is None:
        return None
    samples = as_samples(learning.test_data(), "test_data")
    if not isinstance(samples, ArraySamples):
        samples = ArraySamples(*samples.fetch(np.arange(len(samples))))
    return replace(check_samples(objective, samples, learning.transform, "test_data"), test=samples)
