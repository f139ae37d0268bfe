"""Small problems whose curvature is known: a network with its dense Hessian, and diagonal quadratics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedgloss.analysis import MeanLoss
from fedgloss.vectors import Layout


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def dense_hessian(module: nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """The Hessian in the layout's order, row by row, from the definition: one batch, plain autograd."""
    layout = Layout.of(module)
    names = [entry.name for entry in layout.entries]
    vector = layout.flatten(module).requires_grad_()
    parameters = dict(zip(names, layout.views(vector), strict=True))
    value = loss(torch.func.functional_call(module, parameters, (inputs,)), targets)
    (gradient,) = torch.autograd.grad(value, vector, create_graph=True)
    picks = torch.eye(layout.size, dtype=layout.dtype)
    rows = [torch.autograd.grad(gradient, vector, pick, retain_graph=True)[0] for pick in picks]
    return torch.stack(rows).detach()


@dataclass(frozen=True)
class Known:
    """A network, its data, and its Hessian as a matrix."""

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    hessian: Tensor

    @property
    def spectrum(self) -> Tensor:
        return torch.linalg.eigvalsh(self.hessian)

    def loss(self, **settings: int) -> MeanLoss:
        return MeanLoss(self.module, F.cross_entropy, (self.inputs, self.targets), **settings)  # type: ignore[arg-type]


class Elementwise(nn.Module):
    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (targets * outputs**2).sum(1).mean()


def quadratic(curvatures: Sequence[float], start: Sequence[float] | None = None) -> MeanLoss:
    """``f(w) = 1/2 sum_i curvature_i w_i^2``, whose Hessian is the diagonal of the curvatures."""
    rows = 3
    module = Elementwise(start if start is not None else [0.0] * len(curvatures))
    targets = torch.tensor([list(curvatures)] * rows, dtype=torch.float64)
    return MeanLoss(module, half_squares, (torch.ones_like(targets), targets))
