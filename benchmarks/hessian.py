"""Hessian products and the largest eigenvalue of the paper's network, ours and other ways.

    python -m benchmarks.hessian [--quick]

Ways are run in turn, several times over, and medians are printed, so that what else the machine is doing hits all.
Ways are compared by the seconds that one thread was computing: waiting for a core that others hold does not count.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgloss.analysis import Hessian, MeanLoss, lanczos
from fedgloss.analysis.tangents import hessian_vector, hessian_vector_by_double_backward
from fedgloss.compute import available_cores
from fedgloss.models import build

RESIDUAL, MOST_GRADIENTS, MOST_SECONDS, LEAST_SPEEDUP = 1e-2, 3.0, 240.0, 1.5
BATCH = 64


@dataclass(frozen=True)
class Problem:
    """The network after a little training on pictures whose classes differ, so that its spectrum has a top."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, samples: int) -> Problem:
        generator = torch.Generator().manual_seed(0)
        patterns = torch.randn(10, 3, 32, 32, generator=generator)
        targets = torch.randint(10, (samples,), generator=generator)
        inputs = 0.3 * patterns[targets] + torch.randn(samples, 3, 32, 32, generator=generator)
        torch.manual_seed(0)
        model = build("cnn", (3, 32, 32), 10)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for step in range(40):
            some = torch.arange(step * BATCH, (step + 1) * BATCH) % samples
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[some]), targets[some]).backward()
            optimizer.step()
        return cls(model, inputs, targets)

    def loss(self, samples: int, workers: int | None = None) -> MeanLoss:
        return MeanLoss(
            self.model,
            F.cross_entropy,
            (self.inputs[:samples], self.targets[:samples]),
            workers=workers,
            batch_size=BATCH,
        )


def medians(
    ways: dict[str, Callable[[], object]], repetitions: int, clock: Callable[[], float]
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(repetitions):
        for name, way in ways.items():
            start = clock()
            way()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def one_batch(problem: Problem, channels_last: bool, repetitions: int) -> dict[str, float]:
    """Thread seconds of a gradient and of a product of one batch, in gradients."""
    torch.set_num_threads(1)
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = build("cnn", (3, 32, 32), 10)
    model.load_state_dict(problem.model.state_dict())
    model.to(memory_format=order)  # type: ignore[call-overload]
    inputs, targets = problem.inputs[:BATCH].contiguous(memory_format=order), problem.targets[:BATCH]
    parameters = list(model.parameters())
    vector = [torch.randn_like(parameter) for parameter in parameters]
    arguments = model, F.cross_entropy, parameters, inputs, targets, vector
    names = [name for name, _ in model.named_parameters()]
    values = {name: p.detach() for name, p in zip(names, parameters, strict=True)}
    along = dict(zip(names, vector, strict=True))

    def loss_at(named: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, named, (inputs,)), targets)

    found = medians(
        {
            "gradient": lambda: torch.autograd.grad(F.cross_entropy(model(inputs), targets), parameters),
            "product, ours": lambda: hessian_vector(*arguments),
            "product, backward twice": lambda: hessian_vector_by_double_backward(*arguments),
            "product, forward over backward": lambda: torch.func.jvp(torch.func.grad(loss_at), (values,), (along,)),
        },
        repetitions,
        time.thread_time,
    )
    return {name: seconds / found["gradient"] for name, seconds in found.items()}


def whole_set(problem: Problem, samples: int, repetitions: int) -> float:
    """A product of a data set, in gradients of the same data set, both as users call them; process seconds."""
    loss = problem.loss(samples, workers=1)
    vector = torch.randn(loss.layout.size)
    found = medians(
        {
            "gradient": lambda: loss.gradient(loss.params),
            "product": lambda: loss.hessian_vector(loss.params, vector),
        },
        repetitions,
        time.process_time,
    )
    return found["product"] / found["gradient"]


