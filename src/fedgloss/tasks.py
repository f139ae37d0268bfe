"""Model and client data become mini-batch gradients of a vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compute import Precision, computing_in
from .data import Federation, Samples, Subset, Transform, sent
from .errors import InvalidInput, require
from .messages import Purpose
from .randomness import seed_generators, seeded_torch, stream, torch_seed
from .vectors import Layout, Vector

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the batch's mean loss, a scalar."""

Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one value per sample."""

HALVED_FROM = 32  # samples in a batch: two halves of a smaller one cost more than a helper saves
EVALUATION_BATCH = 100  # no slower than larger ones, and small beside the memory of a training step


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


@dataclass(frozen=True)
class Problem:
    """What is to be learnt: a federation, a network, a loss, and what to measure on the test set.

    ``model`` is a module, whose weights are the starting point, or a function that builds one.
    """

    federation: Federation
    model: nn.Module | Callable[[], nn.Module]
    loss: Loss = F.cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": accuracy})
    device: str = "cpu"
    precision: Precision = "float32"

    def build(self, seed: int) -> nn.Module:
        """A new module with the starting weights of this seed."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        with seeded_torch(torch_seed(seed, "model")):
            module = self.model()
        require(isinstance(module, nn.Module), "model", f"built a {type(module).__name__}, no nn.Module")
        return module


@dataclass(frozen=True)
class Batch:
    """A mini-batch ready for the network, with the seed of whatever the network itself draws (dropout)."""

    inputs: Tensor
    targets: Tensor
    seed: int

    def halves(self) -> tuple[Batch, Batch]:
        """Each with memory of its own: matrix products may round differently on other addresses."""
        middle = (len(self.targets) + 1) // 2
        return (
            Batch(self.inputs[:middle].clone(), self.targets[:middle].clone(), self.seed),
            Batch(self.inputs[middle:].clone(), self.targets[middle:].clone(), self.seed + 1),
        )


class Helper(Protocol):
    """Whoever else may compute the second half of each batch."""

    def start(self, params: Vector, half: Batch) -> bool:
        """Whether somebody has begun."""

    def finish(self) -> tuple[Tensor, Vector] | None:
        """Loss and gradient of what was begun, or None where the helper is gone."""


class NoHelper:
    """Both halves are computed here."""

    def start(self, params: Vector, half: Batch) -> bool:
        return False

    def finish(self) -> None:
        return None


class Objective:
    """A network and a loss as functions of a flat vector."""

    def __init__(self, module: nn.Module, loss: Loss, device: str = "cpu") -> None:
        self.layout = Layout.of(module)
        self.module = module.to(device)
        self.loss = loss
        self.device = torch.device(device)
        named = dict(self.module.named_parameters())
        self._parameters = [named[entry.name] for entry in self.layout.entries]

    def initial(self) -> Vector:
        """The module's weights as they are now."""
        return self.layout.flatten(self.module)

    def gradient(self, params: Vector, batch: Batch, precision: Precision = "float32") -> tuple[Tensor, Vector]:
        """The batch's mean loss and its gradient, a new vector."""
        self._bind(params)
        self._switch(training=True)
        seed_generators(batch.seed, self.device)
        with computing_in(precision, self.device):
            loss = self.loss(self.module(batch.inputs), batch.targets)
        parts = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        return loss.detach(), self.layout.join(parts)

    @torch.no_grad()
    def outputs(self, params: Vector, inputs: Tensor) -> Tensor:
        """What the network answers in evaluation mode."""
        self._bind(params)
        self._switch(training=False)
        outputs: Tensor = self.module(inputs)
        return outputs

    def _switch(self, *, training: bool) -> None:
        if self.module.training != training:  # it walks all layers, which a small network feels
            self.module.train(training)

    def _bind(self, params: Vector) -> None:
        for parameter, view in zip(self._parameters, self.layout.views(params), strict=True):
            parameter.data = view


