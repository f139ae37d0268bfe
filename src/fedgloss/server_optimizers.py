"""Server optimisers: how a mean pseudo-gradient moves the global model (FedOpt, Reddi et al. 2021).

Each is a value: ``init`` names the vectors it keeps in the ``ServerState``, ``step`` returns the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from .errors import require
from .messages import ServerState
from .vectors import Vector


class ServerOptimizer(Protocol):
    def init(self, params: Vector) -> dict[str, Vector]: ...

    def step(self, state: ServerState, pseudo_gradient: Vector) -> dict[str, Vector]: ...


@dataclass(frozen=True)
class Sgd:
    """``w = w - lr * pseudo_gradient``; with ``lr = 1``, FedAvg's average."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, "server.lr", f"must be positive, got {self.lr}")

    def init(self, params: Vector) -> dict[str, Vector]:
        return {}

    def step(self, state: ServerState, pseudo_gradient: Vector) -> dict[str, Vector]:
        return {"params": state["params"].sub(pseudo_gradient, alpha=self.lr)}


@dataclass(frozen=True)
class Momentum:
    """FedAvgM: ``v = momentum v + pseudo_gradient``, ``w = w - lr v``."""

    momentum: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, "server.lr", f"must be positive, got {self.lr}")
        require(0 <= self.momentum < 1, "server.momentum", f"must lie in [0, 1), got {self.momentum}")

    def init(self, params: Vector) -> dict[str, Vector]:
        return {"momentum": torch.zeros_like(params)}

    def step(self, state: ServerState, pseudo_gradient: Vector) -> dict[str, Vector]:
        velocity = self.momentum * state["momentum"] + pseudo_gradient
        return {"params": state["params"].sub(velocity, alpha=self.lr), "momentum": velocity}


@dataclass(frozen=True)
class Adaptive:
    """FedAdagrad, FedAdam and FedYogi: a step scaled by a second moment, ``w = w - lr m / (sqrt(v) + tau)``.

    They differ in ``v`` alone. Defaults from Reddi et al.: b1 .9 (0 for Adagrad), b2 .99, tau 1e-3, v starts at
    tau squared, no bias correction. ``bias_correction`` gives torch's Adam: v starts at 0 and both moments are
    divided by ``1 - b^t``.
    """

    rule: Literal["adagrad", "adam", "yogi"]
    lr: float = 0.1
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False

    def __post_init__(self) -> None:
        require(self.rule in _SECOND_MOMENTS, "server.rule", f"must be adagrad, adam or yogi, got {self.rule!r}")
        require(self.lr > 0, "server.lr", f"must be positive, got {self.lr}")
        require(0 <= self.b1 < 1, "server.b1", f"must lie in [0, 1), got {self.b1}")
        require(0 <= self.b2 < 1, "server.b2", f"must lie in [0, 1), got {self.b2}")
        require(self.tau > 0, "server.tau", f"must be positive, got {self.tau}")

    def init(self, params: Vector) -> dict[str, Vector]:
        start = 0.0 if self.bias_correction else self.tau**2
        return {"momentum": torch.zeros_like(params), "second_moment": torch.full_like(params, start)}

    def step(self, state: ServerState, pseudo_gradient: Vector) -> dict[str, Vector]:
        first = self.b1 * state["momentum"] + (1 - self.b1) * pseudo_gradient
        second = _SECOND_MOMENTS[self.rule](state["second_moment"], pseudo_gradient.square(), self.b2)
        rate, scale = first, second
        if self.bias_correction:
            steps = state.round + 1
            rate = first / (1 - self.b1**steps)
            scale = second if self.rule == "adagrad" else second / (1 - self.b2**steps)
        params = state["params"] - self.lr * rate / (scale.sqrt() + self.tau)
        return {"params": params, "momentum": first, "second_moment": second}


_SECOND_MOMENTS: dict[str, Callable[[Vector, Vector, float], Vector]] = {
    "adagrad": lambda second, square, b2: second + square,
    "adam": lambda second, square, b2: b2 * second + (1 - b2) * square,
    "yogi": lambda second, square, b2: second - (1 - b2) * square * torch.sign(second - square),
}
