"""Processes as the system sees them: no orphans after a crash, nothing but one message after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

TRAIN = """
from pool_toys import Slow, marked_problem
from fedgloss import FedAvg, LocalTraining, train

def go():
    busy = marked_problem(Slow(dict.fromkeys(range(7), {seconds})))
    print("started", flush=True)
    train(FedAvg(LocalTraining(lr=0.1, batch_size=4)), busy, rounds=1000, cohort=5, workers=2,
          on_step=lambda step: print("round", flush=True))
"""
GUARDED = TRAIN + '\nif __name__ == "__main__":\n    go()\n'


def family(group: int) -> list[str]:
    """The commands of all processes of a process group that are still alive."""
    listing = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
    return [" ".join(row[1:]) for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


@contextmanager
def script(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    path = folder / "script.py"
    path.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        yield process
    finally:
        if family(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def gone(group: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while family(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not family(group)


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["computing", "stuck"])
def test_workers_end_when_the_main_process_is_killed(tmp_path: Path, seconds: float) -> None:
    with script(tmp_path, GUARDED.format(seconds=seconds)) as process:
        wait_for(process, "started" if seconds else "round")
        deadline = time.monotonic() + 60
        while len(family(process.pid)) < 5 and time.monotonic() < deadline:  # main, tracker, server, two workers
            time.sleep(0.05)
        assert len(family(process.pid)) >= 4
        process.kill()
        assert gone(process.pid), family(process.pid)


def test_ctrl_c_leaves_one_message_and_no_process(tmp_path: Path) -> None:
    with script(tmp_path, GUARDED.format(seconds=0.0)) as process:
        wait_for(process, "round")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        _, errors = process.communicate(timeout=30)
        assert process.returncode != 0
        assert errors.count("KeyboardInterrupt") == 1, errors
        assert errors.count("Traceback") == 1, errors
        assert gone(process.pid)


@pytest.mark.parametrize("threads", ["1", "2"])  # with one, nobody but the main thread can take the signal
def test_ctrl_c_while_workers_start_is_as_quiet(
    tmp_path: Path, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with script(tmp_path, GUARDED.format(seconds=0.0)) as process:
        wait_for(process, "started")
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert errors.count("KeyboardInterrupt") == 1, errors
        assert gone(process.pid)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    with script(tmp_path, TRAIN.format(seconds=0.0) + "\ngo()\n") as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode != 0
        assert re.search(r"InvalidInput: workers: worker [12] ", errors), errors  # whichever ends first
        assert 'a script must train below `if __name__ == "__main__":`, or with 1 worker' in errors
        assert gone(process.pid)


def test_what_only_the_main_script_knows_works_too(tmp_path: Path) -> None:
    """A network and a loss defined in the script itself, as most are."""
    text = """
from pool_toys import marked_federation
from torch import nn
from fedgloss import FedAvg, LocalTraining, Problem, train

class Network(nn.Linear):
    def __init__(self):
        super().__init__(26, 3)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

if __name__ == "__main__":
    problem = Problem(marked_federation(), Network, loss=loss)
    one, two = (train(FedAvg(LocalTraining()), problem, rounds=3, cohort=3, workers=w) for w in (1, 2))
    print(one.state["params"].equal(two.state["params"]))
"""
    with script(tmp_path, text) as process:
        output, errors = process.communicate(timeout=120)
        assert output.strip() == "True", errors
