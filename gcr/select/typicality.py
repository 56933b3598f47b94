"""Typical rows of every part of a class (TEAL; Shaul-Ariel and Weinshall 2024). Chosen rows have weight 1.

The features of a class are clustered by k-means. A row's typicality is ``1 / (mean distance to its q nearest rows of
the cluster)``, with ``q = min(neighbours, size of the cluster // 2)``. The next row is the most typical one of the
cluster with the fewest rows chosen so far, the largest such cluster first; clusters of up to 5 rows come last. The
number chosen grows by a factor of about 1.4 a round to the class's budget, and every round clusters anew: into as many
clusters as are then to be chosen, or a fifth of that where a class has at most five rows for each.

Rows are given class by class in the order of choice, and a class without candidates gives up the last of them, as in
herding and in the authors' code. What differs from their code:

- they leave rows chosen before out of typicality, and square distances;
- they take clusters in turn, in an order fixed as a round begins: rows chosen so far, then size. Clusters of up to 5
  rows have no turn;
- their rounds end at the powers of 1.4 from 3 on (3, 5, 7, 10, 14, 20, …) and at the budget, ours at the budget and
  what it is divided by 1.4, again and again;
- their k-means is scikit-learn's, into 500 clusters at most, ours has 20 iterations from random rows, those of smallest
  draw;
- they choose from all images of a class, memory here from a reservoir of candidates (``pool=reservoir``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings, setting

ITERATIONS = 20  # of k-means
SMALL = 5  # rows of a cluster that comes last; and of a cluster on average, where a class has few rows
GROWTH = 1.4  # of the number of chosen rows, from round to round
FIRST = 4  # rows that one round may choose


@dataclass(frozen=True)
class Typicality(Settings):
    """The same number of rows from every class, dense ones from all over its features.

    >>> features = torch.tensor([0.0, 1.0, 1.1, 1.3, 2.0, 2.9, 50.0, 60.0, 61.0, 62.5, 63.0, 70.0])
    >>> pool = Pool(labels=torch.zeros(12).long(), weights=torch.ones(12), features=features.unsqueeze(1))
    >>> Typicality()(pool, 2, torch.arange(12) % 6 / 6).rows.tolist()
    [2, 8]
    """

    name: ClassVar[str] = "typicality"
    summary: ClassVar[str] = "TEAL: the densest row of each cluster of a class that has none yet, unit weights"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    neighbours: int = setting(20, "rows of its cluster that a row's density is measured by, half of it at most", low=1)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        features = pool.features
        assert features is not None

        def choose(rows: Tensor, share: int) -> Tensor:
            return typical_rows(features[rows], draws[rows], share, self.neighbours)

        return choose_per_class(pool, budget, choose, in_order=True)


def typical_rows(features: Tensor, draws: Tensor, picks: int, neighbours: int) -> Tensor:
    """The first ``picks`` rows in the order of choice: [n, f], [n] -> [picks]."""
    features, n = features.double(), len(features)
    features = features - features.mean(0)  # for the rounding of what follows
    distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    chosen = torch.zeros(n, dtype=torch.bool, device=features.device)
    order, taken = [torch.zeros(0, dtype=torch.int64, device=features.device)], 0
    for size in pace(picks):
        cluster = k_means(features, draws, size if SMALL * size < n else max(size // SMALL, 1))
        rows = by_coverage(distances, cluster, chosen, neighbours)[: size - taken]
        chosen, taken = chosen.index_fill(0, rows, True), size
        order.append(rows)
    return torch.cat(order)


def pace(picks: int) -> list[int]:
    """How many rows are chosen after every round.

    >>> pace(40)
    [3, 5, 7, 10, 14, 20, 28, 40]
    """
    sizes = [picks] if picks else []
    while sizes and sizes[0] > FIRST:
        sizes.insert(0, int(sizes[0] / GROWTH))
    return sizes


def by_coverage(distances: Tensor, cluster: Tensor, chosen: Tensor, neighbours: int) -> Tensor:
    """All rows in the order of choice, given those ``chosen`` already, which come last: [n, n], [n], [n] -> [n]."""
    n = len(cluster)
    together = cluster.unsqueeze(1) == cluster
    members = together.sum(1)
    others = together & ~torch.eye(n, dtype=torch.bool, device=cluster.device)
    nearest = distances.masked_fill(~others, torch.inf).topk(min(neighbours, n), largest=False).values  # ascending
    q = (members // 2).clamp_max(neighbours).unsqueeze(1)
    spread = torch.where(q > 0, nearest.cumsum(1).gather(1, (q - 1).clamp_min(0)) / q, torch.inf).squeeze(1)
    place = torch.arange(n, device=cluster.device)
    denser = (spread < spread.unsqueeze(1)) | ((spread == spread.unsqueeze(1)) & (place < place.unsqueeze(1)))
    covered = (together & chosen).sum(1)
    before = (together & ~chosen & denser).sum(1)  # rows of its cluster that are chosen before it
    level = covered + before + torch.where(members > SMALL, 0, n)
    key = (level * (n + 1) + n - members) * n + cluster  # level, then larger clusters, then lower ones
    return key.masked_fill(chosen, torch.iinfo(torch.int64).max).argsort(stable=True)


def k_means(points: Tensor, draws: Tensor, n_clusters: int) -> Tensor:
    """The cluster of each point, by Lloyd's algorithm from the points of smallest draw: [n, f], [n] -> [n].

    >>> k_means(torch.tensor([[0.0], [1.0], [8.0], [9.0]]), torch.tensor([0.3, 0.1, 0.9, 0.2]), 2).tolist()
    [0, 0, 1, 1]
    """
    centres = points[draws.argsort(stable=True)[:n_clusters]]
    numbers = torch.arange(len(centres), device=points.device)
    for _ in range(ITERATIONS):
        belongs = (_nearest(points, centres) == numbers.unsqueeze(1)).to(points.dtype)  # [clusters, n]
        sizes = belongs.sum(1, keepdim=True)
        centres = torch.where(sizes > 0, belongs @ points / sizes.clamp_min(1), centres)  # an empty one stays
    return _nearest(points, centres)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The centre of least distance to each point: [n, f], [m, f] -> [n]."""
    return (centres.square().sum(1) - 2 * points @ centres.T).argmin(1)  # |p - c|^2 without what all centres share
