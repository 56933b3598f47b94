"""From archive to cache, and what is said on the way; downloads from a server on this machine."""

import hashlib
import re
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import made_data as made
import numpy as np
import pytest
from PIL import Image

from gcr.data import is_cached, open_cached
from gcr.data.catalog import Archive
from gcr.data.download import fetch
from gcr.data.importing import get_set, import_set
from gcr.files import read_json
from gcr.scenarios import entry, load
from gcr.settings import BadInput


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def archives(folder, url, files):
    return tuple(Archive(f"{url}/{name}", hashlib.md5((folder / name).read_bytes()).hexdigest(), 1) for name in files)


def test_get_cifar10(cache, served, monkeypatch):
    folder, url = served
    train, test = made.cifar10_parts()
    made.write_tar(folder / "cifar.tar.gz", made.cifar10_binary(train, test))
    made.put_in_catalog(monkeypatch, made.small("cifar10", 10, 2, archives=archives(folder, url, ["cifar.tar.gz"])))
    said = []
    about = get_set("cifar10", say=said.append)
    assert about.source == "cifar-binary"
    assert np.array_equal(open_cached("cifar10").images("train"), train[0])
    assert said[0] == f"cifar10: downloading {url}/cifar.tar.gz (1 MB)"
    assert [path.name for path in cache.iterdir()] == ["cifar10"]  # the archive is not kept
    assert said[1].endswith("cifar.tar.gz as cifar-binary, from its folder cifar-10-batches-bin")


def test_get_mnist_is_four_files_and_takes_a_mirror(cache, served, monkeypatch):
    folder, url = served
    train, test = made.examples(3, 10, (1, 28, 28)), made.examples(1, 10, (1, 28, 28), seed=1)
    files = made.mnist(train, test)
    made.write_folder(folder, files)
    elsewhere = archives(folder, "http://127.0.0.1:9/gone", files)
    made.put_in_catalog(monkeypatch, made.small("mnist", 3, 1, archives=elsewhere))
    with pytest.raises(BadInput, match=r"cannot be reached .* or import a copy with: gcr data import mnist PATH"):
        get_set("mnist")
    assert list(cache.iterdir() if cache.exists() else []) == []
    about = get_set("mnist", mirror=url + "/")
    assert about.source == "idx"
    assert np.array_equal(open_cached("mnist").labels("test"), test[1])


def test_get_a_wrong_archive_leaves_nothing(cache, served, monkeypatch):
    folder, url = served
    made.write_tar(folder / "cifar.tar.gz", {"x": b""})
    (wrong,) = archives(folder, url, ["cifar.tar.gz"])
    made.put_in_catalog(monkeypatch, made.small("cifar10", 10, 2, archives=(replace(wrong, md5="0" * 32),)))
    with pytest.raises(BadInput, match="is published; it was removed"):
        get_set("cifar10")
    assert not is_cached("cifar10")


def test_what_cannot_be_downloaded(cache):
    with pytest.raises(BadInput, match=r"imagenet1k cannot be downloaded .*gcr data import imagenet1k"):
        get_set("imagenet1k")
    with pytest.raises(BadInput, match="birds is not an official data set"):
        get_set("birds")


def test_import_says_what_it_took(cache, tmp_path):
    made.write_folder(tmp_path / "photos", made.pictures(parts=("",), n=5))
    said = []
    about = import_set("birds", [tmp_path / "photos"], size=8, say=said.append)
    assert about.source == "image-folder"
    assert said[0] == f"birds: reading {tmp_path / 'photos'} as image-folder"
    assert "3 of 15 pictures are held out" in said[1]


def test_import_says_that_test_images_are_training_images(cache, tmp_path):
    files = made.pictures(n=5)
    made.write_folder(tmp_path / "photos", files | {"test/wren/copy.png": files["train/tit/0.png"]})
    said = []
    import_set("birds", [tmp_path / "photos"], say=said.append)
    assert said[1:] == ["birds: 1 of 16 test images are copies of training images; remove them"]


@pytest.mark.parametrize("n_bits", [12, 16])
def test_import_says_if_all_pictures_are_nearly_black(cache, tmp_path, n_bits):
    for number in range(8):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 2**n_bits - 1 - number, dtype=np.uint16)).save(file)
    said = []
    import_set("deep", [tmp_path / "photos"], say=said.append)
    assert ("no training image has a value above 16 of 255" in said[-1]) == (n_bits == 12)


