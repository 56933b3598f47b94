"""Rows that were learned most since they came. Chosen rows have weight 1.

A row's reducible loss is ``CE(z, y) - CE(h(x), y)``: by the logits z that were stored when it came, less that of the
network now. It is high where an example was hard and has been learned, low where it was easy from the start, and near
zero or below where it is still hard, as with a wrong label. Each class keeps its rows of highest reducible loss.

CSReL (Tong et al. 2025) compares two other networks: one trained on the coreset so far and one trained on all data of
the task. It trains the first again as rows are added, so that rows alike are not both taken. Here no network is
trained for the selection, and rows are scored alone. A network that is learning a class gives early examples a higher
loss than late ones, so these are favoured.

>>> pool = Pool(torch.tensor([0, 0, 0, 1]), torch.ones(4), reducible=torch.tensor([0.1, 2.0, -1.0, 0.0]))
>>> ReducibleLoss()(pool, budget=3, draws=torch.zeros(4)).rows.tolist()
[0, 1, 3]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings


@dataclass(frozen=True)
class ReducibleLoss(Settings):
    """The rows of highest reducible loss in every class, as many from each; the lowest row on ties."""

    name: ClassVar[str] = "reducible-loss"
    summary: ClassVar[str] = "rows of each class whose loss fell most since they came, unit weights"
    needs: ClassVar[frozenset[str]] = frozenset({"reducible"})

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        fallen = pool.reducible
        assert fallen is not None
        return choose_per_class(pool, budget, lambda rows, k: torch.argsort(-fallen[rows], stable=True)[:k])
