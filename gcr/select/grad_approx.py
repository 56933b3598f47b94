"""GradApprox (GCR paper, Algorithm 2): the weighted rows whose gradient comes nearest to that of the whole pool.

For each class alone, with budget K / classes, ``L_sub = |sum_pool w g - sum_chosen w' g'|^2 + ridge * |w'|^2`` is
minimised greedily by non-negative matching pursuit over last-layer gradients. The pool's weights scale the target
only; a chosen row's new weight stands alone.

>>> pool = Pool(labels=torch.zeros(3).long(), weights=torch.ones(3),
...             features=torch.zeros(3, 1), residuals=torch.tensor([[1., 0.], [0., 1.], [1., 0.]]))
>>> chosen = GradApprox(ridge=0.0)(pool, budget=2, draws=torch.zeros(3))
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, class_budgets, rows_by_class
from gcr.select.gradients import gram
from gcr.select.omp import matching_pursuit
from gcr.settings import Settings, setting


@dataclass(frozen=True)
class GradApprox(Settings):
    name: ClassVar[str] = "grad-approx"
    summary: ClassVar[str] = "GCR: rows and weights whose gradient matches that of the whole pool, class by class"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "residuals"})

    ridge: float = setting(0.5, "penalty on the squared weights (lambda in the paper)", low=0.0)
    tolerance: float = setting(0.0, "stop a class when its objective falls to this (epsilon in the paper)", low=0.0)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        assert pool.features is not None
        assert pool.residuals is not None
        classes = rows_by_class(pool.labels)
        budgets = class_budgets([len(rows) for rows in classes], budget)
        chosen_rows, chosen_weights, topped_up = [], [], 0
        for rows, share in zip(classes, budgets, strict=True):
            old_weights = pool.weights[rows].double().cpu()
            if share == len(rows):  # keeping all of them as they are matches exactly
                weights = old_weights
            else:
                products = gram(pool.features[rows].double(), pool.residuals[rows].double()).cpu()
                correlation = products @ old_weights
                weights = matching_pursuit(
                    products, correlation, float(old_weights @ correlation), share, self.ridge, self.tolerance
                )
                topped_up += _top_up(weights, old_weights, correlation - products @ weights, share)
            kept = torch.nonzero(weights if share < len(rows) else torch.ones(share)).flatten()
            chosen_rows.append(rows[kept.to(rows.device)])
            chosen_weights.append(weights[kept])
        all_rows = torch.cat(chosen_rows)
        order = all_rows.argsort()
        all_weights = torch.cat(chosen_weights).to(pool.weights)
        note = f"{topped_up} of {len(all_rows)} rows topped up" if topped_up else ""
        return Coreset(all_rows[order], all_weights[order], note)


def _top_up(weights: Tensor, old_weights: Tensor, unmatched: Tensor, share: int) -> int:
    """Fill the class's share in place where matching ended early; return how many rows that took.

    Rows not chosen enter by falling correlation with what is unmatched, each with the weight it brought to the pool
    (1 if that was 0).
    """
    missing = share - int((weights > 0).sum())
    by_correlation = torch.where(weights > 0, -torch.inf, unmatched).argsort(descending=True, stable=True)
    for row in by_correlation[:missing].tolist():
        weights[row] = old_weights[row] if old_weights[row] > 0 else 1.0
    return missing
