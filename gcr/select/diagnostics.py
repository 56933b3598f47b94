"""How good a coreset is: gradient error, weights, budgets.

>>> pool = Pool(torch.tensor([0, 0]), torch.ones(2), features=torch.zeros(2, 1), residuals=torch.ones(2, 1))
>>> found = explain(Coreset(torch.tensor([0]), torch.tensor([2.0])), pool)
>>> found.gradient_error, found.effective_size, found.per_class
(0.0, 1.0, {0: 1})
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, rows_by_class
from gcr.select.gradients import LastLayerGradients
from gcr.settings import BadInput

RANDOM_SUBSETS = 10


@dataclass(frozen=True)
class Explanation:
    """Errors are lengths of ``sum_pool w g - sum_chosen w' g'``, class by class, added up in squares."""

    gradient_error: float
    gradient_length: float  # the same for an empty coreset
    uniform_error: float  # mean over random subsets of the same size per class, weights scaled to the class's total
    relative_to_uniform: float  # gradient_error / uniform_error; below 1 is better than chance
    total_weight: float
    smallest_weight: float
    largest_weight: float
    effective_size: float  # (sum of weights)^2 / (sum of squared weights): the rows' number if all weights are equal
    per_class: dict[int, int]  # rows of each class that occurs in the pool


def explain(coreset: Coreset, pool: Pool, by_class: bool = True) -> Explanation:
    """Diagnose ``coreset``, chosen from ``pool``, which must have features and residuals.

    Where it was chosen without labels, ``by_class=False`` measures the error over the whole pool.
    """
    if pool.features is None or pool.residuals is None:
        raise BadInput("pool must have features and residuals to be explained; gcr.collect gives both")
    gradients = LastLayerGradients(pool.features, pool.residuals)
    old = pool.weights.double()
    rows = torch.as_tensor(coreset.rows, device=old.device)
    weights = torch.as_tensor(coreset.weights, device=old.device).double()
    new = torch.zeros_like(old).index_add(0, rows, weights)
    labels = pool.labels if by_class else torch.zeros_like(pool.labels)
    classes = rows_by_class(labels)
    in_coreset = torch.zeros_like(old, dtype=torch.bool).index_fill(0, rows, True)
    counts = [int(in_coreset[members].sum()) for members in classes]
    generator = torch.Generator().manual_seed(0)
    by_chance = [
        _error(gradients, classes, old - _random_weights(old, classes, counts, generator))
        for _ in range(RANDOM_SUBSETS)
    ]
    uniform = sum(by_chance) / RANDOM_SUBSETS
    error = _error(gradients, classes, old - new)
    return Explanation(
        gradient_error=error,
        gradient_length=_error(gradients, classes, old),
        uniform_error=uniform,
        relative_to_uniform=error / uniform if uniform > 0 else 0.0,
        total_weight=float(weights.sum()),
        smallest_weight=float(weights.min()),
        largest_weight=float(weights.max()),
        effective_size=float(weights.sum() ** 2 / weights.square().sum().clamp_min(1e-300)),
        per_class={int(c): int(in_coreset[pool.labels == c].sum()) for c in torch.unique(pool.labels)},
    )


def _error(gradients: LastLayerGradients, classes: list[Tensor], difference: Tensor) -> float:
    squares = 0.0
    for rows in classes:
        part = LastLayerGradients(gradients.features[rows], gradients.residuals[rows], gradients.bias)
        squares += float(part.weighted_sum(difference[rows]).square().sum())
    return math.sqrt(squares)


def _random_weights(old: Tensor, classes: list[Tensor], counts: list[int], generator: torch.Generator) -> Tensor:
    weights = torch.zeros_like(old)
    for rows, count in zip(classes, counts, strict=True):
        if count:
            chosen = rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]
            weights[chosen] = old[rows].sum() / count
    return weights
