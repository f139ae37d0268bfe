"""Randomness is a function of (run seed, purpose, round, client): no global seed, no shared generator.

Any process that knows these four draws the same numbers, whatever ran before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def _entropy(seed: int, purpose: str, round: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, client])


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator of one purpose in one round for one client.

    >>> stream(0, "cohort", round=3).integers(100) == stream(0, "cohort", round=3).integers(100)
    np.True_
    """
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, round, client)))


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A seed for torch's own generators (initial weights, dropout)."""
    return int(_entropy(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Torch's global generators seeded inside the block and as before after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what layers draw from. ``torch.manual_seed`` asks every kind of device, which a small network feels."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
