"""A comparison as a real process: told to stop, or killed, it leaves runs that go on, and nobody behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedgloss.records import read_lines

PATIENCE = 120


def waited_for(what: object, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {name}"
        time.sleep(0.05)


def of_session(leader: int) -> list[int]:
    """The live processes of a session."""
    rows = subprocess.run(["ps", "-A", "-o", "pid=,sid=,stat="], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in rows.splitlines()]
    return [int(pid) for pid, session, state in found if int(session) == leader and not state.startswith("Z")]


def started(out: Path, *options: str) -> subprocess.Popen[str]:
    """A comparison in a session of its own."""
    command = [sys.executable, "-m", "fedgloss", "compare", "digits", "--out", str(out), *options]
    return subprocess.Popen(
        [*command, "--set", "model.name=logistic", "--set", "training.eval_every=5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C", "kill -9"])
def test_it_ends_with_the_round_and_nobody_stays(how: str, tmp_path: Path) -> None:
    process = started(tmp_path / "out", "--methods", "fedavg,fedprox", "--rounds", "5000")
    runs = [tmp_path / "out" / f"{method}-seed0" for method in ("fedavg", "fedprox")]
    try:
        waited_for(
            lambda: all((run / "rounds.jsonl").exists() and read_lines(run / "rounds.jsonl") for run in runs),
            "rounds",
        )
        if how == "SIGTERM":
            process.terminate()
        elif how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        said, _ = process.communicate(timeout=PATIENCE)
        waited_for(lambda: not of_session(process.pid), "the end of all processes")
    finally:
        for left in of_session(process.pid):
            os.kill(left, signal.SIGKILL)
    assert "Traceback" not in said
    assert process.returncode == (-signal.SIGKILL if how == "kill -9" else 130)
    for run in runs:
        summary = json.loads((run / "summary.json").read_text())
        assert summary["status"] == "interrupted"
        assert summary["rounds"] == len(read_lines(run / "rounds.jsonl", "round")) < 5000


@pytest.mark.parametrize("methods", ["fedavg", "fedavg,fedprox"], ids=["one run", "two at a time"])
def test_a_second_ctrl_c_does_not_wait_for_the_round(methods: str, tmp_path: Path) -> None:
    process = started(tmp_path / "out", "--methods", methods, "--set", "local.epochs=100000000")
    runs = [tmp_path / "out" / f"{method}-seed0" for method in methods.split(",")]
    try:
        waited_for(lambda: all((run / "checkpoints" / "00000000.json").exists() for run in runs), "the first round")
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None  # the round has not ended

        def pressed_again() -> bool:  # while workers start, presses count as one
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            return process.poll() is not None

        waited_for(pressed_again, "the end")
        said, _ = process.communicate(timeout=PATIENCE)
        waited_for(lambda: not of_session(process.pid), "the end of all processes")
    finally:
        for left in of_session(process.pid):
            os.kill(left, signal.SIGKILL)
    assert "Traceback" not in said
    assert process.returncode == 130
