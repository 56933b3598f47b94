"""Numbers over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    mean: float
    sem: float | None  # None for a single value
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.sem is None else f"{self.mean:.2f} ± {self.sem:.2f}"


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard error of the mean; None where a value is missing.

    >>> str(spread([1.0, 2.0, 3.0]))
    '2.00 ± 0.58'
    """
    present = [value for value in values if value is not None]
    n = len(present)
    if n == 0 or n < len(values):
        return None
    mean = sum(present) / n
    if n == 1:
        return Spread(mean, None, 1)
    variance = sum((value - mean) ** 2 for value in present) / (n - 1)
    return Spread(mean, math.sqrt(variance / n), n)
