"""How good a coreset is: gradient error, weights, budgets.

>>> pool = Pool(torch.tensor([0, 0]), torch.ones(2), features=torch.zeros(2, 1), residuals=torch.ones(2, 1))
>>> found = explain(Coreset(torch.tensor([0]), torch.tensor([2.0])), pool)
>>> found.gradient_error, found.effective_size, found.per_class
(0.0, 1.0, {0: 1})
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcr.select.checks import as_division, as_gradients, as_pool_weights, as_targets
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
    cosine: float = 0.0  # of the chosen rows' gradient with the pool's, class by class, or with the target
    by_target: tuple[tuple[float, float], ...] = ()  # error and cosine of each, where there are several targets


def explain(
    coreset: Coreset,
    pool: Any,
    by_class: bool = True,
    target: Any = None,
    *,
    labels: Any = None,
    groups: Any = None,
    weights: Any = None,
) -> Explanation:
    """Diagnose ``coreset``, chosen from ``pool``: a ``Pool`` with features and residuals, or gradients.

    ``target``, ``labels`` or ``groups`` and ``weights`` are those of ``select_coreset``; a ``Pool`` has labels and
    weights of its own, and ``by_class=False`` measures its error as a whole. With ``weights="unit"`` random rows have
    weight 1 too. A target is measured whole, whatever the groups. Of several, errors are added up in squares, and
    ``per_class`` has the rows of each, ``by_target`` its error and cosine. Without a target the pool is read a dozen
    times, for random rows to compare with.
    """
    gradients = _gradients_of(pool, checked=target is not None)
    n, device = len(gradients), gradients.features.device
    rows = torch.as_tensor(coreset.rows, device=device)
    chosen = torch.as_tensor(coreset.weights, device=device).double()
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
        raise BadInput(f"pool must be the one that was chosen from, got {n} rows and a coreset with {int(rows.max())}")
    old, unit = as_pool_weights(weights, n, device, target)
    division = as_division(labels, groups, n, device)
    if target is not None:
        return _explain_target(coreset, gradients, rows, chosen, target, unit)
    if coreset.serves is not None:
        raise BadInput("target must be given to explain rows that were matched to several; the same list")
    if isinstance(pool, Pool):
        old = pool.weights.double() if weights is None or isinstance(weights, str) else old
    own = pool.labels if isinstance(pool, Pool) else torch.zeros(n, dtype=torch.int64, device=device)
    named = own if division is None else division
    classes = rows_by_class(named if division is not None or by_class else torch.zeros_like(named))
    new = torch.zeros_like(old).index_add(0, rows, chosen)
    in_coreset = torch.zeros_like(old, dtype=torch.bool).index_fill(0, rows, True)
    counts = [int(in_coreset[members].sum()) for members in classes]
    generator = torch.Generator().manual_seed(0)
    by_chance = [
        _error(gradients, classes, old - _random_weights(old, classes, counts, unit, generator))
        for _ in range(RANDOM_SUBSETS)
    ]
    error, uniform = _error(gradients, classes, old - new), sum(by_chance) / RANDOM_SUBSETS
    products = []  # of goal and what was reached, with themselves and each other
    for members in classes:
        goal, found = (_sum_of(gradients, members, of[members]) for of in (old, new))
        products.append([float((a * b).sum()) for a, b in ((goal, goal), (found, found), (goal, found))])
    length, reached = (math.sqrt(sum(of_class[place] for of_class in products)) for place in (0, 1))
    product = sum(of_class[2] for of_class in products)
    cosine = max(-1.0, min(1.0, product / (length * reached))) if length * reached > 0 else 0.0
    per_class = {int(c): int(in_coreset[named == c].sum()) for c in torch.unique(named)}
    return _report(chosen, error, length, uniform, per_class, cosine)


def _gradients_of(pool: Any, checked: bool) -> LastLayerGradients:
    """A ``Pool`` of a run may hold what is not finite; a caller's arrays are looked at."""
    if isinstance(pool, Pool):
        if pool.features is None or pool.residuals is None:
            raise BadInput("pool must have features and residuals to be explained; gcr.collect gives both")
        gradients = LastLayerGradients(pool.features, pool.residuals)
        return as_gradients("pool", gradients, pool.features.device) if checked else gradients
    first = pool.features if isinstance(pool, LastLayerGradients) else pool
    return as_gradients("pool", pool, first.device if isinstance(first, Tensor) else torch.device("cpu"))


