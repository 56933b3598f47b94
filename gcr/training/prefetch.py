"""Images that do not fit on the device: read from disk ahead of the steps, and copied into the step's slot."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from gcr.scenarios import Images

AHEAD = 8  # batches being read or waiting
READERS = 4


class Prefetch:
    def __init__(self, images: Images, batch: int, device: torch.device) -> None:
        self.images = images  # on the host, often a memory map
        self.slot = torch.zeros((batch, *images.pixels.shape[1:]), dtype=images.pixels.dtype, device=device)
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="prefetch")
        self.waiting: deque[Future[Tensor]] = deque()
        self.rows = np.empty((0, batch), np.int64)
        self.next = 0

    def begin(self, rows: np.ndarray, first_step: int) -> None:
        """``rows`` [steps, batch] are those of an epoch; the first batch wanted is that of ``first_step``."""
        self.waiting.clear()
        self.rows, self.next = rows, first_step
        for _ in range(AHEAD):
            self._read_on()

    def put(self) -> None:
        """Copy the next batch into the slot."""
        self._read_on()
        self.slot.copy_(self.waiting.popleft().result(), non_blocking=True)

    def _read_on(self) -> None:
        if self.next < len(self.rows):
            self.waiting.append(self.readers.submit(self._read, self.rows[self.next]))
            self.next += 1

    def _read(self, rows: np.ndarray) -> Tensor:
        pixels = self.images.pixels_of(torch.from_numpy(rows))
        return pixels.pin_memory() if self.slot.is_cuda else pixels

    def close(self) -> None:
        self.readers.shutdown(wait=False, cancel_futures=True)
