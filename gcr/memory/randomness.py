"""Uniform draws as a function of a key, the same on every device.

NumPy makes them because its generators give the same numbers with every version of torch.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor


def generator(key: tuple[int, ...], field: str) -> np.random.Generator:
    """A generator of its own for each ``field`` of a key."""
    return np.random.default_rng(np.random.SeedSequence((*key, zlib.crc32(field.encode()))))


def selection_draws(key: tuple[int, ...], n_rows: int) -> Tensor:
    """One uniform per row of the pool; ``key`` is (seed, number of the selection in its run)."""
    return torch.from_numpy(generator(key, "selection").random(n_rows))
