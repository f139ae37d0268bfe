"""The benchmarks' own machinery: turns, spreads, memory, and peers that cannot be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are part of the repository, not of the package

from benchmarks import __main__ as command  # noqa: E402
from benchmarks import harness, peers  # noqa: E402
from benchmarks.harness import Line, PeakMemory, Running, Spread, Turns, Variant, running, take_turns  # noqa: E402


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runners that count, allocate and fail."""
    (tmp_path / "serving.py").write_text((harness.RUNNERS / "serving.py").read_text())
    (tmp_path / "counting.py").write_text(
        "import sys, time\nfrom serving import serve\nturn = 0\nkept = bytearray(b'x' * int(sys.argv[1]))\n"
        "def once():\n    global turn\n    turn += 1\n    time.sleep(0.01)\n    print('noise')\n"
        "    return {'turn': turn}\nserve(once)\n"
    )
    (tmp_path / "broken.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setattr(harness, "RUNNERS", tmp_path)
    return tmp_path


def test_variants_take_turns_and_end(toy: Path) -> None:
    variants = [Variant("small", "counting", ["1000"]), Variant("large", "counting", [str(50_000_000)])]
    with running(variants) as started:
        turns = take_turns(started, turns=3)
        processes = [runner.process for runner in started.values()]
    assert all(process.poll() == 0 for process in processes)
    for name in ("small", "large"):
        assert len(turns.values(name)) == 3
        assert set(turns.values(name, "turn")) <= set(range(2, 2 + 3 + harness.SPARE))  # the first was to warm up
        assert min(turns.values(name)) >= 0.01
    if Path("/proc/self/smaps_rollup").exists():
        assert turns.memory["large"] - turns.memory["small"] > 40_000_000
    assert turns.ratio("small", "large").count == 3
    assert 0 <= turns.others <= 1


def test_a_runner_that_does_not_start_is_named(toy: Path) -> None:
    with pytest.raises(RuntimeError, match="mine: the runner broken did not start"):
        Running(Variant("mine", "broken"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from /proc")
def test_peak_memory_is_that_of_the_whole_tree(toy: Path) -> None:
    with running([Variant("large", "counting", [str(50_000_000)])]) as started:
        peak = PeakMemory(started["large"])
        for _ in range(60):
            started["large"].once()
        assert peak.stop() > 50_000_000


def test_spreads_are_medians_and_quartiles() -> None:
    found = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low, found.median, found.high, found.count) == (2.0, 3.0, 4.0, 5)
    assert found.show() == "3.00 (2.00-4.00)"


def test_results_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (harness, command):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    lines = [Line("speed", "3.00", "at least 2", True), Line("size", "9", "at most 5", False)]
    harness.write("share", lines, Turns({"a": [{"seconds": 1.0, "others": 0.25}]}), {"more": 1})
    content = json.loads((tmp_path / "share.json").read_text())
    assert content["machine"]["torch"]
    assert content["others"] == 0.25
    assert "| speed | 3.00 | at least 2 | yes | 25% |" in command.table(command.page("share"))
    assert "| size | 9 | at most 5 | **no** | 25% |" in command.table(command.page("share"))


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    peer = peers.Peer("nothing", [str(tmp_path / "nothing-1.0.tar.gz")], [])
    (line,) = peers.against(peer)
    assert line.found.startswith("absent: ")
    assert "nothing-1.0.tar.gz" in line.found
    assert json.loads((tmp_path / "results" / "nothing.json").read_text())["absent"]
