"""Selection on its own: ``select_coreset`` for any matrix of gradients, in NumPy or torch, on CPU or GPU.

>>> chosen = select_coreset([[1., 0.], [0., 1.], [1., 0.]], budget=2, ridge=0.0)
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])

For a target t, rows and weights minimise ``| t - sum_j w_j g_j |^2 + ridge * |w|^2``:

>>> select_coreset([[1., 0.], [0., 1.], [1., 1.]], budget=1, target=[3., 3.], ridge=0.0).rows.tolist()
[2]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace as replaced
from typing import Any

import torch
from torch import Tensor

from gcr.select.checks import (
    as_division,
    as_gradients,
    as_pool_weights,
    as_rows,
    as_targets,
    as_weights,
    check_budget,
    check_finite,
    check_memory,
    is_number,
    is_whole,
    like_input,
)
from gcr.select.coreset import Coreset, class_budgets, rows_by_class
from gcr.select.gradients import LastLayerGradients
from gcr.select.matching import match, match_targets
from gcr.settings import BadInput

HELD = 20  # bytes for each number of the largest group: float64, and copies for a while


def select_coreset(
    gradients: Any,
    budget: Any,
    *,
    labels: Any = None,
    weights: Any = "fitted",
    ridge: float = 0.5,
    tolerance: float = 0.0,
    replace: int = 0,
    target: Any = None,
    groups: Any = None,
    keep: Any = None,
    cost: Any = None,
    progress: Callable[[float, float], object] | None = None,
) -> Coreset:
    """Choose ``budget`` rows and weights whose weighted sum of gradients comes nearest to that of all rows.

    ``gradients`` is an [n, d] matrix or ``LastLayerGradients(features, residuals)``; either may be a mapped file. With
    ``labels`` [n] the budget is shared equally among classes and each is matched alone; ``groups`` [n] are any other
    division, and ``budget`` may be a dict from group to rows. ``weights`` are "fitted"; "unit", the same rows with
    weight 1; or [n] numbers that say what each row counts for in the target. ``ridge`` penalises squared weights,
    ``tolerance`` ends matching early, ``replace`` passes of exchange lower the error further.

    ``target`` is matched in place of the pool's sum: a vector [d], or a set of gradients (a matrix, or factors) whose
    sum it is. A list or tuple of these, a nested list too, are several targets: each gets an equal share of the
    budget, and ``serves`` says which one a row is for. A group matches its share of the target. Rows ``keep`` are in
    from the beginning, with weight 0 where they do not help, and count in the budget. With ``cost`` [n] > 0 the budget
    is what the rows may cost together, and the row of largest correlation per cost comes next. With any of these three,
    matching ends where no row helps, and ``note`` says so.

    ``progress(done, budget)`` is called now and then with what of the budget is used, and with all of it at the end.
    Rows and weights come back as the kind of array that came in, on its device; ``note`` says what was out of the
    ordinary, ``gcr.explain`` how near they come. Half-precision input is computed in float64 and its weights come back
    as float32.
    """
    if progress is not None and not callable(progress):
        raise BadInput(f"progress must be a function of what is done and the budget, got {progress!r}")
    first = gradients.features if isinstance(gradients, LastLayerGradients) else gradients
    device = first.device if isinstance(first, Tensor) else torch.device("cpu")
    rows = as_gradients("gradients", gradients, device, finite=False)
    n = len(rows)
    old, unit = as_pool_weights(weights, n, device, target)
    for name, value in (("ridge", ridge), ("tolerance", tolerance)):
        if not is_number(value) or not 0 <= value < float("inf"):
            raise BadInput(f"{name} must be a number, >= 0 and finite, got {value}")
    if not is_whole(replace) or replace < 0:
        raise BadInput(f"replace must be a whole number >= 0, got {replace}")
    division = as_division(labels, groups, n, device)
    largest = n if division is None else int(division.unique(return_counts=True)[1].max())
    held = HELD * largest * (rows.features.shape[1] + rows.residuals.shape[1])
    check_memory("gradients", held, device, "divide the rows by groups=, or project the gradients")
    check_finite("features" if isinstance(gradients, LastLayerGradients) else "gradients", rows.features)
    check_finite("residuals", rows.residuals)
    price = None if cost is None else _cost(cost, n, device)
    shares, total = _shares(budget, division, n, price)
    tell = None if progress is None else lambda done: progress(min(done, total), total)
    if target is None and keep is None and price is None:
        budgets = None if shares is None else [int(share) for share in shares]
        chosen = match(rows, division, old, int(total), ridge, tolerance, int(replace), None, budgets, tell)
    else:
        if replace:
            raise BadInput("replace exchanges rows of the pool's own sum; leave it out with target, keep or cost")
        kept = as_rows("keep", [] if keep is None else keep, n, device)
        targets = None if target is None else as_targets(target, rows)
        members = [torch.arange(n, device=device)] if division is None else rows_by_class(division)
        counts = shares if shares is not None else [total]
        names = None if division is None else division.unique().tolist()
        passes_on = not isinstance(budget, Mapping)
        chosen = match_targets(
            *(rows, members, counts, old, targets, kept, price, ridge, tolerance, names, passes_on), tell=tell
        )
    if tell is not None:
        tell(total)
    if division is not None and (empty := _without_row(division, chosen.rows, budget)):
        shown = ", ".join(map(str, empty[:5])) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        without = f"no row for {'class' if groups is None else 'group'} {shown}"
        chosen = replaced(chosen, note="; ".join(filter(None, [chosen.note, without])))
    own = LastLayerGradients(rows.features[chosen.rows], rows.residuals[chosen.rows], rows.bias)
    length = float(own.squared_norms().mean()) if len(own) else 0.0
    if 0 < length < ridge:
        short = f"ridge {ridge:g} outweighs the rows, of squared length {length:.2g}: weights shrink; scale ridge too"
        chosen = replaced(chosen, note="; ".join(filter(None, [chosen.note, short])))
    if unit:
        chosen = replaced(chosen, weights=torch.ones_like(chosen.weights))
    small = rows.features.dtype in (torch.float16, torch.bfloat16, torch.float32)
    chosen = replaced(chosen, weights=chosen.weights.to(torch.float32 if small else torch.float64))
    return like_input(first, chosen)


def _cost(cost: Any, n: int, device: torch.device) -> Tensor:
    price = as_weights("cost", cost, n, device)
    if bool((price == 0).any()):
        raise BadInput(f"cost must be above 0, got 0 in row {int((price == 0).long().argmax())}")
    return price


def _shares(budget: Any, division: Tensor | None, n: int, cost: Tensor | None) -> tuple[list[float] | None, float]:
    """The budget of each group, lowest first, where it is not shared equally by rows; and the whole budget."""
    if isinstance(budget, Mapping):
        if division is None:
            raise BadInput("budget must be a number where there are no groups; a dict has one for each group")
        names, counts = division.unique(return_counts=True)
        if set(names.tolist()) != set(budget):
            raise BadInput(f"budget must have a number for each group, {names.tolist()}, got {list(budget)}")
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            whole = is_whole(budget[name]) and 0 <= budget[name] <= count
            if not whole if cost is None else not (is_number(budget[name]) and 0 <= budget[name] < float("inf")):
                most = f"from 0 to {count}, its rows" if cost is None else "a finite number >= 0"
                raise BadInput(f"budget of group {name} must be {most}, got {budget[name]!r}")
        shares = [budget[name] for name in names.tolist()]
        if sum(shares) == 0:
            raise BadInput("budget must be above 0 for one group at least")
        return shares, sum(shares)
    if cost is None:
        check_budget(budget, n)
        if division is None:
            return None, budget
        return list[float](class_budgets(division.unique(return_counts=True)[1].tolist(), int(budget))), budget
    if not is_number(budget) or not float(cost.min()) <= budget < float("inf"):
        raise BadInput(f"budget must be a finite number, at least the least cost, {float(cost.min()):g}, got {budget}")
    members = [torch.arange(n, device=cost.device)] if division is None else rows_by_class(division)
    return _shares_by_cost(float(budget), [cost[rows] for rows in members]), float(budget)


def _shares_by_cost(budget: float, costs: list[Tensor]) -> list[float]:
    """Equal shares. What a group's rows do not cost together goes to the others, and so does a share below the cost of
    its cheapest row: the dearest group goes first, of equal ones the last.

    >>> _shares_by_cost(9.0, [torch.ones(1), torch.ones(20), torch.full((2,), 5.0)])
    [1.0, 8.0, 0.0]
    """
    most, least = [float(cost.sum()) for cost in costs], [float(cost.min()) for cost in costs]
    while True:
        shares, left = [0.0] * len(costs), budget
        served = sorted((group for group in range(len(costs)) if most[group] > 0), key=lambda group: most[group])
        for place, group in enumerate(served):
            shares[group] = min(most[group], left / (len(served) - place))
            left -= shares[group]
        poor = [group for group in served if shares[group] * (1 + 1e-12) < least[group]]
        if not poor:
            return shares
        most[max(poor, key=lambda group: (least[group], group))] = 0.0


def _without_row(division: Tensor, rows: Tensor, budget: Any) -> list[int]:
    """The groups that no row was chosen from, though they might have had one."""
    names = division.unique()
    empty: list[int] = names[~torch.isin(names, division[rows])].tolist()
    return [name for name in empty if not isinstance(budget, Mapping) or budget[name] > 0]
