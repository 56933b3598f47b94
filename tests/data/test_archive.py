"""Archives: what is inside is read by name; what would escape, link or explode is refused."""

import gzip
import io
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
