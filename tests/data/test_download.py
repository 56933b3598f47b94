"""Downloads from a server on this machine: whole, broken and resumed, damaged, missing."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gcr.data.download import fetch
from gcr.settings import BadInput

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; ``breaks`` transfers are cut after half of what they ought to send."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.breaks, self.knows_ranges, self.ranges = CONTENT, 0, True, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/made.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        if self.path != "/made.bin":
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.knows_ranges else 0
        if start >= len(server.content):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_a_whole_file_with_progress(server, tmp_path):
    reported = []
    fetch(server.url, MD5, tmp_path / "made.bin", lambda *progress: reported.append(progress))
    assert (tmp_path / "made.bin").read_bytes() == CONTENT
    assert reported[-1] == ("made.bin", len(CONTENT), len(CONTENT))
    assert not (tmp_path / "made.bin.part").exists()
    fetch(server.url, MD5, tmp_path / "made.bin")
    assert server.ranges == [None]  # what is there is not fetched again


def test_a_broken_transfer_goes_on_by_itself(server, tmp_path):
    server.breaks = 2
    fetch(server.url, MD5, tmp_path / "made.bin")
    assert (tmp_path / "made.bin").read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.ranges == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_a_transfer_that_keeps_breaking_is_resumed_by_the_next_call(server, tmp_path):
    server.breaks = 4
    with pytest.raises(BadInput, match=r"the connection broke after \d+ of 1024000 bytes; the same command goes on"):
        fetch(server.url, MD5, tmp_path / "made.bin")
    have = (tmp_path / "made.bin.part").stat().st_size
    assert 0 < have < len(CONTENT)
    fetch(server.url, MD5, tmp_path / "made.bin")
    assert server.ranges[-1] == f"bytes={have}-"
    assert (tmp_path / "made.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    server.knows_ranges = False
    (tmp_path / "made.bin.part").write_bytes(CONTENT[:1000])
    fetch(server.url, MD5, tmp_path / "made.bin")
    assert (tmp_path / "made.bin").read_bytes() == CONTENT


def test_a_part_that_was_whole_already(server, tmp_path):
    (tmp_path / "made.bin.part").write_bytes(CONTENT)
    fetch(server.url, MD5, tmp_path / "made.bin")
    assert (tmp_path / "made.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"", b"not the beginning of it"])
def test_a_wrong_checksum_leaves_nothing(server, tmp_path, left):
    if left:
        (tmp_path / "made.bin.part").write_bytes(left)
    else:
        server.content = CONTENT[:-1] + b"!"
    with pytest.raises(BadInput, match=f"but {MD5} is published; it was removed"):
        fetch(server.url, MD5, tmp_path / "made.bin")
    assert list(tmp_path.iterdir()) == []


def test_what_the_server_does_not_have(server, tmp_path):
    with pytest.raises(BadInput, match="the server answers 404"):
        fetch(server.url + "x", MD5, tmp_path / "made.bin")


def test_no_network(tmp_path):
    with pytest.raises(BadInput) as caught:
        fetch("http://127.0.0.1:9/made.bin", MD5, tmp_path / "folder/made.bin", elsewhere="gcr data import made PATH")
    assert str(caught.value) == (
        "http://127.0.0.1:9/made.bin: cannot be reached (Connection refused); run the command again later, "
        "or import a copy with: gcr data import made PATH"
    )
    assert list(tmp_path.iterdir()) == []


def test_no_network_after_a_beginning(tmp_path):
    (tmp_path / "made.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(
        BadInput, match=r"Connection refused\); the same command goes on where this one stopped, or imp"
    ):
        fetch("http://127.0.0.1:9/made.bin", MD5, tmp_path / "made.bin")
    assert (tmp_path / "made.bin.part").read_bytes() == CONTENT[:1000]


def test_a_folder_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot write .*set GCR_DATA to another folder"):
        fetch(server.url, MD5, tmp_path / "file/made.bin")


def test_other_addresses_are_refused(tmp_path):
    with pytest.raises(BadInput, match="must begin with http"):
        fetch("file:///etc/passwd", MD5, tmp_path / "made.bin")


def test_a_server_that_sends_too_much_is_stopped(server, tmp_path):
    with pytest.raises(BadInput, match=r"the server sends more than 1000 bytes for made\.bin; it was removed"):
        fetch(server.url, MD5, tmp_path / "made.bin", most=1000)
    assert list(tmp_path.iterdir()) == []
