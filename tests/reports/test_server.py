"""The live page: fresh, on this machine alone."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.command import fedgloss

from fedgloss.reports.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "runs").mkdir()
    made = Server([tmp_path / "runs"], seconds=0.02)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def data(server: Server) -> tuple[dict[str, Any], str]:
    time.sleep(0.05)
    status, content, headers = get(server, "/data.json")
    assert status == 200
    return json.loads(content), headers["ETag"]


def test_runs_appear_and_grow(server: Server, study: Path, tmp_path: Path) -> None:
    empty, first = data(server)
    assert empty["runs"] == []
    assert empty["skipped"][0][1] == "is not a run, nor a folder of runs"
    copy = tmp_path / "runs" / "one"
    shutil.copytree(study / "fedavg-seed0", copy)
    lines = (copy / "rounds.jsonl").read_text().splitlines(keepends=True)
    (copy / "rounds.jsonl").write_text("".join(lines[:5]))
    (copy / "summary.json").unlink()
    started, second = data(server)
    assert [run["status"] for run in started["runs"]] == ["unfinished"]
    assert started["skipped"] == []
    (copy / "rounds.jsonl").write_text("".join(lines))
    shutil.copy(study / "fedavg-seed0" / "summary.json", copy)
    finished, third = data(server)
    assert [run["status"] for run in finished["runs"]] == ["finished"]
    assert len({first, second, third}) == 3
    assert data(server)[1] == third
    assert get(server, "/data.json", **{"If-None-Match": third})[:2] == (304, b"")


def test_the_page_is_served_and_may_ask_its_server(server: Server) -> None:
    status, content, headers = get(server, "/")
    assert status == 200
    assert b"connect-src 'self'" in content
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1"])
def test_another_name_for_this_machine_is_refused(server: Server, host: str) -> None:
    assert get(server, "/data.json", Host=host)[0] == 403


@pytest.mark.parametrize("path", ["/../etc/passwd", "/config.toml", "/data.json?x", "/index.html"])
def test_there_is_nothing_else_to_get(server: Server, path: str) -> None:
    assert get(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_done_to_it(server: Server, method: str) -> None:
    assert get(server, "/", method)[0] == 501


def test_no_other_host_can_reach_it(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError):
            socket.create_connection((address, server.server_port), timeout=2).close()


def test_a_reader_who_leaves_is_nothing_to_report(server: Server, capfd) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as reader:
        reader.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        assert reader.recv(16).startswith(b"HTTP/1.0 200")
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close at once
    until = time.monotonic() + 10
    while threading.active_count() > 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert get(server, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_one_line(server: Server, tmp_path: Path, capsys) -> None:
    answer = fedgloss(capsys, "watch", tmp_path, "--port", str(server.server_port))
    assert answer.code == 2
    assert answer.err.startswith(f"error: --port {server.server_port}: cannot listen there")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_end(study: Path, number: int) -> None:
    command = [sys.executable, "-m", "fedgloss", "watch", str(study)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[0]
    port = int(address.rsplit(":", 1)[1].rstrip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/data.json")
    assert len(json.loads(connection.getresponse().read())["runs"]) == 12
    connection.close()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
