"""Greedy k-centre: rows of each class that leave no row of it far from a chosen one. Chosen rows have weight 1.

The farthest-first walk of Gonzalez (1985), which Sener & Savarese (ICLR 2018, Algorithm 1) use on features of a
network: the next centre is ``argmax_x min_centre || f(x) - f(centre) ||``. From any first centre the largest distance
of a row to its centre is at most twice the least possible. The first centre here is the row nearest the class mean, so
that nothing is drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings


@dataclass(frozen=True)
class KCentre(Settings):
    """The same number of rows from every class, spread to cover its features.

    >>> features = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]])
    >>> pool = Pool(labels=torch.zeros(5).long(), weights=torch.ones(5), features=features)
    >>> KCentre()(pool, 3, torch.zeros(5)).rows.tolist()
    [0, 3, 4]
    """

    name: ClassVar[str] = "k-centre"
    summary: ClassVar[str] = "rows of each class that cover its features, farthest first"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        features = pool.features
        assert features is not None
        return choose_per_class(pool, budget, lambda rows, k: farthest_first(features[rows], k))


def farthest_first(features: Tensor, picks: int) -> Tensor:
    """The first ``picks`` centres in the order of the walk: [n, f] -> [picks]. Equally far rows: the lowest first.

    >>> farthest_first(torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]]), 3).tolist()
    [3, 0, 4]
    """
    features = features.double()
    centre = torch.linalg.vector_norm(features - features.mean(0), dim=1).argmin(0, keepdim=True)
    to_nearest = features.new_full((len(features),), torch.inf)  # from each row to its nearest centre
    order = [centre][:picks]
    for _ in range(picks - 1):
        to_nearest = torch.minimum(to_nearest, torch.linalg.vector_norm(features - features[centre], dim=1))
        to_nearest = to_nearest.index_fill(0, centre, -1.0)  # below a duplicate's 0: a centre is not chosen again
        centre = to_nearest.argmax(0, keepdim=True)
        order.append(centre)
    return torch.cat(order) if order else torch.zeros(0, dtype=torch.int64, device=features.device)
