"""What `fedgloss federation init` writes, and what it says where something is missing."""

from __future__ import annotations

import importlib
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli.command import fedgloss

from fedgloss import InvalidInput
from fedgloss.federation import from_config


@pytest.mark.integration
def test_a_folder_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "trial"
    answer = fedgloss(capsys, "federation", "init", folder, "--sites", "2", "--host", "fed.example.org")
    assert answer.code == 0, answer.err
    assert f"wrote {folder}" in answer.out
    app = tomllib.loads((folder / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "federated.app:server", "clientapp": "federated.app:client"}
    assert app["config"]["minimum-sites"] == 2
    for secret in ("certificates/ca.key", "certificates/server.key", "keys/site-0", "keys/site-1"):
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600
    assert (folder / "keys/site-1.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    ssl.create_default_context(cafile=str(folder / "certificates/ca.crt"))
    for script in ("start.sh", "superlink.sh", "site.sh", "register.sh"):
        assert (folder / script).stat().st_mode & stat.S_IXUSR
        subprocess.run(["bash", "-n", folder / script], check=True)
    if shutil.which("openssl"):
        checked = subprocess.run(
            ["openssl", "verify", "-verify_hostname", "fed.example.org", "-CAfile", "ca.crt", "server.crt"],
            cwd=folder / "certificates", capture_output=True, text=True,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
    chosen = from_config(
        folder / "app/federated/config.toml", shape=(1, 32, 32), classes=10, client_data=lambda _: ([], [])
    )
    assert chosen.sites == 2
    assert type(chosen.algorithm).__name__ == "FedGloSS"
    again = fedgloss(capsys, "federation", "init", folder)
    assert again.code == 2
    assert "exists and is not empty; choose another folder" in again.err
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]  # nothing half-written


def test_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "--sites: must lie between 1 and 1000"
        in fedgloss(capsys, "federation", "init", tmp_path / "a", "--sites", "0").err
    )
    spaces = fedgloss(capsys, "federation", "init", tmp_path / "a b")
    assert spaces.code == 2
    assert "quotes, dollars or spaces" in spaces.err
    for odd in ("a;b", "a`b", "a#b", "a{b", "a:b", "a\tb"):
        assert "quotes, dollars or spaces" in fedgloss(capsys, "federation", "init", tmp_path / odd).err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["fed.example.org:443", "https://fed", "a b", "", "-x", "münchen.example", "a..b"])
def test_a_host_that_no_certificate_can_be_for_is_refused(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = fedgloss(capsys, "federation", "init", tmp_path / "a", "--host", host)
    assert answer.code == 2
    assert answer.err == (
        f"error: --host {host}: must be the server's name or address alone, like fed.example.org or 10.0.0.1\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert f"error: {file}: exists and is not empty" in fedgloss(capsys, "federation", "init", file).err
    below = fedgloss(capsys, "federation", "init", file / "trial")
    assert (below.code, below.err) == (2, f"error: {file}: cannot write (File exists)\n")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ('[algorithm]\nname = "sgd"', "algorithm.name: sgd trains on all data in one place"),
        (
            '[training]\nevaluate_on = "validation"',
            "training.evaluate_on: the server evaluates on its test_data alone",
        ),
        (
            "[training]\nclient_accuracy = true",
            "training.client_accuracy: the server does not see the sites' samples",
        ),
        ('[training]\nprecision = "bfloat16"', "training.precision: sites compute in float32"),
        ('[run]\ndevice = "cuda"', "run.device: server and sites compute on the CPU"),
    ],
)
def test_what_a_federation_cannot_do_is_refused(setting: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[data]\nname = "sites"\nsplit = "natural"\nclients = 3\n\n{setting}\n')
    with pytest.raises(InvalidInput, match=f"^{re.escape(str(path))}: {re.escape(reason)}"):
        from_config(path, shape=(1, 32, 32), classes=10, client_data=lambda _: ([], []))


def test_an_absent_extra_gives_one_helpful_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fedgloss.transports.flower", raising=False)
    with pytest.raises(ImportError, match=r"^federation: Flower .*; pip install 'fedgloss\[flower\]'$"):
        importlib.import_module("fedgloss.transports.flower")
