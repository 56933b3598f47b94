"""Files by name, from a folder, a zip, a tar archive or a few single files; nothing is ever extracted to disk.

An archive is refused as a whole if a member has an absolute path, one with ".." or a name that is not text, is a link,
a device or a sparse file, is encrypted, is packed by an unusual method or occurs twice; or if the archive has too many
members, unpacks to too much, or to too much for its size.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gcr.settings import BadInput

MAX_MEMBERS = 3_000_000
MAX_ZIP_BYTES = 500 * 2**30  # members are read one at a time
MAX_TAR_BYTES = 4 * 2**30  # all members are held in memory
MAX_MEMBER_BYTES = 2 * 2**30
RATIO_FROM, MAX_RATIO = 64 * 2**20, 200  # what unpacks to more than the first may be so many times its packed size
MAX_HEADERS = 2**20, 4096  # bytes of a tar that are no contents: in all, and for each member
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ZIP_FLAGS = {0x1: "encrypted", 0x20: "a patch of another file", 0x40: "encrypted", 0x2000: "encrypted"}


@dataclass(frozen=True)
class Tree:
    """Files with relative names, parts separated by "/"."""

    where: str  # as the user gave it
    names: tuple[str, ...]
    read: Callable[[str], bytes]
    on_disk: Callable[[str], Path | None] = lambda name: None  # the file itself, where there is one
    folders: tuple[str, ...] = ()  # empty ones too, as far as an archive lists them

    def root_with(self, *wanted: str) -> str | None:
        """The shallowest folder (as "" or "a/b/") below which all ``wanted`` files are."""
        there = set(self.names)
        roots = [name.removesuffix(wanted[0]) for name in self.names if f"/{name}".endswith(f"/{wanted[0]}")]
        for root in sorted(roots, key=lambda root: (root.count("/"), root)):
            if all(root + file in there for file in wanted):
                return root
        return None


def open_tree(paths: list[Path]) -> Tree:
    """A folder, an archive, or files side by side."""
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path} does not exist; give the file or folder that holds the data set")
        if not path.is_file() and not path.is_dir():
            raise BadInput(f"{path} is not a plain file; give the file or folder that holds the data set")
    if len(paths) > 1:
        if folders := [path for path in paths if path.is_dir()]:
            raise BadInput(f"{folders[0]} is a folder; give one folder, one archive, or several files")
        return _single_files(paths)
    path = paths[0]
    if path.is_dir():
        return _folder(path)
    if path.name.endswith(TAR_SUFFIXES):
        return _tar(path)
    if path.suffix == ".zip":
        return _zip(path)
    return _single_files(paths)


def gunzip(data: bytes, name: str, limit: int = MAX_MEMBER_BYTES) -> bytes:
    """Unpacked ``data``; an error for what is damaged or unpacks to more than ``limit`` bytes, or a bomb."""
    limit = min(limit, most_unpacked(len(data)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{name} is not a complete gzip file ({error}); get it again") from None
    if len(unpacked) > limit:
        raise BadInput(f"{name} unpacks to more than {limit} bytes; it is not what it should be")
    return unpacked


def most_unpacked(packed: int) -> int:
    """Bytes that a file of ``packed`` bytes may unpack to."""
    return RATIO_FROM + MAX_RATIO * packed


def read_file(path: Path) -> bytes:
    """Its content; an error for what cannot be read, is too large, or is a pipe or a device, which may have no end."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise BadInput(f"{path} must be a file; it is a folder, a pipe or a device")
        if about.st_size > MAX_MEMBER_BYTES:
            raise BadInput(f"{path} has {about.st_size} bytes; at most {MAX_MEMBER_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None


def _single_files(paths: list[Path]) -> Tree:
    by_name = {path.name: path for path in paths}
    if len(by_name) < len(paths):
        raise BadInput("two of the given files have the same name; give their folder instead")
    where = " ".join(map(str, paths))
    return Tree(where, tuple(by_name), lambda name: read_file(by_name[name]), lambda name: by_name[name])


def _folder(path: Path) -> Tree:
    names: list[str] = []
    inside: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in seen:  # a link back to where we have been
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        relative = Path(folder).relative_to(path).as_posix()
        prefix = "" if relative == "." else relative + "/"
        names.extend(prefix + file for file in files)
        inside.extend(prefix + one for one in folders)
    return Tree(
        str(path),
        tuple(sorted(names)),
        lambda name: read_file(path / name),
        lambda name: Path(path / name),
        tuple(sorted(inside)),
    )


def _zip(path: Path) -> Tree:
    members: dict[str, zipfile.ZipInfo] = {}
    folders: list[str] = []
    try:
        archive = zipfile.ZipFile(path)
        gate = _Gate(path, MAX_ZIP_BYTES)
        for info in archive.infolist():
            name = gate.admit(info.filename, info.file_size)
            _check_packing(info, gate)
            if info.is_dir():
                folders.append(name)
            else:
                members[gate.once(name)] = info
    except BadInput:
        raise
    except Exception as error:  # damaged archives raise many kinds
        raise BadInput(f"{path} is not a complete zip archive ({in_short(error)}); get it again") from None
    if sum(info.compress_size for info in members.values()) > path.stat().st_size:
        raise BadInput(f"{path} is refused: its members overlap; get the archive from a source you trust")

    def read(name: str) -> bytes:
        try:
            return archive.read(members[name])  # never gives more than the size the archive states, and checks its CRC
        except Exception as error:
            raise BadInput(f"{name} in {path} cannot be unpacked ({in_short(error)}); get the archive again") from None

    return Tree(str(path), tuple(sorted(members)), read, folders=tuple(folders))


def _check_packing(info: zipfile.ZipInfo, gate: _Gate) -> None:
    if stat.S_ISLNK(info.external_attr >> 16):
        raise gate.refused(info.filename, "a link")
    for flag, what in ZIP_FLAGS.items():
        if info.flag_bits & flag:
            raise gate.refused(info.filename, what)
    if info.compress_type not in ZIP_METHODS:
        raise gate.refused(
            info.filename, f"packed by method {info.compress_type}", "unpack it yourself, or use deflate"
        )


def _tar(path: Path) -> Tree:
    """A compressed tar has no index, so that its files are read in one pass and kept in memory."""
    contents: dict[str, bytes] = {}
    folders: list[str] = []
    try:
        gate = _Gate(path, MAX_TAR_BYTES)
        with open(path, "rb") as file, gzip.open(file) if _is_gzip(file) else file as plain:
            stream = _Limited(plain, gate)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    _check_kind(member, gate)
                    name = gate.admit(member.name, member.size)
                    if member.isdir():
                        folders.append(name)
                    else:
                        content = archive.extractfile(member)
                        contents[gate.once(name)] = content.read() if content else b""
    except BadInput:
        raise
    except Exception as error:  # damaged archives raise many kinds
        raise BadInput(f"{path} is not a complete tar archive ({in_short(error)}); get it again") from None
    return Tree(str(path), tuple(sorted(contents)), contents.__getitem__, folders=tuple(folders))


def _check_kind(member: tarfile.TarInfo, gate: _Gate) -> None:
    if not (member.isfile() or member.isdir()):
        raise gate.refused(member.name, "a link" if member.issym() or member.islnk() else "a device")
    if member.issparse():
        raise gate.refused(member.name, "a sparse file")
    if member.size < 0:
        raise gate.refused(member.name, f"{member.size} bytes")


def in_short(error: Exception) -> str:
    """What a library says of a damaged file, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_gzip(file: IO[bytes]) -> bool:
    start = file.read(2)
    file.seek(0)
    return start == b"\x1f\x8b"


def _printable(name: str) -> str:
    """
    >>> _printable("a\\nb")
    'a\\\\nb'
    """
    return repr(name[:200])[1:-1]


class _Gate:
    """What members of an archive must keep to."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, min(max_bytes, most_unpacked(path.stat().st_size))
        self.members = self.bytes = 0
        self.names: set[str] = set()

    def refused(self, name: str, what: str, remedy: str = "get the archive from a source you trust") -> BadInput:
        return BadInput(f'{self.path} is refused: its member "{_printable(name)}" is {what}; {remedy}')

    def admit(self, name: str, size: int) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or name[1:2] == ":":
            raise self.refused(name, "a path that leads out of the archive")
        if not all(" " <= letter < "\ud800" or letter > "\udfff" for letter in name):
            raise self.refused(name, "a name that is not text")
        if size > MAX_MEMBER_BYTES:
            raise self.refused(name, f"{size} bytes unpacked, more than {MAX_MEMBER_BYTES}")
        self.members += 1
        self.bytes += size
        if self.members > MAX_MEMBERS:
            raise BadInput(f"{self.path} is refused: it has more than {MAX_MEMBERS} members")
        self.check_bytes(self.bytes)
        return "/".join(parts)

    def check_bytes(self, n_bytes: int) -> None:
        if n_bytes > self.max_bytes:
            raise BadInput(
                f"{self.path} is refused: it unpacks to more than {self.max_bytes} bytes; if you trust it, unpack it "
                "and give the folder"
            )

    def once(self, name: str) -> str:
        if name in self.names or not name:
            raise self.refused(name, "there twice" if name else "without a name")
        self.names.add(name)
        return name


class _Limited:
    """A stream that ends with an error when more bytes are unpacked than allowed, whatever the headers say."""

    def __init__(self, stream: Any, gate: _Gate) -> None:
        self.stream, self.gate, self.bytes = stream, gate, 0

    def read(self, size: int) -> bytes:
        block: bytes = self.stream.read(size)
        self.bytes += len(block)
        headers = MAX_HEADERS[0] + MAX_HEADERS[1] * self.gate.members  # and padding: they do not count as contents
        self.gate.check_bytes(self.bytes - headers)
        if self.bytes - headers > self.gate.bytes:
            raise BadInput(f"{self.gate.path} is refused: it unpacks to more than its members; get it again")
        return block
