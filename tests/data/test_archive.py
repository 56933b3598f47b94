"""Archives: what is inside is read by name; what would escape, link or explode is refused."""

import gzip
import io
import os
import random
import tarfile
import zipfile

import pytest
from made_data import write_folder, write_tar, write_zip

from gcr.data import archive
from gcr.data.archive import gunzip, open_tree
from gcr.settings import BadInput

FILES = {"top/a.txt": b"a", "top/inner/b.txt": b"bb"}


@pytest.mark.parametrize("kind", ["folder", "tar.gz", "tgz", "tar", "zip"])
def test_files_by_name(tmp_path, kind):
    path = tmp_path / f"made.{kind}"
    if kind == "folder":
        write_folder(path, FILES)
    elif kind == "zip":
        write_zip(path, FILES)
    else:
        write_tar(path, FILES, "w" if kind == "tar" else "w:gz")
    tree = open_tree([path])
    assert tree.names == ("top/a.txt", "top/inner/b.txt")
    assert tree.read("top/inner/b.txt") == b"bb"
    assert tree.root_with("inner/b.txt", "a.txt") == "top/"
    assert tree.root_with("b.txt") == "top/inner/"
    assert tree.root_with("a.txt", "b.txt") is None


def test_files_side_by_side(tmp_path):
    write_folder(tmp_path, FILES)
    tree = open_tree([tmp_path / "top/a.txt", tmp_path / "top/inner/b.txt"])
    assert tree.names == ("a.txt", "b.txt")
    assert tree.read("b.txt") == b"bb"


def test_a_folder_that_links_to_itself_ends(tmp_path):
    write_folder(tmp_path, FILES)
    (tmp_path / "top/again").symlink_to(tmp_path)
    assert open_tree([tmp_path]).names == ("top/a.txt", "top/inner/b.txt")


@pytest.mark.parametrize("name", ["../a", "/etc/a", "b/../../a", "..\\a", "C:/a"])
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_paths_that_lead_out_are_refused(tmp_path, name, write):
    path = write(tmp_path / ("x.zip" if write is write_zip else "x.tgz"), {"good": b"", name: b"bad"})
    with pytest.raises(BadInput, match="leads out of the archive"):
        open_tree([path])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as made:
        info = tarfile.TarInfo("innocent")
        info.type, info.linkname = kind, "/etc/passwd"
        made.addfile(info)
    with pytest.raises(BadInput, match=r'"innocent" is a (link|device)'):
        open_tree([tmp_path / "x.tar.gz"])


def test_links_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        info = zipfile.ZipInfo("innocent")
        info.external_attr = 0o120777 << 16
        made.writestr(info, "/etc/passwd")
    with pytest.raises(BadInput, match='"innocent" is a link'):
        open_tree([tmp_path / "x.zip"])


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as made:
        for _ in range(2):
            made.addfile(tarfile.TarInfo("same"), io.BytesIO())
    with pytest.raises(BadInput, match="there twice"):
        open_tree([tmp_path / "x.tar"])


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_unusual_methods_in_a_zip_are_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as made:
        made.writestr("a", bytes(1000))
    with pytest.raises(BadInput, match=f'"a" is packed by method {method}; unpack it yourself, or use deflate'):
        open_tree([tmp_path / "x.zip"])


def changed_zip(path, offset, value):
    """A zip with one member, "a", whose entry in the index has other bytes at the offset."""
    data = bytearray(write_zip(path, {"a": b"1"}).read_bytes())
    at = data.rindex(b"PK\x01\x02") + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (6, b"\xff\xff", "not a complete zip archive"),  # needs a newer version to unpack
        (8, b"\x01\x00", '"a" is encrypted'),
        (8, b"\x40\x00", '"a" is encrypted'),
        (8, b"\x20\x00", '"a" is a patch of another file'),
        (10, b"\x62\x00", '"a" is packed by method 98'),
        (20, b"\xff\xff\xff\x00", "its members overlap"),  # packed size
        (46, b"\n", r'"\\n" is a name that is not text'),
        (46, b"/", "leads out of the archive"),
    ],
)
def test_odd_entries_of_a_zip_are_refused(tmp_path, offset, value, message):
    with pytest.raises(BadInput, match=message) as error:
        open_tree([changed_zip(tmp_path / "x.zip", offset, value)])
    assert "\n" not in str(error.value)


def test_a_zip_name_that_is_not_utf_8_is_refused(tmp_path):
    data = write_zip(tmp_path / "x.zip", {"ä": b"1"}).read_bytes()
    (tmp_path / "x.zip").write_bytes(data.replace("ä".encode(), b"\xff\xff"))
    with pytest.raises(BadInput, match="is not a complete zip archive"):
        open_tree([tmp_path / "x.zip"])


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", b"a\xff".decode(errors="surrogateescape")])
def test_tar_names_that_are_not_text_are_refused(tmp_path, name):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as made:
        made.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(BadInput, match="is a name that is not text") as error:
        open_tree([tmp_path / "x.tar"])
    assert str(error.value).isprintable()


