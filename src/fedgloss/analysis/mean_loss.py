"""The mean loss over a fixed data set as a function of the flat vector: its value, gradient and Hessian products.

Sums run over fixed batches in fixed order, in float64, and every batch is computed by one thread. So nothing
depends on the number of workers, and on the batch size only in the last bits of a batch.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..compute import available_cores, compute_threads
from ..data import ArraySamples, Samples, Subset
from ..errors import InvalidInput, require
from ..randomness import stream
from ..tasks import Loss, Metric, accuracy
from ..vectors import Layout, Vector, norm
from .tangents import hessian_vector, hessian_vector_by_double_backward

Data: TypeAlias = Samples | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Samples, a pair of tensors (inputs, targets), or batches of such pairs."""

Weighting: TypeAlias = Literal["samples", "batches"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Subject:
    """What a figure was measured on. Every result carries one."""

    samples: int
    parameters: int
    split: str = "data"
    weights: str = "model"
    preprocessing: str = "as given"
    weighting: Weighting = "samples"
    precision: str = "float32"


class MeanLoss:
    """A network's mean loss over all samples of a data set, as a function of its weights.

    ``data`` is a pair of tensors, an iterable of such batches (a ``DataLoader``), or ``Samples``; ``transform``
    turns what it holds into the network's input. The network is copied and runs in evaluation mode; the caller's is
    left alone. ``weighting="batches"`` gives a short last batch the weight of a full one, as the paper's released
    code does: then, and only then, does ``batch_size`` change the figures.

    >>> inputs, targets = torch.eye(3), torch.tensor([0, 1, 2])
    >>> loss = MeanLoss(nn.Linear(3, 3), nn.functional.cross_entropy, (inputs, targets))
    >>> round(loss.value(torch.zeros(12)), 4)
    1.0986
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Data,
        *,
        transform: Callable[[Tensor], Tensor] | None = None,
        metrics: Mapping[str, Metric] | None = None,
        batch_size: int = 64,
        weighting: Weighting = "samples",
        workers: int | None = None,
        device: str | None = None,
        split: str = "data",
        preprocessing: str = "as given",
    ) -> None:
        require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
        require(workers is None or workers >= 1, "workers", f"must be at least 1, got {workers}")
        require(weighting in ("samples", "batches"), "weighting", f"is 'samples' or 'batches', got {weighting!r}")
        self.layout = Layout.of(model, running_statistics=True)
        flat = self.layout.flatten(model)
        self.params = flat.cpu()
        self.samples = as_samples(data, split)
        self.split = split
        self._loss = loss
        self._transform = transform
        self._metrics = metrics
        self._batch_size = batch_size
        self._weighting: Weighting = weighting
        self._preprocessing = preprocessing
        self._device = torch.device(device) if device else flat.device
        self._workers = workers or (available_cores() if self._device.type == "cpu" else 1)
        self._copies = [_Copy(model, self.layout, self._device) for _ in range(self._workers)]
        self._product: _BatchProduct | None = None

    def on(self, data: Data, *, split: str) -> MeanLoss:
        """The same network and settings on other data, sharing the network's copies."""
        other = copy.copy(self)
        other.samples = as_samples(data, split)
        other.split = split
        return other

    def subject(self, weights: str = "model") -> Subject:
        return Subject(
            samples=len(self.samples),
            parameters=self.layout.size,
            split=self.split,
            weights=weights,
            preprocessing=self._preprocessing,
            weighting=self._weighting,
            precision=str(self.layout.dtype).removeprefix("torch."),
        )

    def check(self, vector: Vector, what: str = "weights") -> None:
        """Refuse a vector of another network or one that holds a NaN."""
        self.layout.check(vector, what)
        if (name := self.layout.first_non_finite(vector)) is not None:
            raise InvalidInput(f"{what}: {name!r} holds a NaN or infinity: the run diverged or the file is damaged")

    def value(self, params: Vector) -> float:
        """The mean loss."""
        return self.evaluate(params)["loss"]

    def evaluate(self, params: Vector) -> dict[str, float]:
        """The means of the loss and the metrics."""

        def work(network: _Copy, inputs: Tensor, targets: Tensor) -> dict[str, float]:
            with torch.no_grad():
                outputs = network.module(inputs)
                found = {"loss": float(self._loss(outputs, targets))}
                metrics = _usual_metrics(outputs, targets) if self._metrics is None else self._metrics
                for name, metric in metrics.items():
                    values = metric(outputs, targets)
                    if values.shape != (len(targets),):
                        raise InvalidInput(f"metrics.{name}: must give one value per sample")
                    found[name] = float(values.cpu().double().mean())
            return found

        totals: dict[str, float] = {}
        for weight, found in self._batches(params, work):
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + weight * value
        return {name: total / self._weight for name, total in totals.items()}

    def gradient(self, params: Vector) -> tuple[float, Vector]:
        """The mean loss and its gradient, in float64."""

        def work(network: _Copy, inputs: Tensor, targets: Tensor) -> tuple[float, Vector]:
            loss = self._loss(network.module(inputs), targets)
            parts = torch.autograd.grad(loss, network.parameters, allow_unused=True)
            return float(loss.detach()), self._vector(parts)

        total, gradient = 0.0, torch.zeros(self.layout.size, dtype=torch.float64)
        for weight, (loss, part) in self._batches(params, work):
            total += weight * loss
            gradient.add_(part, alpha=weight)
        return total / self._weight, gradient.div_(self._weight)

    def hessian_vector(self, params: Vector, vector: Vector) -> Vector:
        """The Hessian of the mean loss at ``params`` times ``vector``, in float64."""
        self.layout.check(vector, "vector")
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
            if self._product is None:
                self._product = self._choose_product(params)
            product = self._product
            local = vector.to(self._device, self.layout.dtype)

            def work(network: _Copy, inputs: Tensor, targets: Tensor) -> Vector:
                directions = list(self.layout.views(local))
                parts = product(network.module, self._loss, network.parameters, inputs, targets, directions)
                return self._vector(parts)

            total = torch.zeros(self.layout.size, dtype=torch.float64)
            for weight, part in self._batches(params, work):
                total.add_(part, alpha=weight)
        if not bool(torch.isfinite(total).all()):
            raise InvalidInput(f"weights: the Hessian on {self.split} is not finite there")
        return total.div_(self._weight)

    def disjoint(self, samples: int, most: int, seed: int) -> list[MeanLoss]:
        """The same on up to ``most`` random subsets of so many samples, no two of which share any."""
        require(samples >= 1, "samples", f"must be at least 1, got {samples}")
        available = len(self.samples)
        require(samples <= available, "samples", f"asked for {samples}, {self.split} holds {available}")
        order = stream(seed, "analysis subsets").permutation(available)
        count = min(most, available // samples)
        parts = [np.sort(order[i * samples : (i + 1) * samples]) for i in range(count)]
        return [self.on(Subset(self.samples, part), split=self.split) for part in parts]

    def _batches(
        self, params: Vector, work: Callable[[_Copy, Tensor, Tensor], Result]
    ) -> Iterator[tuple[int, Result]]:
        """Each batch's weight and result, in order, computed by the workers."""
        self.layout.check(params, "weights")
        shared = params.to(self._device, self.layout.dtype)
        free: SimpleQueue[_Copy] = SimpleQueue()
        for network in self._copies:
            network.bind(self.layout, shared)
            free.put(network)

        def run(start: int, stop: int) -> Result:
            inputs, targets = self._fetch(start, stop)
            network = free.get()
            try:
                return work(network, inputs, targets)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise self._unfit(error, inputs, targets) from error
            finally:
                free.put(network)

        spans = self._spans
        with (
            compute_threads(1),
            ThreadPoolExecutor(self._workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            waiting = deque(pool.submit(run, *span) for span in spans)
            try:
                for start, stop in spans:
                    yield self._weigh(start, stop), waiting.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)  # at Ctrl-C, what runs ends and no more begins

    @property
    def _spans(self) -> list[tuple[int, int]]:
        total, size = len(self.samples), self._batch_size
        return [(start, min(start + size, total)) for start in range(0, total, size)]

    def _weigh(self, start: int, stop: int) -> int:
        return stop - start if self._weighting == "samples" else 1

    @property
    def _weight(self) -> int:
        return sum(self._weigh(*span) for span in self._spans)

    def _fetch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.samples.fetch(np.arange(start, stop, dtype=np.int64))
        if self._transform is not None:
            inputs = self._transform(inputs)
        inputs = self._place(inputs)
        if inputs.ndim == 4:  # as the layout keeps convolution weights
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, self._place(targets)

    def _unfit(self, error: Exception, inputs: Tensor, targets: Tensor) -> InvalidInput:
        """What to tell whoever gave a network, a loss and data that do not fit each other."""
        if isinstance(error, InvalidInput):
            return error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"inputs {tuple(inputs.shape)} {inputs.dtype}, targets {tuple(targets.shape)} {targets.dtype}"
        return InvalidInput(f"model: fails on {self.split} ({what}): {reason}")

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, self.layout.dtype if tensor.is_floating_point() else None)

    def _vector(self, parts: Sequence[Tensor | None]) -> Vector:
        vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=self._device)
        for view, part in zip(self.layout.views(vector), parts, strict=True):
            if part is not None:
                view.copy_(part)
        return vector.cpu()

    def _choose_product(self, params: Vector) -> _BatchProduct:
        """The fast product where it gives what double backward gives on two samples, else double backward."""
        inputs, targets = self._fetch(0, min(2, len(self.samples)))
        network = self._copies[0]
        network.bind(self.layout, params.to(self._device, self.layout.dtype))
        random = torch.from_numpy(stream(0, "analysis trial").standard_normal(self.layout.size))
        directions = list(self.layout.views(self._place(random)))

        def trial(product: _BatchProduct) -> Vector:
            parts = product(network.module, self._loss, network.parameters, inputs, targets, directions)
            return self._vector(parts)

        try:
            sure = trial(hessian_vector_by_double_backward)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise self._unfit(error, inputs, targets) from error
        try:
            fast = trial(hessian_vector)
        except Exception:  # a function this product does not know; whatever it says, the other way works
            return hessian_vector_by_double_backward
        tolerance = 10 * torch.finfo(self.layout.dtype).eps ** 0.5
        agree = norm((fast - sure).double()) < tolerance * norm(sure.double())  # two zeros say nothing
        return hessian_vector if agree else hessian_vector_by_double_backward


def _usual_metrics(outputs: Any, targets: Tensor) -> Mapping[str, Metric]:
    """Accuracy, where the outputs are a score for each class and the targets its number."""
    scores = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    return {"accuracy": accuracy} if scores and targets.ndim == 1 and not targets.is_floating_point() else {}


_BatchProduct: TypeAlias = Callable[
    [nn.Module, Loss, Sequence[Tensor], Tensor, Tensor, Sequence[Tensor]], list[Tensor | None]
]


class _Copy:
    """A worker's own copy of the network, whose weights are views of a vector all workers share."""

    def __init__(self, model: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = copy.deepcopy(model).to(device).eval()
        named = dict(self.module.named_parameters())
        self.parameters = [named[entry.name] for entry in layout.entries]

    def bind(self, layout: Layout, params: Vector) -> None:
        for parameter, view in zip(self.parameters, layout.views(params), strict=True):
            parameter.data = view


def as_samples(data: Data, split: str = "data") -> Samples:
    """Samples from whatever holds inputs and targets; refuses an empty set."""
    samples: Samples
    if hasattr(data, "fetch"):
        samples = cast(Samples, data)
    elif isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        samples = ArraySamples(*data)
    else:
        samples = _collected(data, split)
    require(len(samples) > 0, split, "holds no samples")
    return samples


def _collected(batches: Any, split: str) -> ArraySamples:
    """All batches of an iterable as one pair of tensors: a second pass must see the same samples."""
    try:
        pairs = [(torch.as_tensor(inputs), torch.as_tensor(targets)) for inputs, targets in batches]
        inputs = torch.cat([pair[0] for pair in pairs]) if pairs else torch.empty(0)
        targets = torch.cat([pair[1] for pair in pairs]) if pairs else torch.empty(0)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"{split}: must be a pair of tensors (inputs, targets) or batches of them, got {type(batches).__name__}"
        ) from error
    return ArraySamples(inputs, targets)