def test_a_set_that_is_not_mirrored(cache, tmp_path):
    """Nothing changes for sets that are: their files and fingerprints are those of before."""
    made.write_folder(tmp_path / "photos", made.pictures(parts=("",), n=4))
    before = import_set("birds", [tmp_path / "photos"], size=16)
    assert "mirrored" not in read_json(cache / "birds/about.json")
    assert entry("birds").views.flip
    after = import_set("birds", [tmp_path / "photos"], size=16, mirrored=False)
    assert (after.mirrored, open_cached("birds").about.mirrored) == (False, False)
    assert after.sha256 == before.sha256
    assert after.fingerprint != before.fingerprint  # its runs are not continued with the other views
    assert not entry("birds").views.flip
    assert load("birds").views.pad == 2
    with pytest.raises(BadInput, match="whether cifar10 is mirrored is part of its scenario, got --no-mirror; leave"):
        import_set("cifar10", [tmp_path / "photos"], mirrored=False)


def test_import_names_the_folder_it_found(cache, tmp_path, monkeypatch):
    train, test = made.cifar10_parts()
    made.put_in_catalog(monkeypatch, made.small("cifar10", 10, 2))
    made.write_folder(tmp_path / "given/old/stuff", made.cifar10_binary(train, test))
    there: list[str] = []
    for chosen in ("auto", "cifar-binary"):
        said = []
        import_set("cifar10", [tmp_path / "given"], chosen, say=said.append)
        assert said == [
            f"cifar10: reading {tmp_path / 'given'} as cifar-binary, from its folder old/stuff/cifar-10-batches-bin",
            *there,
        ]
        there = ["cifar10: replaces what was imported under this name before"]


def test_bad_pictures_of_both_parts_are_told_together(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("gcr.data.source.BLOCK_BYTES", 3 * 10 * 14 * 5)  # several blocks
    files = made.pictures()
    bad = ["train/robin/0.png", "train/robin/3.png", "train/wren/3.png", "test/robin/1.png", "test/tit/0.png"]
    files |= dict.fromkeys(bad, b"") | {"test/wren/2.png": b"no picture", "test/wren/3.png": b"\x89PNG"}
    made.write_folder(tmp_path / "photos", files)
    with pytest.raises(BadInput) as caught:
        import_set("birds", [tmp_path / "photos"])
    assert str(caught.value) == (
        f"7 pictures cannot be read: {', '.join(f'{name} (empty file)' for name in bad)} and 2 more; "
        "replace or remove them"
    )
    assert not is_cached("birds")
    for name in [*bad, "test/wren/2.png"]:
        (tmp_path / "photos" / name).unlink()
    with pytest.raises(BadInput, match=r"^test/wren/3\.png cannot be read as a picture \(not in a format that Pillow"):
        import_set("birds", [tmp_path / "photos"])


def test_only_bad_pictures(cache, tmp_path):
    made.write_folder(tmp_path / "photos", dict.fromkeys(made.pictures(), b""))
    with pytest.raises(BadInput, match=r"^12 pictures cannot be read: .* and 7 more; replace or remove them"):
        import_set("birds", [tmp_path / "photos"])


def test_an_official_set_larger_than_a_block(cache, tmp_path, monkeypatch):
    """Pictures cut to size pass in several blocks, as ImageNet's do."""
    monkeypatch.setattr("gcr.data.source.BLOCK_BYTES", 3 * 8 * 8 * 5)
    entry = made.small("imagenet1k", 4, 4, n_classes=3, shape=(3, 8, 8), resized=True)
    made.put_in_catalog(monkeypatch, replace(entry, train=12))
    made.write_folder(tmp_path / "photos", made.pictures(parts=("train", "val")))
    seen = []
    about = import_set("imagenet1k", [tmp_path / "photos"], progress=lambda *progress: seen.append(progress[1:]))
    assert seen == [(5, 24), (10, 24), (12, 24), (17, 24), (22, 24), (24, 24)]
    assert about.class_names == ("robin", "tit", "wren")
    assert open_cached("imagenet1k").images("train").shape == (12, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("seq-birds", {}, 'must not begin with "seq-", got "seq-birds"'),
        ("Birds", {}, "a data set's name must be small letters"),
        ("birds", {"format_name": "zip"}, 'unknown format "zip"'),
        ("birds", {"format_name": "idx"}, "is for official data sets; birds is one of your own: use parquet or image"),
        ("cifar10", {"size": 64}, "cifar10 is of 32 pixels, got --size 64"),
        ("cifar10", {}, 'cifar10 has 10 classes as "airplane", these folders are 3 as "robin"'),
        ("mnist", {"format_name": "idx"}, "must hold train-images-idx3-ubyte"),
    ],
)
def test_what_is_refused(cache, tmp_path, name, options, message):
    made.write_folder(tmp_path / "photos", made.pictures())
    with pytest.raises(BadInput, match=message):
        import_set(name, [tmp_path / "photos"], **options)
    assert not cache.exists()


def test_a_folder_of_nothing_known(cache, tmp_path):
    (tmp_path / "readme.txt").touch()
    with pytest.raises(BadInput, match="holds nothing that can be read as cifar10; known formats: cifar-binary"):
        import_set("cifar10", [tmp_path])


# --- Downloads: whole, broken and resumed, damaged, missing

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
