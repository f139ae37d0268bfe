"""The local optimiser every method shares: plain SGD from a start point, fresh each round."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .algorithm import ClientTask
from .errors import InvalidInput, require
from .gradients import GradientRule
from .messages import Scalars
from .schedules import Scheduled, at, check_scheduled
from .vectors import Vector


@dataclass(frozen=True)
class Correction:
    """What a method adds to the gradient at the unperturbed point: ``scale * g + shift + pull * w``.

    Proximal, ADMM and control-variate terms are all of this form. Kept apart are the constant ``shift``
    and the ``pull`` that follows the parameters, because clipping covers the first only (spec 0.1).
    """

    shift: Vector | None = None
    pull: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class LocalResult:
    """Where local training went: ``delta = end - start``, and what normalises it."""

    delta: Vector
    scalars: Scalars
    momentum: Vector | None = None


@dataclass(frozen=True)
class LocalTraining:
    """Epochs of mini-batch SGD with torch's semantics: ``v = m v + (G + wd w)``, ``w = w - lr v``.

    The momentum buffer starts at zero in every exchange. Weight decay acts at the unperturbed point.
    ``clip`` bounds the norm of the gradient plus its constant shift, as FL-Simulator does with 10.
    """

    lr: Scheduled = 0.01
    epochs: int = 1
    batch_size: int = 64
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check_scheduled(self.lr, "lr", zero=False)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name}: must be a whole number of at least 1, got {value!r}")
        require(self.weight_decay >= 0, "weight_decay", f"must be 0 or more, got {self.weight_decay}")
        require(0 <= self.momentum < 1, "momentum", f"must lie in [0, 1), got {self.momentum}")
        require(self.clip is None or self.clip > 0, "clip", f"must be positive, got {self.clip}")

    def run(
        self,
        start: Vector,
        task: ClientTask,
        round: int,
        gradient: GradientRule,
        correction: Correction = Correction(),
        momentum: Vector | None = None,
    ) -> LocalResult:
        """Train from ``start``. The scalars are what normalises ``delta``: ``steps``, and ``lr_sum``, the
        distance a constant unit gradient would have moved (momentum included); and the mean ``loss``.
        """
        lr, pull = at(self.lr, round), correction.pull + self.weight_decay
        params, velocity = start.clone(), momentum
        steps, gain, lr_sum = 0, 0.0, 0.0
        for batch in task.batches(self.batch_size, self.epochs):
            direction = gradient(params, batch, task, round)
            if correction.scale != 1:
                direction.mul_(correction.scale)
            if correction.shift is not None:
                direction.add_(correction.shift)
            if self.clip is not None:
                length = torch.linalg.vector_norm(direction)
                direction.mul_(torch.clamp(self.clip / (length + 1e-6), max=1.0))
            if pull:
                direction.add_(params, alpha=pull)
            if self.momentum:
                if velocity is not None:
                    direction.add_(velocity, alpha=self.momentum)
                velocity = direction
            params.sub_(direction, alpha=lr)
            steps, gain = steps + 1, self.momentum * gain + 1
            lr_sum += lr * gain
        scalars = {"steps": float(steps), "lr_sum": lr_sum, "loss": task.mean_loss()}
        return LocalResult(params.sub_(start), scalars, velocity)
