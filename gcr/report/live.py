"""The report, live: a page on this machine alone that is made again when runs have changed.

The server answers two requests, the page and its version, and only under the names of this machine: a page from
elsewhere whose name is made to point here gets nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gcr.analysis.load import runs_at
from gcr.report.build import TITLE, render
from gcr.report.unfinished import count_finished_trials, unfinished_runs
from gcr.runs.folder import FAILURE, RunFolder
from gcr.runs.packed import SUFFIX
from gcr.settings import BadInput

ADDRESS = "127.0.0.1"
WATCHED = frozenset({"experiment.json", "metrics.jsonl", "result.json", "memory.safetensors", ".lock", FAILURE})
LOOK_SECONDS = 1.0  # the folder is looked at no more often, however many pages ask


class LivePage:
    """The page of a folder, made when it is asked for and something has changed."""

    def __init__(self, folder: Path, title: str = TITLE) -> None:
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder; --serve needs the --out folder of runs")
        self.folder, self.title = folder, title
        self._lock = threading.Lock()
        self._version, self._looked = "", float("-inf")
        self._page, self._page_version = b"", ""

    def version(self) -> str:
        with self._lock:
            return self._look()

    def page(self) -> bytes:
        with self._lock:
            version = self._look()
            if version != self._page_version:
                runs = runs_at(self.folder)
                unfinished = list(unfinished_runs(self.folder))
                n_trials = count_finished_trials(self.folder)
                self._page = render(runs.groups, self.title, runs.unreadable, unfinished, version, n_trials).encode()
                self._page_version = version
            return self._page

    def _look(self) -> str:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._version, self._looked = version_of(self.folder), now
        return self._version


def version_of(folder: Path) -> str:
    """Changes when a run begins, ends an epoch, or ends, killed or not: a hash of names, sizes, times of change, and
    whether locks are held."""
    seen = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(name for name in files if name in WATCHED or name.endswith(SUFFIX)):
            try:
                about = os.stat(os.path.join(place, name))
            except OSError:  # gone since
                continue
            seen.update(f"{place}\0{name}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
            if name == ".lock":
                seen.update(str(RunFolder(Path(place)).busy).encode())
    return seen.hexdigest()[:16]


class LiveServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: LivePage, port: int) -> None:
        self.live = page
        super().__init__((ADDRESS, port), Answer)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a page that was closed while it was being sent
            super().handle_error(request, client_address)

    def is_own_name(self, host: str | None) -> bool:
        names = (ADDRESS, "localhost")
        return host in {f"{name}:{self.server_port}" for name in names} or (self.server_port == 80 and host in names)


class Answer(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "gcr", ""
    timeout = 20  # seconds that a silent client may hold a thread

    def do_GET(self) -> None:
        if not self.server.is_own_name(self.headers.get("Host")):
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for this machine alone\n", "text/plain")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, self.server.live.page(), "text/html")
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, self.server.live.version().encode(), "text/plain")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is only one page: /\n", "text/plain")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a page that asks every two seconds would fill the terminal."""


def serve(folder: Path, port: int, ready: Callable[[str], None], title: str = TITLE) -> None:
    """Serve the live page until Ctrl-C. ``ready`` receives the address; port 0 takes any free one."""
    page = LivePage(folder, title)
    page.page()  # what keeps it from being made is said now
    try:
        server = LiveServer(page, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"port {port} is in use; choose another with --port, or --port 0 for any") from None
        if error.errno == errno.EACCES:
            raise BadInput(f"port {port} may not be used ({error.strerror}); choose one above 1023") from None
        raise
    with server:
        ready(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