def _report(
    weights: Tensor, error: float, length: float, uniform: float, per_class: dict[int, int], cosine: float
) -> Explanation:
    return Explanation(
        gradient_error=error,
        gradient_length=length,
        uniform_error=uniform,
        relative_to_uniform=error / uniform if uniform > 0 else 0.0,
        total_weight=float(weights.sum()),
        smallest_weight=float(weights.min()) if len(weights) else 0.0,
        largest_weight=float(weights.max()) if len(weights) else 0.0,
        effective_size=float(weights.sum() ** 2 / weights.square().sum().clamp_min(1e-300)),
        per_class=per_class,
        cosine=cosine,
    )


def _error(gradients: LastLayerGradients, classes: list[Tensor], difference: Tensor) -> float:
    return math.sqrt(sum(float(_sum_of(gradients, rows, difference[rows]).square().sum()) for rows in classes))


def _random_weights(
    old: Tensor, classes: list[Tensor], counts: list[int], unit: bool, generator: torch.Generator
) -> Tensor:
    weights = torch.zeros_like(old)
    for rows, count in zip(classes, counts, strict=True):
        if count:
            chosen = rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]
            weights[chosen] = 1.0 if unit else old[rows].sum() / count
    return weights


def _explain_target(
    coreset: Coreset, gradients: LastLayerGradients, rows: Tensor, weights: Tensor, target: Any, unit: bool
) -> Explanation:
    device = rows.device
    goals = as_targets(target, gradients)
    serves = torch.zeros_like(rows) if coreset.serves is None else torch.as_tensor(coreset.serves, device=device)
    served = int(serves.max()) + 1 if len(serves) else 1
    if served > len(goals) or (len(goals) > 1 and coreset.serves is None):
        raise BadInput(f"target must be what the rows were matched to, {served} of them, got {len(goals)}")
    mine = [torch.nonzero(serves == number).flatten() for number in range(len(goals))]
    goal = torch.stack(goals)
    reached = torch.stack([_sum_of(gradients, rows[own], weights[own]) for own in mine])
    one = torch.ones(len(gradients), dtype=torch.float64, device=device)
    generator, by_chance = torch.Generator().manual_seed(0), list[float]()
    for _ in range(RANDOM_SUBSETS):
        some = [torch.randperm(len(gradients), generator=generator)[: len(own)].to(device) for own in mine]
        random = torch.stack([_sum_of(gradients, own, one[: len(own)]) for own in some])
        if not unit:
            scale = (random * goal).sum((1, 2), True) / random.square().sum((1, 2), True).clamp_min(1e-300)
            random = scale.clamp_min(0) * random
        by_chance.append(float(torch.linalg.vector_norm(goal - random)))
    error, uniform = float((goal - reached).norm()), sum(by_chance) / RANDOM_SUBSETS
    counts = {number: len(own) for number, own in enumerate(mine)}
    found = _report(weights, error, float(goal.norm()), uniform, counts, _cosine(goal, reached))
    if len(goals) == 1:
        return found
    each = zip(goal, reached, strict=True)
    return replace(found, by_target=tuple((float((a - b).norm()), _cosine(a, b)) for a, b in each))


def _cosine(goal: Tensor, reached: Tensor) -> float:
    lengths = float(goal.norm()) * float(reached.norm())
    return float((goal * reached).sum()) / lengths if lengths > 0 else 0.0


def _sum_of(gradients: LastLayerGradients, rows: Tensor, weights: Tensor) -> Tensor:
    part = LastLayerGradients(gradients.features[rows], gradients.residuals[rows], gradients.bias)
    return part.weighted_sum(weights)
