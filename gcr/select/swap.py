"""Better than greedy: replace rows of a support, one at a time, as long as ``L_sub`` falls.

Matching pursuit never regrets a choice. A pass of replacement takes every row of the support in turn, the one whose
loss would cost least first, takes it out, and puts in its place the row of largest normalised correlation with what
is unmatched then, with all weights solved again. The exchange stays if it lowers ``L_sub`` and leaves all weights
positive. Rows change, the budget does not.

Everything follows from ``P = (G_SS + ridge I)^-1``. Taking out slot s: ``P - p p^T / p_s`` with p its column. Putting
in row j with products v: ``u = P v``, ``rest = |g_j|^2 + ridge - v u``, its weight is ``correlation_j / rest``, and P
becomes ``P + [u; -1][u; -1]^T / rest``. The greedy answer stays where the refined one is not lower in the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gcr.select.batched_problems import SINGULAR, Problems
from gcr.select.nnls import only, to_front


def replace_rows(problems: Problems, weights: Tensor, ridge: float, passes: int) -> Tensor:
    """Refine the solution ``weights`` [b, n] by at most so many ``passes`` over its rows."""
    count = (weights > 0).sum(1)
    width = int(count.max())
    if width == 0:
        return weights
    everyone = torch.arange(len(count), device=count.device)
    correlation, _ = problems.target()
    norms = problems.squared_norms() + ridge
    used = torch.arange(width, device=count.device) < count.unsqueeze(1)
    rows = to_front(weights > 0)[:, :width]
    solution, slot_weights = _solve(problems, rows, used, correlation, ridge)
    for _ in range(passes):
        loss = slot_weights.square() / torch.diagonal(solution, dim1=1, dim2=2)
        order = loss.masked_fill(~used, torch.inf).argsort(dim=1, stable=True)
        changed = torch.zeros_like(everyone, dtype=torch.bool)
        for place in range(width):
            slot = order[:, place]
            old = (rows.clone(), slot_weights.clone(), solution.clone())
            gained = _exchange(problems, rows, slot_weights, solution, slot, correlation, norms)
            better = used[everyone, slot] & gained & ((slot_weights > 0) | ~used).all(1)
            for now, before in zip((rows, slot_weights, solution), old, strict=True):
                now.copy_(torch.where(better.reshape(-1, *[1] * (now.dim() - 1)), now, before))
            changed = changed | better
        if not bool(changed.any()):
            break
    _, slot_weights = _solve(problems, rows, used, correlation, ridge)  # without the rounding of many exchanges
    refined = torch.zeros_like(weights).scatter_add(1, rows, torch.where(used, slot_weights, 0.0))
    better = _objective(problems, refined, ridge) < _objective(problems, weights, ridge)  # rounding has no say
    return torch.where((better & ((slot_weights > 0) | ~used).all(1)).unsqueeze(1), refined, weights)


def _objective(problems: Problems, weights: Tensor, ridge: float) -> Tensor:
    """``L_sub`` of every problem, from the difference itself: [b]."""
    rows = torch.arange(weights.shape[1], device=weights.device).expand_as(weights)
    difference = problems.target_weights - weights
    return (difference * problems.matched(rows, difference)).sum(1) + ridge * weights.square().sum(1)


def _solve(problems: Problems, rows: Tensor, used: Tensor, correlation: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """``P`` [b, k, k], with the identity in empty slots, and the weights of the slots."""
    products = problems.products(rows, rows)
    eye = torch.eye(rows.shape[1], dtype=products.dtype, device=products.device)
    solution = torch.cholesky_inverse(torch.linalg.cholesky(only(products + ridge * eye, used)))
    right = torch.where(used, correlation.gather(1, rows), 0.0)
    return solution, torch.bmm(solution, right.unsqueeze(2)).squeeze(2)


def _exchange(
    problems: Problems,
    rows: Tensor,
    weights: Tensor,
    solution: Tensor,
    slot: Tensor,
    correlation: Tensor,
    norms: Tensor,
) -> Tensor:
    """Replace the row in ``slot`` [b] by the best other one, in place. Returns where that lowers ``L_sub``."""
    everyone = torch.arange(len(slot), device=slot.device)
    column = solution[everyone, :, slot]
    pivot = column.gather(1, slot.unsqueeze(1))
    out_weight = weights.gather(1, slot.unsqueeze(1))
    cost = (out_weight.square() / pivot).squeeze(1)
    weights -= column * (out_weight / pivot)
    solution -= column.unsqueeze(2) * column.unsqueeze(1) / pivot.unsqueeze(2)
    weights[everyone, slot] = 0.0
    solution[everyone, slot], solution[everyone, :, slot] = 0.0, 0.0

    unmatched = correlation - problems.matched(rows, weights)
    taken = torch.zeros_like(problems.valid).scatter(1, rows, True)  # an empty slot may bar a row: no harm
    score = unmatched / norms.sqrt().clamp_min(1e-300)
    value, row = score.masked_fill(taken | ~problems.valid, -torch.inf).max(1)
    products = problems.products(row.unsqueeze(1), rows).squeeze(1)
    products[everyone, slot] = 0.0
    shift = torch.bmm(solution, products.unsqueeze(2)).squeeze(2)
    norm = norms[everyone, row]
    rest = norm - (products * shift).sum(1)
    possible = (value > 0) & (rest > SINGULAR * norm)
    rest = torch.where(possible, rest, 1.0)
    in_weight = unmatched[everyone, row] / rest
    weights -= shift * in_weight.unsqueeze(1)
    weights[everyone, slot] = in_weight
    shift[everyone, slot] = -1.0
    solution += shift.unsqueeze(2) * shift.unsqueeze(1) / rest.reshape(-1, 1, 1)
    rows[everyone, slot] = row
    gain = in_weight.square() * rest
    return possible & (gain > cost * (1 + 1e-9))
