"""How good a coreset is: gradient error, weights, budgets.

>>> pool = Pool(torch.tensor([0, 0]), torch.ones(2), features=torch.zeros(2, 1), residuals=torch.ones(2, 1))
>>> found = explain(Coreset(torch.tensor([0]), torch.tensor([2.0])), pool)
>>> found.gradient_error, found.effective_size, found.per_class
(0.0, 1.0, {0: 1})
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcr.select.checks import as_gradients, as_targets
from gcr.select.coreset import Coreset, Pool, rows_by_class
from gcr.select.gradients import LastLayerGradients
from gcr.settings import BadInput

RANDOM_SUBSETS = 10


@dataclass(frozen=True)
class Explanation:
    """Errors are lengths of ``sum_pool w g - sum_chosen w' g'``, class by class, added up in squares.

    With a target t in place of the pool's sum they are ``| t - sum_chosen w' g' |``; random rows then have the one
    weight that brings them nearest.
    """

    gradient_error: float
    gradient_length: float  # the same for an empty coreset
    uniform_error: float  # mean over random subsets of the same size per class, weights scaled to the class's total
    relative_to_uniform: float  # gradient_error / uniform_error; below 1 is better than chance
    total_weight: float
    smallest_weight: float
    largest_weight: float
    effective_size: float  # (sum of weights)^2 / (sum of squared weights): the rows' number if all weights are equal
    per_class: dict[int, int]  # rows of each class that occurs in the pool
    cosine: float | None = None  # of the chosen rows' gradient with the target, if one is given


def explain(coreset: Coreset, pool: Any, by_class: bool = True, target: Any = None) -> Explanation:
    """Diagnose ``coreset``, chosen from ``pool``: a ``Pool`` with features and residuals, or gradients.

    Where it was chosen without labels, ``by_class=False`` measures the error over the whole pool. ``target`` is that of
    ``select_coreset``. Of several, errors are added up in squares, and ``per_class`` has the rows of each.
    """
    if target is not None or not isinstance(pool, Pool):
        return _explain_target(coreset, pool, target)
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


def _explain_target(coreset: Coreset, pool: Any, target: Any) -> Explanation:
    if isinstance(pool, Pool):
        pool = LastLayerGradients(pool.features, pool.residuals)  # type: ignore[arg-type]
    first = pool.features if isinstance(pool, LastLayerGradients) else pool
    device = first.device if isinstance(first, Tensor) else torch.device("cpu")
    gradients = as_gradients("gradients", pool, device)
    rows = torch.as_tensor(coreset.rows, device=device)
    weights = torch.as_tensor(coreset.weights, device=device).double()
    one = torch.ones(len(gradients), dtype=torch.float64, device=device)
    goals = [gradients.weighted_sum(one)] if target is None else as_targets(target, gradients)
    serves = torch.zeros_like(rows) if coreset.serves is None else torch.as_tensor(coreset.serves, device=device)
    mine = [torch.nonzero(serves == number).flatten() for number in range(len(goals))]
    goal = torch.stack(goals)
    reached = torch.stack([_sum_of(gradients, rows[own], weights[own]) for own in mine])
    generator, by_chance = torch.Generator().manual_seed(0), list[float]()
    for _ in range(RANDOM_SUBSETS):
        some = [torch.randperm(len(gradients), generator=generator)[: len(own)].to(device) for own in mine]
        random = torch.stack([_sum_of(gradients, own, one[: len(own)]) for own in some])
        scale = (random * goal).sum((1, 2), True) / random.square().sum((1, 2), True).clamp_min(1e-300)
        by_chance.append(float(torch.linalg.vector_norm(goal - scale.clamp_min(0) * random)))
    error, uniform = float(torch.linalg.vector_norm(goal - reached)), sum(by_chance) / RANDOM_SUBSETS
    length, own_length = float(torch.linalg.vector_norm(goal)), float(torch.linalg.vector_norm(reached))
    return Explanation(
        gradient_error=error,
        gradient_length=length,
        uniform_error=uniform,
        relative_to_uniform=error / uniform if uniform > 0 else 0.0,
        total_weight=float(weights.sum()),
        smallest_weight=float(weights.min()) if len(weights) else 0.0,
        largest_weight=float(weights.max()) if len(weights) else 0.0,
        effective_size=float(weights.sum() ** 2 / weights.square().sum().clamp_min(1e-300)),
        per_class={number: len(own) for number, own in enumerate(mine)},
        cosine=float((goal * reached).sum()) / (length * own_length) if length * own_length > 0 else 0.0,
    )


def _sum_of(gradients: LastLayerGradients, rows: Tensor, weights: Tensor) -> Tensor:
    part = LastLayerGradients(gradients.features[rows], gradients.residuals[rows], gradients.bias)
    return part.weighted_sum(weights)