def against_curvlinops(
    problem: Problem, samples: int, repetitions: int
) -> tuple[dict[str, float], dict[str, float]]:
    """One thread's seconds to the residual, and the residual reached, of ours and of curvlinops with eigsh."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import curvlinops
        from scipy.sparse.linalg import eigsh
    torch.set_num_threads(1)
    loss = problem.loss(samples, workers=1)
    parameters = list(problem.model.parameters())

    def true_residual(value: float, vector: Tensor) -> float:
        image = loss.hessian_vector(loss.params, vector)
        return float((image - value * vector).norm()) / abs(value)

    def ours() -> None:
        found = lanczos(Hessian(loss), tolerance=RESIDUAL)
        last["ours"] = found.largest.value, found.vectors[0]

    def theirs(batch: int, basis: int) -> Callable[[], None]:
        data = list(zip(problem.inputs[:samples].split(batch), problem.targets[:samples].split(batch), strict=True))

        def run() -> None:
            operator = curvlinops.HessianLinearOperator(
                problem.model, nn.CrossEntropyLoss(), parameters, data, check_deterministic=False
            ).to_scipy()
            start = np.random.default_rng(0).standard_normal(operator.shape[0]).astype(np.float32)
            values, vectors = eigsh(operator, k=1, which="LA", tol=RESIDUAL, ncv=basis, v0=start)
            last[name] = float(values[0]), _in_our_order(loss, problem.model, vectors[:, 0])

        name = f"curvlinops + eigsh, batches of {batch}, ncv={basis}"
        return run

    last: dict[str, tuple[float, Tensor]] = {}
    ways: dict[str, Callable[[], object]] = {"ours": ours}
    for batch, basis in ((BATCH, 20), (BATCH, 6), (4 * BATCH, 6)):
        ways[f"curvlinops + eigsh, batches of {batch}, ncv={basis}"] = theirs(batch, basis)
    seconds = medians(ways, repetitions, time.process_time)
    return seconds, {name: true_residual(*found) for name, found in last.items()}


def _in_our_order(loss: MeanLoss, model: nn.Module, vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Tensor:
    """A vector over ``model.parameters()`` as one of the layout's."""
    sizes = [p.numel() for p in model.parameters()]
    parts = torch.from_numpy(np.ascontiguousarray(vector)).split(sizes)
    named = {name: part.view(p.shape) for (name, p), part in zip(model.named_parameters(), parts, strict=True)}
    return loss.layout.pack(named).double()


def verdict(holds: bool) -> str:
    return "holds" if holds else "MISSED"


def main(arguments: Sequence[str] = ()) -> None:
    quick = "--quick" in arguments
    samples, few, repetitions = (2_000, 512, 3) if quick else (10_000, 1_024, 5)
    problem = Problem.of(samples)
    print(f"A product of one batch of {BATCH}, in gradients of the same batch and memory order:")
    ratios = {}
    for name, channels_last in (("channels last", True), ("channels first", False)):
        ratios[name] = one_batch(problem, channels_last, 4 * repetitions)
        for way, ratio in ratios[name].items():
            if way != "gradient":
                print(f"  {name:15} {way:33} {ratio:5.2f}")
    whole = whole_set(problem, few, repetitions)
    print(f"  over {few:,} pictures, as users call it: {whole:.2f}")
    print(f"  at most {MOST_GRADIENTS:g} gradients: {verdict(whole <= MOST_GRADIENTS)}")

    seconds, residuals = against_curvlinops(problem, few, repetitions if not quick else 1)
    print(f"lambda_1 on {few:,} pictures to a residual of {RESIDUAL:g}, one thread:")
    for way, spent in seconds.items():
        print(f"  {way:48} {spent:6.2f} s   {spent / seconds['ours']:5.2f} x ours   residual {residuals[way]:.1e}")
    equal = [way for way in seconds if way != "ours" and residuals[way] <= 1.2 * RESIDUAL]
    speedup = min(seconds[way] for way in equal) / seconds["ours"]
    print(
        f"  at least {LEAST_SPEEDUP:g} times as fast as the best of the others: {verdict(speedup >= LEAST_SPEEDUP)}"
    )

    start = time.perf_counter(), time.process_time()
    found = lanczos(Hessian(problem.loss(samples)), tolerance=RESIDUAL)
    clock, computing = time.perf_counter() - start[0], time.process_time() - start[1]
    cores = available_cores()
    print(
        f"lambda_1 = {found.largest.value:.4f} on {samples:,} pictures: {found.products} products, residual "
        f"{found.largest.residual / found.largest.value:.1e}, {clock:.0f} s on {cores} cores, "
        f"of which computing {computing / cores:.0f} s"
    )
    print(f"  under {MOST_SECONDS:g} s: {verdict(clock < MOST_SECONDS)}")
    figures = {"ratio": round(whole, 2), "speedup": round(speedup, 2), "seconds": round(clock), "batch": ratios}
    print(json.dumps({"hessian": figures}))


if __name__ == "__main__":
    main(sys.argv[1:])
