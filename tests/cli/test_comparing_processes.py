"""A comparison as a real process: told to stop, or killed, it leaves runs that go on, and nobody behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C", "kill -9"])
def test_it_ends_with_the_round_and_nobody_stays(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedgloss", "compare", "digits", "--methods", "fedavg,fedprox"]
    command += ["--rounds", "5000", "--set", "model.name=logistic", "--set", "training.eval_every=5000"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
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
