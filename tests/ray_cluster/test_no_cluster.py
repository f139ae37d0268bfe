"""Where there is no Ray cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.command import fedgloss

pytestmark = pytest.mark.integration
pytest.importorskip("ray")


def test_a_cluster_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    answer = fedgloss(capsys, "run", "digits", "--transport", "ray", "--quiet", "--out", tmp_path / "run")
    assert answer.code == 2
    assert answer.err.strip() == (
        "error: run.address: no Ray cluster is running on this machine; start one with 'ray start --head', "
        "name one (HOST:PORT), or use local"
    )
