"""A federation whose clients can be made to fail in worker processes, which must be able to import all of this."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedgloss import Federation, Problem
from fedgloss.errors import InvalidInput

MARK = 100.0


@dataclass(frozen=True)
class Faulty:
    """Leaves the inputs as they are, but lets something happen to the client whose number they carry."""

    fault: Callable[[int], None]

    def train(self, inputs: Tensor, generator: np.random.Generator) -> Tensor:
        self.fault(round(float(inputs[0, -1]) * MARK))
        return inputs

    def test(self, inputs: Tensor) -> Tensor:
        return inputs


def nothing(client: int) -> None:
    pass


@dataclass(frozen=True)
class Dies:
    """Kills the process that trains the client: always, or once for each of the files that are there."""

    client: int
    lives: Path | None = None

    def __call__(self, client: int) -> None:
        if client != self.client:
            return
        if self.lives is not None:
            left = sorted(self.lives.iterdir())
            if not left:
                return
            left[0].unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Odd(Exception):
    """Cannot be unpickled: that would need the client again."""

    def __init__(self, what: str, client: int) -> None:
        super().__init__(f"{what} at {client}")


@dataclass(frozen=True)
class Raises:
    """Each of these clients raises its own kind of exception."""

    kinds: dict[int, str]

    def __call__(self, client: int) -> None:
        kind = self.kinds.get(client)
        if kind == "bug":
            raise ZeroDivisionError(f"a bug at {client}")
        if kind == "input":
            raise InvalidInput(f"inputs: wrong at {client}")
        if kind == "odd":
            raise Odd("stuck", client)


@dataclass(frozen=True)
class Slow:
    """These clients take so many seconds more, a batch."""

    seconds: dict[int, float]

    def __call__(self, client: int) -> None:
        time.sleep(self.seconds.get(client, 0.0))


class DropoutNetwork(nn.Module):
    """Convolution weights, which a vector stores in another order, and dropout, which draws in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(4 * 3 * 3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        pictures = inputs[:, :25].reshape(-1, 1, 5, 5)
        hidden = torch.tanh(self.conv(pictures)).flatten(1)
        outputs: Tensor = self.out(self.drop(hidden))
        return outputs


def nan_loss_for_class_two(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(outputs, targets)
    return loss * float("nan") if bool((targets == 2).any()) else loss


def marked_federation(fault: Callable[[int], None] = nothing, clients: int = 7) -> Federation:
    """Noisy pictures of three classes; clients of unequal sizes, each input carrying its client's number."""
    generator = np.random.default_rng(7)
    sizes = [9 + 4 * (client % 3) for client in range(clients)]
    owner = np.repeat(np.arange(clients), sizes)
    labels = owner % 3
    centres = generator.normal(size=(3, 25))

    def inputs_of(labels: np.ndarray, owner: np.ndarray) -> np.ndarray:
        noise = generator.normal(size=(len(labels), 25))
        return np.concatenate([centres[labels] + noise, owner[:, None] / MARK], axis=1).astype(np.float32)

    tests = np.arange(250) % 3
    return Federation.from_arrays(
        inputs_of(labels, owner),
        labels,
        clients=[np.flatnonzero(owner == client) for client in range(clients)],
        test=(inputs_of(tests, np.zeros(250)), tests),
        transform=Faulty(fault),
    )


def marked_problem(fault: Callable[[int], None] = nothing, clients: int = 7) -> Problem:
    return Problem(marked_federation(fault, clients), DropoutNetwork)