def test_a_tar_of_the_folder_itself_is_read(tmp_path):
    write_folder(tmp_path / "in", FILES)
    with tarfile.open(tmp_path / "x.tar", "w") as made:
        made.add(tmp_path / "in", ".")
    assert open_tree([tmp_path / "x.tar"]).names == ("top/a.txt", "top/inner/b.txt")


def test_sparse_files_in_a_tar_are_refused(tmp_path):
    """A map of a few bytes stands for a file of any size."""
    header = bytearray(tarfile.TarInfo("holes").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 0)  # nothing is stored
    header[483:495] = b"%011o\0" % 10**9  # its size
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    (tmp_path / "x.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(BadInput, match='"holes" is a sparse file'):
        open_tree([tmp_path / "x.tar"])


@pytest.mark.parametrize("size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0", b"not octal!!\0"])
def test_tar_sizes_that_cannot_be_are_refused(tmp_path, size):
    header = bytearray(tarfile.TarInfo("a").tobuf())
    header[124:136] = size
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    (tmp_path / "x.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(BadInput, match=r"is refused|is not a complete tar"):
        open_tree([tmp_path / "x.tar"])


def test_what_unpacks_to_too_much_for_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "RATIO_FROM", 1_000_000)
    zeros = {"zeros": bytes(3_000_000)}
    for path in (write_tar(tmp_path / "x.tgz", zeros), write_zip(tmp_path / "x.zip", zeros)):
        with pytest.raises(BadInput, match="unpacks to more than"):
            open_tree([path])
    with pytest.raises(BadInput, match="unpacks to more than"):
        gunzip(gzip.compress(zeros["zeros"]), "x.gz")
    noise = {"noise": random.Random(0).randbytes(3_000_000)}
    assert open_tree([write_zip(tmp_path / "y.zip", noise)]).read("noise") == noise["noise"]


def test_a_pipe_or_a_file_without_end_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.png")
    for name in ("x.zip", "x.tar"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(BadInput, match="is not a plain file"):
            open_tree([tmp_path / name])
    with pytest.raises(BadInput, match=r"x\.png must be a file"):
        open_tree([tmp_path]).read("x.png")
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10)
    (tmp_path / "y.png").write_bytes(bytes(11))
    with pytest.raises(BadInput, match=r"y\.png has 11 bytes; at most 10 are read"):
        open_tree([tmp_path]).read("y.png")


def test_bombs_are_refused(tmp_path, monkeypatch):
    zeros = {"zeros": bytes(3_000_000)}
    tar, packed = write_tar(tmp_path / "x.tgz", zeros), write_zip(tmp_path / "x.zip", zeros)
    assert tar.stat().st_size < 10_000
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1_000_000)
    for path in (tar, packed):
        with pytest.raises(BadInput, match='"zeros" is 3000000 bytes unpacked'):
            open_tree([path])
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10_000_000)
    monkeypatch.setattr(archive, "MAX_TAR_BYTES", 1_000_000)
    monkeypatch.setattr(archive, "MAX_ZIP_BYTES", 1_000_000)
    for path in (tar, packed):
        with pytest.raises(BadInput, match="unpacks to more than 1000000 bytes"):
            open_tree([path])


def test_a_bomb_in_a_tar_header_is_refused(tmp_path, monkeypatch):
    """An extended header of megabytes is no member, but it is unpacked all the same."""
    with tarfile.open(tmp_path / "x.tgz", "w:gz", format=tarfile.PAX_FORMAT) as made:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": "x" * 5_000_000}
        made.addfile(info)
    monkeypatch.setattr(archive, "MAX_TAR_BYTES", 1_000_000)
    with pytest.raises(BadInput, match="unpacks to more than"):
        open_tree([tmp_path / "x.tgz"])


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "x.zip", {str(number): b"" for number in range(20)})
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    with pytest.raises(BadInput, match="more than 10 members"):
        open_tree([path])


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip", "x.tar"])
def test_broken_archives_are_named(tmp_path, name):
    write = write_zip if name == "x.zip" else write_tar
    whole = write(tmp_path / "whole", {"a": bytes(range(256)) * 100}).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=f"{name} is not a complete"):
        open_tree([tmp_path / name])


def test_gunzip_has_a_limit_and_names_damage():
    packed = gzip.compress(bytes(1000))
    assert gunzip(packed, "x.gz", limit=1000) == bytes(1000)
    with pytest.raises(BadInput, match=r"x\.gz unpacks to more than 999"):
        gunzip(packed, "x.gz", limit=999)
    with pytest.raises(BadInput, match=r"x\.gz is not a complete gzip file"):
        gunzip(packed[:-10], "x.gz")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match="nowhere does not exist"):
        open_tree([tmp_path / "nowhere"])
