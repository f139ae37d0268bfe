"""Where there is no Ray cluster."""

from __future__ import annotations

import socket
import time
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


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "no connection to Ray ([Errno 111] Connection refused)"),
        ("somewhere", "must be auto, local or HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_named_at_once(
    address: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "digits", "--transport", "ray", "--address", address, "--quiet", "--out", tmp_path / "run"]
    answer = fedgloss(capsys, *arguments)
    assert answer.code == 2
    assert answer.err.strip() == f"error: run.address: {address}: {reason}"


def test_a_cluster_that_was_killed_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps the address of the last cluster; only ``ray stop`` removes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text(f"127.0.0.1:{port}")
    began = time.monotonic()
    answer = fedgloss(capsys, "run", "digits", "--transport", "ray", "--quiet", "--out", tmp_path / "run")
    assert time.monotonic() - began < 60
    assert answer.code == 2
    assert answer.err.strip().startswith("error: run.address: auto: the cluster at ")
    assert f":{port} does not answer ([Errno 111] Connection refused); start one with" in answer.err
