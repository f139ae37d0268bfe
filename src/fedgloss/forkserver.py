"""The small process that workers are forked from: it imports torch once, beside whatever else goes on."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


def default_start_method() -> str:
    """Linux forks workers from a small server that has imported torch once; macOS does not survive forks."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def prepare_workers() -> None:
    """Start what workers are forked from, beside whatever this process does until it needs them."""
    if default_start_method() == "forkserver":
        multiprocessing.set_forkserver_preload(["fedgloss.transports.worker"])
        with interrupts_held():
            multiprocessing.forkserver.ensure_running()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Processes started inside the block never see Ctrl-C, not even before they can say that they ignore it."""
    resource_tracker.ensure_running()  # starting it later, from inside the block, would lift the block
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
