"""Files that a later command believes: written whole and durably, with a digest of all their bytes, checked on reading.

JSON objects carry a SHA-256 as their last member, tensors a CRC-32 in their header. Files of an older gcr carry none;
they load with one line of notice.

>>> parse_json(json_bytes({"accuracy": 90.5}), "result.json")
{'accuracy': 90.5}
>>> parse_json(json_bytes({"accuracy": 90.5}).replace(b"9", b"8", 1), "result.json")
Traceback (most recent call last):
    ...
gcr.files.Damaged: result.json is damaged (its digest is wrong); move it away and make it again
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gcr.settings import BadInput, printable

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

KEY = "digest"
MAX_JSON_BYTES, MAX_JSON_DEPTH = 32 * 2**20, 64
# SHA-256 for what is small. CRC-32 for tensors: it is 7 times as fast, and misses no single damaged stretch of 32 bits.
KINDS = {b"sha256": 64, b"crc32": 8}  # with the number of their digits
DIGEST = re.compile(rb'\\?"digest\\?":\s?\\?"(sha256|crc32):([0-9a-f]+)\\?"')
TRACE = re.compile(rb'"digest|digest\\?"|sha256:|crc32:')  # of a digest that is itself damaged
MOVED = re.compile(rb'sha256:|"digest":\s?"s')  # and of one in swapped blocks, anywhere: other digests there are plain
TAIL_BYTES = 100  # the end of a JSON file, with its digest
HEADER_LENGTH = 8  # bytes before the header of a safetensors file


class Damaged(BadInput):
    """A file that is not as it was written."""

    def __init__(self, file: str | Path, why: str) -> None:
        super().__init__(f"{file} is damaged ({why}); move it away and make it again")
        self.file, self.why = Path(file), why


def brief(error: Exception) -> str:
    """For a message that names the folder and the remedy itself."""
    return f"{error.file.name} is damaged: {error.why}" if isinstance(error, Damaged) else str(error)


# --- writing


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name, sync, rename, sync the folder: after a crash there is the old file or the new one.

    What killed processes left of the same file is removed.
    """
    temporary = path.with_name(f".{path.name}.{this_process()}.part")
    try:
        with open(temporary, "wb") as file:
            _write_durably(file, content)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a write does not name it
        raise
    sync_folder(path.parent)
    sweep(path.parent, path.name)


