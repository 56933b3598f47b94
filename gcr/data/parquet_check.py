"""Parquet files are tried in a process of their own before they are read: Arrow has no bounds of time and memory.

The process reads what this one is about to read, and is ended when it takes more than a file of that size may take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gcr.data.archive import in_short, most_unpacked
from gcr.settings import BadInput

SECONDS, BYTES_A_SECOND = 5, 10 * 2**20  # of processor time: in all, and more for larger files
MEMORY, TIMES_SIZE = 512 * 2**20, 4
ROWS = 1024  # at a time
LIMITS = {"thrift_string_size_limit": 16 * 2**20, "thrift_container_size_limit": 10**6}  # of metadata
# One JSON line a file, for those in memory followed by their content. The answer is a JSON line with what is wrong.
TRIAL = """
import io, json, sys
from pyarrow import parquet
try:
    import resource
except ImportError:  # on Windows nothing is bounded
    resource = None
else:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def bound(seconds, memory):
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds, hard))
    try:
        pages = int(open("/proc/self/statm").read().split()[0])
    except OSError:  # not Linux
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))

def trouble(asked, source):
    file = parquet.ParquetFile(source, **asked["limits"])
    columns = [name for name in file.schema_arrow.names if asked["columns"] is None or name in asked["columns"]]
    unpacked = 0
    for batch in file.iter_batches(asked["rows"], columns=columns, use_threads=False):
        batch.validate(full=True)
        batch.to_pylist()
        unpacked += batch.nbytes + 8 * batch.num_rows * batch.num_columns
        if unpacked > asked["most"]:
            return f"unpacks to more than {asked['most']} bytes"
    return ""

for line in sys.stdin.buffer:
    asked = json.loads(line)
    content = sys.stdin.buffer.read(asked["size"]) if asked["path"] is None else None
    if resource:
        bound(asked["seconds"], asked["memory"])
    try:
        answer = trouble(asked, io.BytesIO(content) if asked["path"] is None else asked["path"])
    except Exception as error:
        answer = str(error) or type(error).__name__
    print(json.dumps(answer), flush=True)
"""


def check_parquet(files: Iterable[tuple[str, Path | bytes]], columns: Sequence[str] | None = None) -> None:
    """An error for the first of the files, given by name and place or content, that cannot be read within bounds.
    ``columns``: those that will be read, if they are there; None: all."""
    parquet_library()
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # which reserves no more than it needs
    command, pipe = [sys.executable, "-P", "-c", TRIAL], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment) as trial:
        try:
            for where, file in files:
                _try(trial, where, file, columns)
        finally:
            trial.kill()


def _try(trial: subprocess.Popen[bytes], where: str, file: Path | bytes, columns: Sequence[str] | None) -> None:
    assert trial.stdin is not None
    assert trial.stdout is not None
    size = len(file) if isinstance(file, bytes) else _size(where, file)
    seconds, memory = SECONDS + size // BYTES_A_SECOND, MEMORY + TIMES_SIZE * size
    asked = {
        "path": None if isinstance(file, bytes) else os.fspath(file.absolute()),
        "size": size,
        "columns": columns,
        "rows": ROWS,
        "most": most_unpacked(size),
        "limits": LIMITS,
        "seconds": seconds,
        "memory": memory,
    }
    with suppress(BrokenPipeError):
        trial.stdin.write(json.dumps(asked).encode() + b"\n" + (file if isinstance(file, bytes) else b""))
        trial.stdin.flush()
    answer = trial.stdout.readline()
    if not answer:
        bounds = f"{seconds} s of processor time and {memory >> 20} MiB"
        raise BadInput(f"{where} cannot be read as parquet within {bounds}; get it again")
    if trouble := json.loads(answer):
        raise BadInput(f"{where} is not a complete parquet file ({in_short(ValueError(trouble))}); get it again")


def parquet_library() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput("parquet files need pyarrow; install it with: pip install pyarrow") from None
    return parquet


def _size(where: str, file: Path) -> int:
    try:
        if file.is_file():
            return file.stat().st_size
    except OSError as error:
        raise BadInput(f"{where} cannot be read ({error.strerror})") from None
    raise BadInput(f"{where} must be a file; it is a folder, a pipe or a device")
