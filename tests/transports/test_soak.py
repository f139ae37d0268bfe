"""Thousands of rounds: memory must not grow."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROUNDS = 2000


def family(process: int) -> list[int]:
    """A process and all below it."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    found = [process]
    for one in found:
        found += [child for child, parent in parents if parent == one]
    return found


def memory(process: int) -> int:
    """Bytes of its whole family, what is shared counted once (PSS)."""
    total = 0
    for one in family(process):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except (OSError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("budget", [[], ["--client-memory", "1MB"]], ids=["all in RAM", "on disk"])
def test_memory_is_flat_over_two_thousand_rounds(tmp_path: Path, budget: list[str]) -> None:
    command = [sys.executable, "-m", "fedgloss", "run", "digits", "-m", "fedgloss", "--client", "sam", "--quiet"]
    command += ["--rounds", str(ROUNDS), "--workers", "2", "--set", "model.name=mlp"]
    command += ["--set", "training.eval_every=50", "--set", "run.checkpoint_seconds=2", *budget]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "run")])
    records, seen = tmp_path / "run" / "rounds.jsonl", list[tuple[int, int]]()
    try:
        while process.poll() is None:
            done = records.read_bytes().count(b'"type":"round"') if records.exists() else 0
            seen.append((done, memory(process.pid)))
            time.sleep(0.5)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0

    def typical(first: float, last: float) -> float:
        return statistics.median(size for done, size in seen if first * ROUNDS <= done < last * ROUNDS)

    warm, end = typical(0.2, 0.4), typical(0.8, 1.0)
    assert end < 1.02 * warm, (warm, end)