def append_line(path: Path, line: bytes) -> None:
    """Durably. A line that could not be written whole is taken back."""
    with open(path, "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            _write_durably(file, line)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file.fileno(), size)
            error.filename = str(path)
            raise


def _write_durably(file: BinaryIO, content: bytes) -> None:
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Renames in it survive a power cut, where the file system can promise that."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise


def sweep(folder: Path, name: str = "") -> None:
    """Remove temporary files that dead processes of this machine left: of one file, or of all in the folder."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(f".{name}") and is_left(entry.name, name):
                with suppress(OSError):
                    os.unlink(entry.path)


def is_left(temporary: str, name: str = "") -> bool:
    """Whether a dead process of this machine left what is called so: for the file ``name``, or for any."""
    match = re.fullmatch(r"\.(.+)\.([0-9a-f]{8})-(\d+)(\.old)?\.part", temporary)
    return bool(match and name in ("", match[1]) and match[2] == _this_machine() and not is_alive(int(match[3])))


def is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere the question would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def this_process() -> str:
    """For temporary names, ``.NAME.<this>.part``; shared folders hold those of several machines."""
    return f"{_this_machine()}-{os.getpid()}"


def _this_machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


# --- JSON


def json_bytes(values: Mapping[str, Any], indent: int | None = 2) -> bytes:
    """A JSON object and its digest as UTF-8; on one line without ``indent``."""
    text = json.dumps(dict(values) | {KEY: f"sha256:{'0' * 64}"}, indent=indent, separators=_separators(indent)) + "\n"
    return _sealed(text.encode(), len(text) - TAIL_BYTES, len(text))


def load_json(content: str | bytes) -> Any:
    """The value of a JSON text of bounded size and depth.

    >>> load_json("[" * 70 + "]" * 70)
    Traceback (most recent call last):
        ...
    gcr.settings.BadInput: JSON must be at most 64 levels deep
    """
    if len(content) > MAX_JSON_BYTES:
        raise BadInput(f"JSON must have at most {MAX_JSON_BYTES} bytes, got {len(content)}")
    try:
        value = json.loads(content)
    except RecursionError:
        raise BadInput(f"JSON must be at most {MAX_JSON_DEPTH} levels deep") from None
    opened = content.count(b"[") + content.count(b"{") if isinstance(content, bytes) else MAX_JSON_DEPTH + 1
    if opened <= MAX_JSON_DEPTH:  # nearly always, and ten times as quick to see
        return value
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inside = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [one for values in inside for one in values if isinstance(one, (dict, list))]
        if not level:
            return value
    raise BadInput(f"JSON must be at most {MAX_JSON_DEPTH} levels deep")


def parse_json(content: bytes, file: str | Path) -> dict[str, Any]:
    """What ``json_bytes`` was given."""
    has_digest = _check(content, max(0, len(content) - TAIL_BYTES), len(content), file)
    try:
        values = load_json(content)
    except ValueError as error:
        raise Damaged(file, f"no JSON ({_plainly(error)})") from None
    if not isinstance(values, dict):
        raise Damaged(file, f"must be a JSON object, got {type(values).__name__}")
    if (values.pop(KEY, None) is not None) != has_digest:
        raise Damaged(file, "its digest is not at its end")
    if not has_digest:
        _notice_unchecked(file)
    return values


def _plainly(error: Exception) -> str:
    """What Python and its libraries say in words of their own."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not of UTF-8"
    return "a number with too many digits" if "digits" in str(error) else str(error)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_whole(path, json_bytes(values))


def read_json(path: Path) -> dict[str, Any]:
    return parse_json(read_file(path, MAX_JSON_BYTES), path)


def read_file(path: Path, most: int | None = None) -> bytes:
    """All bytes of a regular file, ``most`` of them: a pipe would keep the reader waiting, a device has no end."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise Damaged(path, "not a regular file")
    if most is not None and about.st_size > most:
        raise Damaged(path, f"must be a file of at most {most} bytes")
    return path.read_bytes()


def digest_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values of a JSON object, in their order; the text may be laid out in any way."""
    return sha256(json.dumps(dict(values), separators=_separators(None)).encode())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _separators(indent: int | None) -> tuple[str, str]:
    return (",", ":") if indent is None else (",", ": ")


# --- tensors


def tensor_bytes(tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file. Its header has ``about`` as JSON, and the digest."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(plain, {"gcr": json.dumps(dict(about or {}) | {KEY: f"crc32:{'0' * 8}"})})
    return _sealed(content, HEADER_LENGTH, _header_end(content))


def parse_tensors(content: bytes, file: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``tensor_bytes`` was given: about, tensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if len(content) <= HEADER_LENGTH:
        raise Damaged(file, f"no tensors in {len(content)} bytes")
    end = _header_end(content)
    has_digest = _check(content, HEADER_LENGTH, end, file)
    try:
        header = json.loads(content[HEADER_LENGTH:end])
        about = json.loads(header.get("__metadata__", {}).get("gcr", "{}"))
        if not isinstance(about, dict):
            raise ValueError("its header does not say what it is")
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(file, f"no tensors ({_plainly(error)})") from None
    if (about.pop(KEY, None) is not None) != has_digest:
        raise Damaged(file, "its digest is not in its header")
    if not has_digest:
        _notice_unchecked(file)
    return about, tensors


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return parse_tensors(read_file(path), path)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _header_end(content: bytes) -> int:
    return min(len(content), HEADER_LENGTH + int.from_bytes(content[:HEADER_LENGTH], "little"))


# --- digests: of all bytes, with zeros in place of the digest's own


def _sealed(content: bytes, start: int, end: int) -> bytes:
    """``content`` with its digest in place of the zeros, which stand between ``start`` and ``end``."""
    *_, match = DIGEST.finditer(content, max(0, start), end)
    view = memoryview(content)
    return b"".join((view[: match.start(2)], _digest(content, match), view[match.end(2) :]))


def _check(content: bytes, start: int, end: int, file: str | Path) -> bool:
    """Whether there is a digest between ``start`` and ``end``. ``Damaged`` if it is wrong."""
    *_, match = (None, *DIGEST.finditer(content, start, end))
    if match is None:
        if TRACE.search(content, start, end) or MOVED.search(content, 0, end):
            raise Damaged(file, "its digest is wrong")
        return False
    if _digest(content, match) != match[2]:
        raise Damaged(file, "its digest is wrong")
    return True


def _digest(content: bytes, place: re.Match[bytes]) -> bytes:
    view = memoryview(content)
    before, after = view[: place.start(2)], view[place.end(2) :]
    zeros = b"0" * KINDS[place[1]]
    if place[1] == b"crc32":
        return b"%08x" % zlib.crc32(after, zlib.crc32(zeros, zlib.crc32(before)))
    return sha256(b"".join((before, zeros, after))).encode()


unchecked: list[str] = []  # files without a digest that this command has read
linked_to_none: list[str] = []  # files of an older gcr that do not say what belongs to them; those have their digest


def _notice_unchecked(file: str | Path) -> None:
    """Once in a command."""
    if not unchecked:
        name = printable(str(file))
        log.warning("%s carries no digest, being of an older gcr; it and others like it are read unchecked", name)
    unchecked.append(str(file))
