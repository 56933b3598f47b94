"""Hostile files: archives that lead out or never end, pickles in every place, pictures, tables and JSON that lie.

Nothing is let in: no file outside the folder, no code run, no result made of them; a reader says so within 10 seconds
of a processor and 1 GiB.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from children import Child, Ended, Tally
from damage import HUNG_SECONDS, cost, is_hung
from victims import command, names

MEMORY_MIB = 1024  # more than the process had before
PNG = b"\x89PNG\r\n\x1a\n"


def tar(*members: tuple[str, bytes, bytes], mode: str = "w") -> bytes:
    """Of (name, type, content or, of a link, where it leads)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.GNU_FORMAT) as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o644
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = content.decode()
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def archive_zip(name: str, content: bytes, mode: int = 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = mode << 16, method
        archive.writestr(info, content)
    return file.getvalue()


def in_index(content: bytes, offset: int, value: bytes) -> bytes:
    """A zip whose index has other bytes there."""
    data = bytearray(content)
    at = data.rindex(b"PK\x01\x02") + offset
    data[at : at + len(value)] = value
    return bytes(data)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_of(width: int, height: int, rows: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return PNG + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def archives() -> Iterator[tuple[str, bytes]]:
    """Names and contents of files, each refused by ``gcr data import``."""
    out = ("../out", "/tmp/out", "a/../../out", "..\\out", "C:/out", "a\nb", "a\x1b[2Jb", "./../out", "a/./../../out")
    for name in out:
        yield "x.tar", tar(("good.png", tarfile.REGTYPE, b"1"), (name, tarfile.REGTYPE, b"1"))
        yield "x.tgz", tar((name, tarfile.REGTYPE, b"1"), mode="w:gz")
        yield "x.zip", archive_zip(name, b"1")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        for to in (b"/etc/passwd", b"../../secret", b"good.png"):
            yield "x.tar", tar(("good.png", tarfile.REGTYPE, b"1"), ("link.png", kind, to))
    for mode in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO):
        yield "x.zip", archive_zip("link.png", b"/etc/passwd", mode | 0o777)
    yield "x.tar", tar(*[("same.png", tarfile.REGTYPE, b"1")] * 2)
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        yield "x.zip", archive_zip("a.png", bytes(1000), method=method)
    for offset, value in ((6, b"\xff\xff"), (8, b"\x01\x00"), (8, b"\x40\x00"), (8, b"\x20\x00"), (10, b"\x62\x00"),
                          (20, b"\xff\xff\xff\x00"), (24, b"\xff\xff\xff\x7f"), (42, b"\xff\xff\xff\x7f")):  # fmt: skip
        yield "x.zip", in_index(archive_zip("a.png", b"1"), offset, value)
    for size in (b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0", b"not octal!!\0"):
        header = bytearray(tarfile.TarInfo("a").tobuf())
        header[124:136] = size
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
        yield "x.tar", bytes(header) + bytes(1024)
    zeros = bytes(200_000_000)  # a bomb: some 200 kB packed
    yield "x.zip", archive_zip("a.png", zeros)
    yield "x.tgz", tar(("a.png", tarfile.REGTYPE, zeros), mode="w:gz")
    yield "x.tar", tar(*((f"{number}.png", tarfile.REGTYPE, b"") for number in range(50_000)))  # names without pictures


def pictures() -> Iterator[tuple[str, bytes]]:
    for width, height in ((2**31 - 1, 2**31 - 1), (100_000, 100_000), (30_000, 30_000), (0, 5), (1, 2**30)):
        yield "train/robin/x.png", png_of(width, height, bytes(1000))
    yield "train/robin/x.png", PNG
    yield "train/robin/x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    yield "train/robin/x.png", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield "train/robin/x.gif", b"GIF89a" + b"\xff" * 5000
    yield "train/robin/x.tif", b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 500


def import_at(name: str, content: bytes) -> int:
    """A folder of pictures, one of them hostile, or a hostile archive alone."""
    from made_data import pictures as sound

    there = Path("given")
    if "/" in name:
        for file, good in (sound(n=2) | {name: content}).items():
            (there / file).parent.mkdir(parents=True, exist_ok=True)
            (there / file).write_bytes(good)
    else:
        there = Path(name)
        there.write_bytes(content)
    return command(f"data import hostile {there}")


def imported(at: Path) -> Tally:
    """``gcr data import`` of each: exit code 2 and a line; nothing in the cache, nothing elsewhere."""
    tally = Tally()
    for number, (name, content) in enumerate([*archives(), *pictures()]):
        work = at / f"{number}" / "inner" / "here"
        work.mkdir(parents=True)
        ended = Child(partial(import_at, name, content), work).wait(HUNG_SECONDS)
        found = _bounded(ended)
        said = [line for line in ended.err.splitlines() if line != "hostile: reading given as image-folder"]
        if not found and (ended.code != 2 or len(said) != 1 or not said[0].startswith("error: ")):
            found.append("silent")
        if (work / "cache" / "hostile").exists():
            found.append("wrong")
        outside = [path for path in names(at / f"{number}") if not path.startswith("inner/here/")]
        if outside != ["inner", "inner/here"] or Path("/tmp/out").exists():
            found.append("wrong")
        what = f"{name}, number {number}: exit code {ended.code}, {ended.err.strip()[-200:]!r}"
        tally.count(what, *dict.fromkeys(found))
        tally.add(cost(ended))
    return tally


def _bounded(ended: Ended) -> list[str]:
    if is_hung(ended):
        return ["hangs"]
    if ended.traceback or ended.code < 0:
        return ["tracebacks"]
    return ["wrong"] * (ended.mebibytes > _here_mib() + MEMORY_MIB)


def _here_mib() -> float:
    """Of memory that a child has from the start."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def pickles(at: Path) -> Tally:
    """In the place of each kind of file that each reader reads: refused or passed over, never run."""
    from fuzz_readers import READERS

    tally, touched = Tally(), at / "touched"
    for name, reader in READERS.items():
        sound = reader.files()
        places = {os.path.basename(file).rpartition(".")[2]: file for file in sound}.values()
        for number, file in itertools.product(range(4), places):
            folder = at / f"{tally.tried}"
            ended = Child(partial(_read_pickle, reader, sound, file, number, folder, touched)).wait(HUNG_SECONDS)
            found = _bounded(ended) or ["wrong"] * touched.exists()
            tally.count(f"a pickle for {file} of {name}: {ended.err[-200:]!r}", *found)
            tally.add(cost(ended))
    return tally


def _read_pickle(reader: Any, sound: dict[str, bytes], file: str, number: int, folder: Path, touched: Path) -> int:
    from test_security import hostile

    for name, content in (sound | {file: hostile(touched)[number]}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(reader.pack(name, content))
    return _answer(partial(reader.read, folder))


def mutated(at: Path, reader: str, number: int, seed: int) -> Tally:
    """Files of a reader with some bytes changed, as ``make fuzz`` draws them, each in a process of its own."""
    from fuzz_readers import READERS, attack, scratch

    tally, files = Tally(), READERS[reader].files()
    for i in range(number):

        def read(i: int = i) -> int:
            with scratch() as folder:
                draw = random.Random(f"{seed} {reader} {i}")
                return _answer(lambda: attack(READERS[reader], files, folder, draw))

        ended = Child(read).wait(HUNG_SECONDS)
        tally.count(f"{reader}, number {i}: {ended.err[-300:]!r}", *_bounded(ended))
        tally.add(cost(ended))
    return tally


def _answer(read: Callable[[], object]) -> int:
    from gcr.settings import BadInput

    try:
        read()
    except BadInput:
        return 2
    return 0