def try_out(objective: Objective, params: Vector, federation: Federation) -> None:
    """One small batch through network, loss and gradient, so that what does not fit is said before training."""
    inputs, targets = federation.train.fetch(federation.partition[0][:2])
    inputs = federation.transform.test(inputs.to(objective.device))
    what = f"a batch of inputs {tuple(inputs.shape)} {inputs.dtype}, targets {tuple(targets.shape)} {targets.dtype}"
    try:
        batch = Batch(inputs, targets.to(objective.device), seed=0)
        with seeded_torch(0):
            loss, gradient = objective.gradient(params, batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput(f"model: cannot be trained on {what}: {reason}") from error
    if not bool(torch.isfinite(loss)) or objective.layout.first_non_finite(gradient):
        raise InvalidInput(f"model: loss or gradient is not finite at the starting weights, on {what}")
    if objective.loss is F.cross_entropy and not targets.is_floating_point():
        classes = objective.outputs(params, inputs).shape[1]
        low, high = int(federation.train.targets.min()), int(federation.train.targets.max())
        if low < 0 or high >= classes:
            label = low if low < 0 else high
            raise InvalidInput(f"model: has {classes} outputs, but the training data has the class {label}")


class ClientObjective:
    """One client in one exchange: its shuffled batches and their gradients (a ``ClientTask``)."""

    def __init__(
        self,
        objective: Objective,
        samples: Samples,
        transform: Transform,
        *,
        client: int,
        seed: int,
        round: int,
        purpose: Purpose,
        precision: Precision = "float32",
    ) -> None:
        self._objective = objective
        self._samples = samples
        self._transform = transform
        self._stream = stream(seed, purpose, round, client)
        self._precision: Precision = precision
        self._losses: list[tuple[int, Tensor]] = []
        self._last: Batch | None = None
        self._helper: Helper | None = None

    @property
    def size(self) -> int:
        return len(self._samples)

    @property
    def layout(self) -> Layout:
        return self._objective.layout

    def share(self, helper: Helper) -> None:
        """From now on a batch's gradient is the mean of two halves', the second one computed by whoever may.

        The bits are the same whether the helper helps or not. Only the mean cross-entropy is known to be the mean
        of its halves; with other losses, and on other devices than the CPU, batches stay whole.
        """
        if self._objective.loss is F.cross_entropy and self._objective.device.type == "cpu":
            self._helper = helper

    def batches(self, batch_size: int, epochs: int) -> Iterator[Batch]:
        device = self._objective.device
        for _ in range(epochs):
            order = self._stream.permutation(len(self._samples))
            for start in range(0, len(order), batch_size):
                inputs, targets = self._samples.fetch(order[start : start + batch_size])
                inputs = self._transform.train(sent(inputs, device), self._stream)
                yield Batch(inputs, sent(targets, device), int(self._stream.integers(2**62)))

    def gradient(self, params: Vector, batch: Batch) -> Vector:
        halved = self._helper is not None and len(batch.targets) >= HALVED_FROM
        loss, gradient = self._of_halves(params, batch) if halved else self._whole(params, batch)
        if batch is not self._last:  # SAM's second look at a batch is not training loss
            self._losses.append((len(batch.targets), loss))
            self._last = batch
        return gradient

    def _whole(self, params: Vector, batch: Batch) -> tuple[Tensor, Vector]:
        return self._objective.gradient(params, batch, self._precision)

    def _of_halves(self, params: Vector, batch: Batch) -> tuple[Tensor, Vector]:
        assert self._helper is not None
        first, second = batch.halves()
        begun = self._helper.start(params, second)
        loss, gradient = self._whole(params, first)
        found = self._helper.finish() if begun else None
        other_loss, other = found or self._whole(params, second)
        share = len(second.targets) / len(batch.targets)
        return (1 - share) * loss + share * other_loss, gradient.mul_(1 - share).add_(other, alpha=share)

    def mean_loss(self) -> float:
        if not self._losses:
            return 0.0
        counts = [count for count, _ in self._losses]
        losses: list[float] = torch.stack([loss for _, loss in self._losses]).tolist()  # one wait for the device
        return sum(count * loss for count, loss in zip(counts, losses, strict=True)) / sum(counts)


def client_tasks(
    objective: Objective, federation: Federation, seed: int, precision: Precision = "float32"
) -> Callable[[int, int, Purpose], ClientObjective]:
    """What a simulating transport asks for: (client, round, purpose) -> task."""

    def task(client: int, round: int, purpose: Purpose) -> ClientObjective:
        samples = Subset(federation.train, federation.partition[client])
        return ClientObjective(
            objective,
            samples,
            federation.transform,
            client=client,
            seed=seed,
            round=round,
            purpose=purpose,
            precision=precision,
        )

    return task


def evaluate(
    objective: Objective,
    params: Vector,
    samples: Samples,
    federation: Federation,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """Means over all samples, in fixed batches, summed in float64: the same whatever the machine is doing."""
    starts = evaluation_starts(samples)
    sums = [evaluate_batch(objective, params, samples, federation, metrics, start) for start in starts]
    return evaluation_means(sums, samples)


def evaluation_starts(samples: Samples) -> Sequence[int]:
    """Where the batches of an evaluation begin: its parts, which any process may compute."""
    return range(0, len(samples), EVALUATION_BATCH)


def evaluate_batch(
    objective: Objective,
    params: Vector,
    samples: Samples,
    federation: Federation,
    metrics: Mapping[str, Metric],
    start: int,
) -> dict[str, float]:
    """The sums of loss and metrics over the batch that begins at this sample."""
    indices = np.arange(start, min(start + EVALUATION_BATCH, len(samples)), dtype=np.int64)
    inputs, targets = samples.fetch(indices)
    inputs = federation.transform.test(inputs.to(objective.device))
    targets = targets.to(objective.device)
    outputs = objective.outputs(params, inputs)
    sums = {"loss": float(objective.loss(outputs, targets)) * len(indices)}
    for name, metric in metrics.items():
        values = metric(outputs, targets)
        if values.shape != (len(indices),):
            raise InvalidInput(
                f"metrics.{name}: must give one value per sample, shape ({len(indices)},), "
                f"got {tuple(values.shape)}"
            )
        sums[name] = float(values.cpu().double().sum())
    return sums


def evaluation_means(sums: Sequence[Mapping[str, float]], samples: Samples) -> dict[str, float]:
    """The means over all samples from the sums of all batches, added in the order of the batches."""
    return {name: sum(part[name] for part in sums) / len(samples) for name in sums[0]}


SampleSet: TypeAlias = Literal["test", "validation"] | int
"""A set of samples by name: the test set, the validation set, or the training samples of a client."""


def samples_of(federation: Federation, which: SampleSet) -> Samples:
    if isinstance(which, int):
        return Subset(federation.train, federation.partition[which])
    samples = federation.test if which == "test" else federation.validation
    require(samples is not None, which, f"the federation {federation.name!r} has no {which} set")
    assert samples is not None
    return samples


def client_spread(per_client: Sequence[Mapping[str, float]], metrics: Iterable[str]) -> dict[str, float]:
    """How evenly a model serves the clients: what was found on every client's own samples, as mean and 10th, 50th
    and 90th percentile over clients."""
    spread: dict[str, float] = {}
    for name in metrics:
        values = np.array([found[name] for found in per_client])
        spread[f"client_{name}_mean"] = float(values.mean())
        for share in (10, 50, 90):
            spread[f"client_{name}_p{share}"] = float(np.percentile(values, share))
    return spread
