"""Random rows: over the whole pool, or the same number from every class. Chosen rows have weight 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings


@dataclass(frozen=True)
class Uniform(Settings):
    """The ``budget`` rows of smallest draw.

    >>> pool = Pool(labels=torch.zeros(3).long(), weights=torch.ones(3))
    >>> Uniform()(pool, 2, torch.tensor([0.9, 0.1, 0.5])).rows.tolist()
    [1, 2]
    """

    name: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "random rows of the whole pool, unit weights"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        rows = draws.argsort(stable=True)[:budget].sort().values
        return Coreset(rows, torch.ones_like(pool.weights[rows]))


@dataclass(frozen=True)
class ClassBalanced(Settings):
    """The rows of smallest draw in every class, as many from each.

    >>> pool = Pool(labels=torch.tensor([0, 0, 0, 1]), weights=torch.ones(4))
    >>> ClassBalanced()(pool, 2, torch.tensor([0.9, 0.1, 0.5, 0.8])).rows.tolist()
    [1, 3]
    """

    name: ClassVar[str] = "class-balanced"
    summary: ClassVar[str] = "random rows, the same number from every class, unit weights"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        return choose_per_class(pool, budget, lambda rows, k: draws[rows].argsort(stable=True)[:k])
