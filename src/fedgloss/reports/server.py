"""The report while runs go on: a page on this machine that keeps itself fresh.

The server listens on 127.0.0.1 alone, answers GET alone, and knows two addresses: the page and its data. A request
that names another host is refused, so that no web page can reach it by making its own name point here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..records import RunFolder
from .html import page, page_data
from .runs import Run, Skipped, find_runs, read_runs, short_names
from .study import once

HOST = "127.0.0.1"


class Fresh:
    """The newest data of some folders: a run is read again only when its files have changed."""

    def __init__(self, paths: Sequence[Path], seconds: float) -> None:
        self._paths = list(paths)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[Any, Run | None, list[Skipped]]] = {}
        self._seen: Any = None
        self._asked = -math.inf
        self._data: dict[str, Any] = {}
        self._tag = ""

    def data(self) -> tuple[dict[str, Any], str]:
        """What the page shows, and a tag that changes when it does."""
        with self._lock:
            if time.monotonic() - self._asked > self._seconds / 2:
                self._look()
                self._asked = time.monotonic()
            return self._data, self._tag

    def _look(self) -> None:
        folders, skipped = find_runs(self._paths)
        names = short_names(folders)
        signatures = [_signature(folder) for folder in folders]
        seen = (folders, names, signatures, skipped)
        if seen == self._seen:
            return
        read = {}
        for folder, signature in zip(folders, signatures, strict=True):
            known = self._read.get(folder)
            unchanged = known is not None and known[0] == signature
            read[folder] = known if known and unchanged else (signature, *_read(folder))
        runs = [
            replace(run, name=n) for n, (_, run, _) in zip(names, read.values(), strict=True) if run is not None
        ]
        problems = [problem for _, _, found in read.values() for problem in found]
        runs, repeated = once(runs)
        self._data = page_data(runs, [*skipped, *problems, *repeated], live=self._seconds)
        self._tag = f'"{hashlib.sha256(json.dumps({**self._data, "made": None}).encode()).hexdigest()[:32]}"'
        self._seen, self._read = seen, read


def _read(folder: Path) -> tuple[Run | None, list[Skipped]]:
    runs, skipped = read_runs([folder])
    return (runs[0] if runs else None), skipped


def _signature(folder: Path) -> Any:
    """Sizes and times of all files a report reads."""
    run = RunFolder(folder)
    files = [run.config, run.environment, run.federation, run.rounds, run.timings, run.summary]
    try:
        files += sorted(run.analysis.glob("*.json"))
        return [(f.name, s.st_mtime_ns, s.st_size) for f in files if f.exists() and (s := f.stat())]
    except OSError:  # went away while we looked
        return time.monotonic_ns()


class Server(ThreadingHTTPServer):
    """Serves one page. ``port`` 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], *, port: int = 0, seconds: float = 2.0) -> None:
        self.fresh = Fresh(paths, seconds)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise InvalidInput(f"--port {port}: cannot listen there ({reason})") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who leaves in the middle of an answer is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "fedgloss"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        here = {f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        if self.headers.get("Host") not in here:
            self._answer(HTTPStatus.FORBIDDEN, b"this server answers to 127.0.0.1 alone\n", "text/plain")
        elif self.path == "/":
            data, _ = self.server.fresh.data()
            self._answer(HTTPStatus.OK, page(data, live=True).encode(), "text/html; charset=utf-8")
        elif self.path == "/data.json":
            data, tag = self.server.fresh.data()
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, b"", "application/json", tag)
            else:
                content = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
                self._answer(HTTPStatus.OK, content, "application/json", tag)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    def _answer(self, status: HTTPStatus, content: bytes, kind: str, tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A request is nothing to report."""
