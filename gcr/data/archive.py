"""Files by name, from a folder, a zip, a tar archive or a few single files; nothing is ever extracted to disk.

An archive is refused as a whole if a member has an absolute path or one with "..", is a link or a device, occurs
twice, or if the archive has too many members or unpacks to too much.
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
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


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
    """Unpacked ``data``; an error for what is damaged or unpacks to more than ``limit`` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{name} is not a complete gzip file ({error}); get it again") from None
    if len(unpacked) > limit:
        raise BadInput(f"{name} unpacks to more than {limit} bytes; it is not what it should be")
    return unpacked


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None


def _single_files(paths: list[Path]) -> Tree:
    by_name = {path.name: path for path in paths}
    if len(by_name) < len(paths):
        raise BadInput("two of the given files have the same name; give their folder instead")
    where = " ".join(map(str, paths))
    return Tree(where, tuple(by_name), lambda name: _read_file(by_name[name]), lambda name: by_name[name])


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
        lambda name: _read_file(path / name),
        lambda name: Path(path / name),
        tuple(sorted(inside)),
    )


def _zip(path: Path) -> Tree:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is not a complete zip archive ({error}); get it again") from None
    gate = _Gate(path, MAX_ZIP_BYTES)
    members: dict[str, zipfile.ZipInfo] = {}
    folders: list[str] = []
    for info in archive.infolist():
        if stat.S_ISLNK(info.external_attr >> 16):
            raise gate.refused(info.filename, "a link")
        if info.flag_bits & 1:
            raise gate.refused(info.filename, "encrypted")
        name = gate.admit(info.filename, info.file_size)
        if info.is_dir():
            folders.append(name)
        else:
            members[gate.once(name)] = info

    def read(name: str) -> bytes:
        try:
            return archive.read(members[name])  # never gives more than the size the archive states, and checks its CRC
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise BadInput(f"{name} in {path} cannot be unpacked ({error}); get the archive again") from None

    return Tree(str(path), tuple(sorted(members)), read, folders=tuple(folders))


def _tar(path: Path) -> Tree:
    """A compressed tar has no index, so that its files are read in one pass and kept in memory."""
    gate = _Gate(path, MAX_TAR_BYTES)
    contents: dict[str, bytes] = {}
    folders: list[str] = []
    try:
        with open(path, "rb") as file, gzip.open(file) if _is_gzip(file) else file as plain:
            stream = _Limited(plain, gate)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    if not (member.isfile() or member.isdir()):
                        raise gate.refused(member.name, "a link" if member.issym() or member.islnk() else "a device")
                    name = gate.admit(member.name, member.size)
                    if member.isdir():
                        folders.append(name)
                    else:
                        content = archive.extractfile(member)
                        contents[gate.once(name)] = content.read() if content else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise BadInput(f"{path} is not a complete tar archive ({error}); get it again") from None
    return Tree(str(path), tuple(sorted(contents)), contents.__getitem__, folders=tuple(folders))


def _is_gzip(file: IO[bytes]) -> bool:
    start = file.read(2)
    file.seek(0)
    return start == b"\x1f\x8b"


class _Gate:
    """What members of an archive must keep to."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self.members = self.bytes = 0
        self.names: set[str] = set()

    def refused(self, name: str, what: str) -> BadInput:
        return BadInput(
            f'{self.path} is refused: its member "{name}" is {what}; get the archive from a source you trust'
        )

    def admit(self, name: str, size: int) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or name[1:2] == ":":
            raise self.refused(name, "a path that leads out of the archive")
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
                f"{self.path} is refused: it unpacks to more than {self.max_bytes} bytes; unpack it yourself"
            )

    def once(self, name: str) -> str:
        if name in self.names:
            raise self.refused(name, "there twice")
        self.names.add(name)
        return name


class _Limited:
    """A stream that ends with an error when more bytes are unpacked than allowed, whatever the headers say."""

    def __init__(self, stream: Any, gate: _Gate) -> None:
        self.stream, self.gate, self.bytes = stream, gate, 0

    def read(self, size: int) -> bytes:
        block: bytes = self.stream.read(size)
        self.bytes += len(block)
        headers = 2**20 + 1536 * self.gate.members  # and padding: they do not count as contents
        self.gate.check_bytes(self.bytes - headers)
        return block
