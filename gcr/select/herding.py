"""Herding: the rows of each class whose running mean stays nearest the class mean. Chosen rows have weight 1.

Algorithm 4 of iCaRL (Rebuffi et al., CVPR 2017). With features phi of length 1 and their mean mu over the class, the
k-th pick is ``argmin_x || mu - (phi(x) + sum of earlier picks) / k ||``. As in the authors' code the mean is not scaled
back to length 1. A row is picked once at most; theirs may pick it again, which moves the sum and does not count.

Rows are given, and so kept, class by class in the order of choice. A class that has nothing new to choose from gives up
the last of them (Algorithm 5): its examples are not herded again among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings


@dataclass(frozen=True)
class Herding(Settings):
    """The same number of rows from every class, each nearest to what the class mean still lacks.

    The first pick lies along the mean, the second makes up for where the first missed it:

    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.9], [0.0, 1.0], [0.9, 1.0]])
    >>> pool = Pool(labels=torch.zeros(4).long(), weights=torch.ones(4), features=features)
    >>> Herding()(pool, 2, torch.zeros(4)).rows.tolist()
    [1, 3]
    """

    name: ClassVar[str] = "herding"
    summary: ClassVar[str] = "rows of each class whose mean feature follows the class mean (iCaRL)"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        features = pool.features
        assert features is not None

        def choose(rows: Tensor, share: int) -> Tensor:
            return herd(features[rows], share)

        return choose_per_class(pool, budget, choose, in_order=True)


def herd(features: Tensor, picks: int) -> Tensor:
    """The first ``picks`` rows in herding order: [n, f] -> [picks]. Equal rows: the lowest first.

    >>> herd(torch.tensor([[2.0], [1.0], [-1.0]]), 3).tolist()
    [0, 2, 1]
    """
    unit = torch.nn.functional.normalize(features.double(), dim=1, eps=1e-300)  # a row of zeros stays zero
    mean = unit.mean(0)
    # || k mean - picked - phi ||^2 without its term common to all rows; a matrix-vector product a pick
    squares = unit.square().sum(1)
    lacking = torch.zeros_like(mean)
    order = []
    for _ in range(picks):
        lacking = lacking + mean
        best = (squares - 2 * (unit @ lacking)).argmin(0, keepdim=True)  # [1]: indexing by it does not wait for a GPU
        lacking = lacking - unit[best][0]
        squares = squares.index_fill(0, best, torch.inf)
        order.append(best)
    return torch.cat(order) if order else torch.zeros(0, dtype=torch.int64, device=features.device)
