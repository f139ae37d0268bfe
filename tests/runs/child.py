"""A run in a process of its own, which can be told to die in the middle of a write.

`python child.py FOLDER METHOD ROUNDS DIE_AT BUDGET`: with DIE_AT = n > 0 the process kills itself with SIGKILL at
the n-th moment at which something is about to become durable (a write, a flush to disk, a rename).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from toys import blob_problem

from fedgloss import LocalTraining
from fedgloss.algorithms import build
from fedgloss.records import Journal, RunFolder
from fedgloss.run import Execution, Job, execute
from fedgloss.sampling import ExactCohort
from fedgloss.training import Plan

OPTIONS = {"fedgloss": {"client": "sam", "beta": 5.0}, "fedadam": {"server_lr": 0.01}}


def job(method: str, rounds: int) -> Job:
    local = LocalTraining(lr=0.1, batch_size=8, momentum=0.5)
    return Job(
        algorithm=build(method, local, **OPTIONS.get(method, {})),
        problem=blob_problem(clients=10),
        plan=Plan(rounds=rounds, sampling=ExactCohort(3), eval_every=4, window=2),
        config=f'[algorithm]\nname = "{method}"\n',
    )


def die_at(moment: int) -> None:
    """Count the moments at which data are about to become durable, and kill this process at one of them."""
    seen = 0

    def counted(function):
        def wrapper(*args, **kwargs):
            nonlocal seen
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)
    Path.write_bytes = counted(Path.write_bytes)
    torn = Journal.append

    def append(self, line):
        nonlocal seen
        seen += 1
        if seen == moment:
            self._file.write(b'{"type":"round","rou')
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        torn(self, line)

    Journal.append = append


def live(folder: Path, method: str, rounds: int, moment: int, budget: int | None) -> None:
    """Run, and die at the moment asked for, if there is one."""
    torch.set_num_threads(1)
    if moment:
        die_at(moment)
    execute(job(method, rounds), RunFolder(folder), Execution(checkpoint_seconds=0, client_memory=budget))


if __name__ == "__main__":
    live(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]) or None)
