"""Checks of a large file by blocks: each when rows of it are first read, or all in the background.

CRC-32 rather than SHA-256: images are read at the speed of training, and it is 7 times as fast.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcr.settings import BadInput

BLOCK_BYTES = 2**22
DIGITS = 8  # hexadecimal, of each block's CRC-32
OTHER_SHA256 = "its SHA-256 is not the one taken at import"


def digits_of(n_bytes: int) -> int:
    """How long the digests of a file are."""
    return DIGITS * -(-n_bytes // BLOCK_BYTES)


class BlockDigests:
    """The CRC-32 of each block of a file, taken while it is written."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.crc = self.filled = 0  # of the block that is not full yet

    def add(self, content: bytes | memoryview) -> None:
        view = memoryview(content).cast("B")
        while view:
            part = view[: BLOCK_BYTES - self.filled]
            self.crc, self.filled = zlib.crc32(part, self.crc), self.filled + len(part)
            if self.filled == BLOCK_BYTES:
                self._end_block()
            view = view[len(part) :]

    def text(self) -> str:
        """All, one behind the other."""
        if self.filled:
            self._end_block()
        return "".join(self.digests)

    def _end_block(self) -> None:
        self.digests.append(f"{self.crc:0{DIGITS}x}")
        self.crc = self.filled = 0


class BlockCheck:
    """Whether the rows of an array's file are those that were written.

    Files of gcr 0.2.0 have no ``digests``: there only ``check_all`` looks, by their SHA-256.
    """

    def __init__(
        self, path: Path, n_rows: int, row_bytes: int, digests: str, sha256: str, damaged: Callable[[str], BadInput]
    ) -> None:
        self.content: Any = np.memmap(path, np.uint8, "r")
        self.n_rows, self.row_bytes, self.header_bytes = n_rows, row_bytes, len(self.content) - n_rows * row_bytes
        self.digests, self.sha256, self.damaged = digests, sha256, damaged
        self.checked = np.zeros(len(digests) // DIGITS, dtype=bool)
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def check_rows(self, rows: NDArray[np.int64] | slice) -> None:
        """The blocks that hold them, where they are not checked yet."""
        if not self.digests:
            return
        if isinstance(rows, slice):
            rows = np.arange(self.n_rows)[rows]
        starts = self.header_bytes + rows * self.row_bytes
        ends = starts + self.row_bytes - 1
        touched = np.unique(np.concatenate([[0], starts // BLOCK_BYTES, ends // BLOCK_BYTES]))  # 0: the file's header
        for number in touched[~self.checked[touched]]:
            self._check_block(int(number))

    def check_all(self) -> None:
        for number in np.flatnonzero(~self.checked):
            self._check_block(int(number))
        if not self.digests and hashlib.sha256(self.content).hexdigest() != self.sha256:
            raise self.damaged(OTHER_SHA256)

    def _check_block(self, number: int) -> None:
        start = number * BLOCK_BYTES
        crc = zlib.crc32(self.content[start : start + BLOCK_BYTES])
        if f"{crc:0{DIGITS}x}" != self.digests[number * DIGITS : (number + 1) * DIGITS]:
            raise self.damaged(
                f"bytes {start} to {min(start + BLOCK_BYTES, len(self.content)) - 1} are not as imported"
            )
        self.checked[number] = True

    def start(self) -> None:
        """Check all in the background: ``wait`` says how that ended."""
        self.thread = threading.Thread(target=self._check_all_here, name="data check", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise self.error

    def _check_all_here(self) -> None:
        try:
            self.check_all()
        except Exception as error:
            self.error = error
