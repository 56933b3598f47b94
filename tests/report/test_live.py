"""The live report: what it answers and to whom, what it shows of unfinished runs, how an open page follows."""

import html
import http.client
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest
from chromium import CHROMIUM, Browser
from conftest import HANG_SECONDS, wait_until
from made_runs import add_epoch, experiment_of, put_run, put_unfinished, square

from gcr.cli.main import run_cli
from gcr.report import live
from gcr.report.live import LivePage, LiveServer, serve
from gcr.report.unfinished import last_epoch, unfinished_runs
from gcr.runs.folder import TRIALS
from gcr.settings import BadInput


@contextmanager
def served(folder):
    server = LiveServer(LivePage(folder), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def eager(monkeypatch):
    """Every question looks at the folder."""
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.0)


def ask(server, path="/", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANG_SECONDS)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


def test_a_folder_that_is_gone_is_said(tmp_path, eager):
    put_run(tmp_path / "runs", experiment_of("er"), square(50.0))
    with served(tmp_path / "runs") as server:
        shutil.rmtree(tmp_path / "runs")
        status, body, _ = ask(server)
    assert (status, body.count("\n")) == (503, 1)
    assert str(tmp_path / "runs") in body


def test_answers_the_page_and_its_version_and_nothing_else(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    with served(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page, answer = ask(server)
        assert status == 200
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        version = ask(server, "/version")[1]
        assert f'data-version="{version}"' in page
        folder = experiment_of("er").run_name
        for path in (f"/{folder}/seed-0/result.json", "/../pyproject.toml", "/page.js", "/?x"):
            assert ask(server, path)[0] == 404
        assert ask(server, method="HEAD")[1] == ""
        assert ask(server, method="POST")[0] == 405


def test_two_hosts_get_nothing(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    with served(tmp_path) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANG_SECONDS)
        connection.putrequest("GET", "/", skip_host=True)
        for host in (f"127.0.0.1:{server.server_port}", "evil.example"):
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
def test_foreign_names_get_nothing(tmp_path, host):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    with served(tmp_path) as server:
        for path in ("/", "/version"):
            status, body, _ = ask(server, path, host=host.format(port=server.server_port))
            assert status == 403
            assert "er" not in body.split()
        assert ask(server, host=f"LocalHost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"])
def test_only_get_and_head_are_answered(tmp_path, method):
    with served(tmp_path) as server:
        status, _, answer = ask(server, method=method)
        assert status == 405
        assert answer.headers["Allow"] == "GET, HEAD"


def test_the_policy_of_the_page_is_also_sent_as_a_header(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    with served(tmp_path) as server:
        _, page, answer = ask(server)
    policy, _, framed = answer.headers["Content-Security-Policy"].rpartition("; frame-ancestors ")
    assert framed == "'none'"
    assert "unsafe" not in policy
    assert policy == html.unescape(re.search('Content-Security-Policy" content="([^"]*)"', page)[1])


@pytest.mark.parametrize("request_line", [b"GET / HTTP/nine", b"GET", b"GET /" + b"a" * 70_000 + b" HTTP/1.1"])
def test_what_is_no_request_is_answered_with_the_same_headers(tmp_path, request_line):
    with served(tmp_path) as server, socket.create_connection(server.server_address) as connection:
        connection.sendall(request_line + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert b"HTTP/1.0 4" in answer[:10]
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert b"<html" not in answer


def test_200_slow_connections_keep_nobody_out(tmp_path):
    """They begin a request and never end it. They hold few threads, and the page is answered all the while."""
    put_run(tmp_path, experiment_of("er"), square(50.0))
    with served(tmp_path) as server, ExitStack() as slow:
        before = threading.active_count()
        for _ in range(200):
            connection = slow.enter_context(socket.create_connection(server.server_address, timeout=HANG_SECONDS))
            with suppress(ConnectionError):  # it was ended for another
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for path in ("/version", "/"):
            assert ask(server, path)[0] == 200
        wait_until(lambda: threading.active_count() - before <= live.MAX_CONNECTIONS, "threads to end")
        assert len(server._deadlines) <= live.MAX_CONNECTIONS


def test_a_request_that_drips_in_is_ended(tmp_path, monkeypatch):
    """No pause is long, but it never ends."""
    monkeypatch.setattr(live, "CONNECTION_SECONDS", 0.2)
    with served(tmp_path) as server, socket.create_connection(server.server_address, HANG_SECONDS) as slow:
        slow.settimeout(0.02)

        def is_ended():
            try:
                slow.sendall(b"x")
                return slow.recv(1000) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_ended, "the connection to end")


def test_a_client_that_does_not_read_is_ended(tmp_path, monkeypatch):
    def page(self):
        monkeypatch.setattr(live, "CONNECTION_SECONDS", 0.2)  # to take the answer; the request had longer
        return bytes(50_000_000)

    monkeypatch.setattr(LivePage, "page", page)
    with served(tmp_path) as server, socket.create_connection(server.server_address, HANG_SECONDS) as slow:
        slow.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        assert slow.recv(4) == b"HTTP"
        wait_until(lambda: not server._deadlines, "the connection to end")


def test_where_all_wait_for_answers_others_are_turned_away(tmp_path, monkeypatch):
    made = threading.Event()
    monkeypatch.setattr(live, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(LivePage, "version", lambda self: "1" if made.wait(HANG_SECONDS) else "")
    with served(tmp_path) as server:
        waiting = [threading.Thread(target=ask, args=(server, "/version")) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_until(lambda: [*server._deadlines.values()] == [math.inf] * 2, "both to wait")
        with pytest.raises(ConnectionError):
            ask(server)
        made.set()
        for thread in waiting:
            thread.join()
        wait_until(lambda: not server._deadlines, "both to end")
        assert ask(server, "/version")[1] == "1"


def test_links_are_not_followed(tmp_path, eager):
    """Others may write to the folder, and to see what only its owner can read is all they need."""
    private, shared = tmp_path / "private", tmp_path / "shared"
    finished, begun = (
        put_run(private, experiment_of("gcr"), square(12.5)),
        put_unfinished(private, experiment_of("mir")),
    )
    put_run(shared, experiment_of("er"), square(50.0))
    for run in (finished, begun):
        linked = shared / run.path.relative_to(private)
        linked.mkdir(parents=True)
        for file in run.path.iterdir():
            (linked / file.name).symlink_to(file)
    (shared / "folder").symlink_to(private)
    page = LivePage(shared).page().decode()
    assert "1 finished run." in page
    assert ">er<" in page
    assert ">gcr<" not in page
    assert ">mir<" not in page


def test_unfinished_runs_are_shown_with_their_last_epoch(tmp_path, eager):
    run = put_unfinished(tmp_path, experiment_of("gcr", epochs=8))
    put_unfinished(tmp_path, experiment_of("er", epochs=8), epochs=0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "experiment.json").write_text("{")
    with served(tmp_path) as server, run.locked():
        page, version = ask(server)[1], ask(server, "/version")[1]
        assert "No finished runs yet" in page
        assert "Live: 1 running" in page
        assert ">61.5<" in page
        assert ">1 of 8<" in page
        assert "stopped" in page
        assert "experiment.json cannot be read" in page
        assert ask(server, "/version")[1] == version
        add_epoch(run, 1)
        assert ask(server, "/version")[1] != version
        assert ">2 of 8<" in ask(server)[1]
        put_run(tmp_path, experiment_of("er", 1), square(50.0))
        assert "1 finished run." in ask(server)[1]


def test_an_epoch_that_is_being_written_does_not_count(tmp_path):
    run = put_unfinished(tmp_path, experiment_of("gcr"), epochs=3)
    metrics = run.path / "metrics.jsonl"
    assert last_epoch(metrics).epoch == 2
    with open(metrics, "a") as file:
        file.write('{"stage": 1, "epoch": 3')
    assert last_epoch(metrics).epoch == 2
    metrics.write_text('{"stage": "<b>"}\n')
    assert last_epoch(metrics) is None
    assert last_epoch(tmp_path / "none") is None
    with run.locked():
        (found,) = unfinished_runs(tmp_path)
    assert found.state == "running"


def test_a_lock_that_nobody_holds_is_no_running_run(tmp_path, eager):
    run = put_unfinished(tmp_path, experiment_of("gcr"))
    lock = run.path / ".lock"
    page = LivePage(tmp_path)
    with run.locked():
        assert b"Live: 1 running" in page.page()
        before, kept = page.version(), tmp_path / "lock"
        os.link(lock, kept)
    os.rename(kept, lock)  # as a process leaves it that was killed: the same file, no longer locked
    assert page.version() != before
    assert [found.state for found in unfinished_runs(tmp_path)] == ["stopped"]
    assert b"Live: 0 running" in page.page()


def test_trials_are_counted_and_named_by_their_folder_and_failures_have_a_reason(tmp_path, eager):
    trials = tmp_path / TRIALS
    put_run(trials, experiment_of("er", lr=0.1), square(50.0), name="one")
    diverged = put_unfinished(trials, experiment_of("er", lr=9.0), name="two")
    page = LivePage(tmp_path)
    assert b"The search goes on: 1 trial is finished" in page.page()
    assert b">stopped<" in page.page()
    diverged.fail("the loss is <nan>")
    put_run(trials, experiment_of("er", lr=0.2), square(50.0), name="three")
    text = page.page().decode()
    assert "The search goes on: 2 trials are finished" in text
    assert "No finished runs yet" not in text
    assert ">failed: the loss is &lt;nan&gt;<" in text
    assert ">stopped<" not in text
    assert ">trials/two/seed-0<" in text
    put_run(tmp_path, experiment_of("er", lr=0.1), square(50.0))
    assert "2 finished trials of searches, not shown." in page.page().decode()


def test_a_page_is_made_once_for_a_version(tmp_path, eager, monkeypatch):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    page = LivePage(tmp_path)
    first = page.page()
    monkeypatch.setattr(live, "render", None)
    assert page.page() is first


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} is in use; choose another with --port"):
            serve(tmp_path, port, print)


def test_no_folder(tmp_path):
    with pytest.raises(BadInput, match="is not a folder"):
        serve(tmp_path / "none", 0, print)


@pytest.mark.parametrize(("options", "message"), [(["--serve", "--page", "x"], "--page"), (["--port", "1"], "--port")])
def test_options_that_do_not_go_together(tmp_path, capsys, options, message):
    assert run_cli(["report", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_ends_the_command(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    command = [sys.executable, "-m", "gcr", "report", str(tmp_path), "--serve", "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}

    def hears_ctrl_c():  # a shell's background job does not, and neither would what it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=hears_ctrl_c,
    ) as started:
        try:
            line = started.stdout.readline()
            assert line.startswith("report: http://127.0.0.1:")
            port = int(line.split(":")[3].split("/")[0])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            started.send_signal(signal.SIGINT)
            assert started.wait(HANG_SECONDS) == 0
            assert started.stderr.read() == ""
        finally:
            started.kill()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to test the report in a browser")
def test_an_open_page_follows_and_keeps_what_the_reader_set(tmp_path, eager):
    for method, value in (("er", 70.0), ("gcr", 60.0), ("der++", 80.0)):
        put_run(tmp_path, experiment_of(method), square(value))
    run = put_unfinished(tmp_path, experiment_of("gss", epochs=8))
    rows = "[...document.querySelectorAll('table.results tbody tr')].filter(row => row.offsetParent)"
    names = f"{rows}.map(row => row.cells[0].textContent)"
    with served(tmp_path) as server, Browser(tmp_path / "profile") as browser:
        browser.look()
        browser.open(server.url)
        browser.do("""(() => {
            const buttons = [...document.querySelectorAll('table.results th button')];
            const button = buttons.find(button => button.textContent === 'class-IL accuracy');
            button.click(); button.focus();
            const text = document.querySelector('#filters input');
            text.value = 'r'; text.dispatchEvent(new Event('input', { bubbles: true }));
            document.querySelector('main details').open = false;
            scrollTo(0, 300);
        })()""")
        assert browser.do(names) == ["gcr", "er", "der++"]
        add_epoch(run, 1)
        browser.wait("document.querySelector('table.unfinished').textContent.includes('2 of 8')")
        put_run(tmp_path, experiment_of("mir"), square(65.0))
        browser.wait(f"{rows}.length === 4")
        assert browser.do(names) == ["gcr", "mir", "er", "der++"]
        assert browser.do("document.activeElement.textContent") == "class-IL accuracy"
        assert browser.do("document.querySelector('#filters input').value") == "r"
        assert browser.do("document.querySelector('main details').open") is False
        assert browser.do("scrollY") == 300
        assert browser.problems() == []
        assert {url.split("/", 3)[3] for url in browser.requests() if url.startswith("http")} == {"", "version"}
