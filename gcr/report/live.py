"""The report, live: a page on this machine alone that is made again when runs have changed.

The server answers two requests, the page and its version, and only under the names of this machine: a page from
elsewhere whose name is made to point here gets nothing.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import compress
from pathlib import Path
from typing import Any

from gcr.analysis.load import Group, Runs, StoredRun, runs_at
from gcr.report.build import TITLE, policy, render
from gcr.report.unfinished import count_finished_trials, unfinished_runs
from gcr.runs.folder import FAILURE, RunFolder
from gcr.runs.packed import SUFFIX, PackedRun
from gcr.settings import BadInput

ADDRESS = "127.0.0.1"
WATCHED = frozenset({"experiment.json", "metrics.jsonl", "result.json", "memory.safetensors", ".lock", FAILURE})
LOOK_SECONDS = 1.0  # the folder is looked at no more often, however many pages ask
METHODS = ("GET", "HEAD")
MAX_CONNECTIONS = 32
CONNECTION_SECONDS = 20.0  # to send a request; and again to take the answer


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
                diverged = [run for run in runs.diverged if not _is_linked(_place(run))]
                runs = Runs(_without_links(runs.groups), runs.unreadable, diverged)
                unfinished = [run for run in unfinished_runs(self.folder) if not _is_linked(self.folder / run.folder)]
                n_trials = count_finished_trials(self.folder)
                about = runs.unreadable, unfinished, version, n_trials
                self._page = render(runs.groups, self.title, *about, notes=runs.caveats).encode()
                self._page_version = version
            return self._page

    def _look(self) -> str:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._version, self._looked = version_of(self.folder), now
        return self._version


def _without_links(groups: list[Group]) -> list[Group]:
    """The page shows nothing that lies elsewhere."""
    kept = []
    for group in groups:
        own = [not _is_linked(_place(run)) for run in group.runs]
        if any(own):
            runs, experiments, results = group.runs, group.experiments, group.results
            own_runs = [*compress(runs, own)], [*compress(experiments, own)], [*compress(results, own)]
            kept.append(Group(*own_runs, group.diverged))
    return kept


def _place(run: StoredRun) -> Path:
    return run.file if isinstance(run, PackedRun) else run.path


def _is_linked(path: Path) -> bool:
    """Whether a packed file, or a file of a run's folder, is a link."""
    return any(file.is_symlink() for file in (path, *(path / name for name in WATCHED)))


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
    """A connection serves one request. Slow ones end after a while, and earlier where others wait for their place."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, page: LivePage, port: int) -> None:
        self.live = page
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}  # of open connections; infinite while the answer is made
        super().__init__((ADDRESS, port), Answer)

    def set_deadline(self, connection: socket.socket, seconds: float) -> None:
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            admitted = self._make_room()
            if admitted:
                self._deadlines[request] = time.monotonic() + CONNECTION_SECONDS
        if admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Where there are too many connections, the slowest ends. False: all wait for answers that are being made."""
        if len(self._deadlines) < MAX_CONNECTIONS:
            return True
        slowest = min(self._deadlines, key=self._deadlines.__getitem__)
        if self._deadlines[slowest] == math.inf:
            return False
        self._end(slowest)
        return True

    def service_actions(self) -> None:
        """Called a few times a second."""
        super().service_actions()
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, deadline in self._deadlines.items() if deadline < now]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Its thread, which waits for it, goes on and closes it."""
        self._deadlines.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a page that was closed while it was being sent
            super().handle_error(request, client_address)

    def is_own_name(self, hosts: list[str]) -> bool:
        """Of a request with one Host, which is this machine."""
        names = (ADDRESS, "localhost")
        own = {f"{name}:{self.server_port}" for name in names} | (set(names) if self.server_port == 80 else set())
        return len(hosts) == 1 and hosts[0].lower() in own


class Answer(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "gcr", ""
    default_request_version = "HTTP/1.0"  # one without headers is answered with headers
    timeout = CONNECTION_SECONDS  # for each part that is sent or taken

    def parse_request(self) -> bool:
        """False: the request is answered."""
        if not super().parse_request():
            return False
        if self.command in METHODS:
            return True
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", "text/plain")
        return False

    def do_GET(self) -> None:
        self.server.set_deadline(self.connection, math.inf)
        if not self.server.is_own_name(self.headers.get_all("Host", [])):
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for this machine alone\n", "text/plain")
        elif self.path == "/":
            try:
                page = self.server.live.page()
            except (BadInput, OSError) as error:  # as when the folder is gone
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(errors="replace"), "text/plain")
            else:
                self._answer(HTTPStatus.OK, page, "text/html")
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, self.server.live.version().encode(), "text/plain")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is only one page: /\n", "text/plain")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Requests that are none, with the headers of all answers."""
        self._answer(HTTPStatus(code), f"{HTTPStatus(code).phrase}\n".encode(), "text/plain")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.server.set_deadline(self.connection, CONNECTION_SECONDS)
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(METHODS))
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", f"{policy(scripts=True, live=True)}; frame-ancestors 'none'")
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
