"""Packed runs: the finished runs of a study in one gzipped JSON-lines file, small enough for a repository.

The first line has ``format``, ``version``, the number of ``runs`` and the ``sha256`` of all further lines (older
files lack the last two), and why runs ``diverged`` by path, if any did. Each further line is a run: ``path`` (as
``run-name/seed-0``), ``experiment``, ``result``, where they were kept ``metrics``, ``unchecked`` where these had no
digest before, being of an older gcr, and a digest of the line. Readers treat the file as a folder:
``online.jsonl.gz/run-name/seed-0``. Equal runs give equal bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gcr import files
from gcr.data.archive import most_unpacked
from gcr.files import KEY, brief, json_bytes, parse_json, sha256
from gcr.settings import BadInput

SUFFIX = ".jsonl.gz"
FORMAT, VERSION = "gcr-runs", 1
MOST_BAD = 10_000, 2**26  # lines that are no runs, and their bytes


@dataclass(frozen=True)
class PackedRun:
    """A run in a packed file. Reads like a ``RunFolder``; its buffer and its network are not packed."""

    file: Path
    name: str  # its path inside the file
    values: Mapping[str, Any]  # its line

    @property
    def path(self) -> Path:
        return self.file / self.name

    def experiment_values(self) -> Any:
        return self.values["experiment"]

    def result(self) -> dict[str, Any]:
        return dict(self.values["result"])

    def metrics(self) -> list[Any]:
        return list(self.values.get("metrics", []))

    def memory(self) -> dict[str, Tensor] | None:
        return None

    @property
    def failure(self) -> str | None:
        """Why the run diverged; None: it did not."""
        return self.values.get("failure")

    @property
    def unchecked(self) -> bool:
        """Whether nothing said, when it was packed, that it was as it had been written."""
        return "unchecked" in self.values


class BadFile(BadInput):
    def __init__(self, file: Path, why: str, remedy: str = "get or pack it again") -> None:
        super().__init__(f"{file} cannot be read ({why}); {remedy}")
        self.why, self.remedy = why, remedy


@dataclass(frozen=True)
class BadLine:
    number: int
    why: str


def packed_files(folder: Path) -> Iterator[Path]:
    """All packed files below ``folder``."""
    walked = ((here, name) for here, _, names in os.walk(folder) for name in names if name.endswith(SUFFIX))
    yield from sorted(file for here, name in walked if (file := Path(here, name)).is_file())


def split_path(path: Path) -> tuple[Path, str] | None:
    """A path as packed file and path inside it; None where there is no such file.

    ``results/online.jsonl.gz/er-k500`` is split after ``.gz``; the file alone has the inner path "".
    """
    for file in (path, *path.parents):
        if file.name.endswith(SUFFIX) and file.is_file():
            inner = path.relative_to(file).as_posix()
            return file, "" if inner == "." else inner
    return None


def read_packed(file: Path) -> tuple[list[PackedRun], list[BadLine]]:
    """The runs of a file, and the lines that are not runs. A damaged file is refused as a whole, and so is one whose
    lines are whole but others than were packed."""
    runs, bad, _ = read_ended(file)
    return runs, bad


def read_ended(file: Path) -> tuple[list[PackedRun], list[BadLine], list[PackedRun]]:
    """As ``read_packed``, and the runs that diverged."""
    if not file.is_file():
        raise BadFile(file, "missing, or not a plain file")
    try:
        with gzip.open(file) as opened:
            return _read_lines(file, opened, most_unpacked(file.stat().st_size))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise BadFile(file, "damaged, cut short, or not packed by gzip") from None
    except OSError as error:
        raise BadFile(file, str(error.strerror or error)) from None


def _read_lines(file: Path, opened: gzip.GzipFile, most: int) -> tuple[list[PackedRun], list[BadLine], list[PackedRun]]:
    """One after another: what unpacks to very much is refused before it is all in memory."""
    header = _read_header(file, opened.readline(files.MAX_JSON_BYTES))
    runs: list[PackedRun] = []
    bad: list[BadLine] = []
    seen: set[str] = set()
    digest, total, in_vain = hashlib.sha256(), 0, 0
    for number in itertools.count(2):
        line = opened.readline(files.MAX_JSON_BYTES + 1)
        total += len(line)
        if total > most or len(line) > files.MAX_JSON_BYTES:
            raise BadFile(file, f"unpacks to more than {most} bytes, or {files.MAX_JSON_BYTES} in a line")
        digest.update(line)
        if not line:
            break
        if number - len(runs) > MOST_BAD[0] or in_vain > MOST_BAD[1]:
            raise BadFile(file, "damaged: too many lines that are no runs")
        if line == b"\n":
            continue
        try:
            values = parse_json(line.removesuffix(b"\n") + b"\n", file)
            name = _run_name(values, seen)
        except BadInput as error:
            in_vain += len(line)
            bad.append(BadLine(number, error.why if isinstance(error, files.Damaged) else brief(error)))
            continue
        seen.add(name)
        runs.append(PackedRun(file, name, values))
    n, packed = len(runs) + len(bad), header.get("runs", len(runs) + len(bad))
    if n != packed:
        raise BadFile(file, f"damaged: {n} runs, of {packed!r:.20} that were packed")
    if not bad and header.get("sha256", "") not in ("", digest.hexdigest()):
        raise BadFile(file, "damaged: its lines are not those that were packed, whose sha256 it has")
    return runs, bad, _read_diverged(file, header)


def packed_bytes(runs: Iterable[tuple[str, Mapping[str, Any]]], diverged: Mapping[str, str] | None = None) -> bytes:
    """A packed file of runs: their names, and their lines without the name; and why others ``diverged``, by name."""
    lines = []
    for name, values in sorted(runs, key=lambda run: run[0].split("/")):
        lines.append(json_bytes({"path": name} | dict(values), indent=None))
    body = b"".join(lines)
    about: dict[str, Any] = {"format": FORMAT, "version": VERSION, "runs": len(lines), "sha256": sha256(body)}
    if diverged:
        about["diverged"] = dict(sorted(diverged.items(), key=lambda run: run[0].split("/")))
    whole = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=whole, compresslevel=9, mtime=0) as file:
        file.write(json_bytes(about, indent=None) + body)
    return whole.getvalue()


def _read_header(file: Path, line: bytes) -> dict[str, Any]:
    line = line.removesuffix(b"\n")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = f": format is {header.get('format')!r:.40}, not {FORMAT}" if isinstance(header, dict) else ""
        raise BadFile(file, f"no packed runs{found}", f"make such a file with: gcr results pack RUNS FILE{SUFFIX}")
    if header.get("version") != VERSION:
        why = f"format version {header.get('version')!r:.40}, this gcr knows version {VERSION}"
        raise BadFile(file, why, "install a newer gcr")
    if KEY not in header:
        files.linked_to_none.append(str(file))
        return header
    try:
        return parse_json(line + b"\n", file)
    except BadInput as error:
        raise BadFile(file, brief(error)) from None


def _read_diverged(file: Path, header: dict[str, Any]) -> list[PackedRun]:
    named = header.get("diverged", {})
    if not isinstance(named, dict) or not all(_is_name(name) and isinstance(why, str) for name, why in named.items()):
        raise BadFile(file, "damaged: diverged in its first line must be reasons by path")
    return [PackedRun(file, name, {"failure": why}) for name, why in named.items()]


def _is_name(name: object) -> bool:
    parts = name.split("/") if isinstance(name, str) else []
    return len(parts) > 1 and {"", ".", ".."}.isdisjoint(parts)


def _run_name(values: dict[str, Any], seen: set[str]) -> str:
    name = values.get("path")
    if not isinstance(name, str) or not _is_name(name):
        raise BadInput(f"path must be like run-name/seed-0, got {name!r:.60}")
    for key, kind in (("experiment", dict), ("result", dict), ("metrics", list)):
        if not isinstance(values.get(key, kind() if key == "metrics" else None), kind):
            raise BadInput(f"{key} of {name} must be a JSON {'array' if kind is list else 'object'}")
    if name in seen:
        raise BadInput(f"path {name} is there twice")
    return name
