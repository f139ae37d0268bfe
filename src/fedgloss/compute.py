"""The machine under the training: compute threads, whose number the bits depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Torch computes with ``count`` threads inside the block, and with as many as before after it.

    Sums are split over threads, so their number changes the last bits: a client always trains with the same.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
