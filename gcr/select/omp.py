"""Non-negative orthogonal matching pursuit in Gram space (Algorithm 2 of the GCR paper, for one class).

Minimise ``L_sub(w) = |target - sum_j w_j g_j|^2 + ridge * |w|^2`` over ``w >= 0`` with at most ``budget`` non-zeros.
Only inner products enter: ``gram[i, j] = <g_i, g_j>``, ``correlation[j] = <g_j, target>`` and ``energy =
|target|^2``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def matching_pursuit(
    gram: Tensor, correlation: Tensor, energy: float, budget: int, ridge: float, tolerance: float
) -> Tensor:
    """Weights [n] of the greedy solution, zero off the support.

    Each round adds the row of largest positive correlation with what is not matched yet (lowest index on ties), then
    solves for the best non-negative weights on the support; rows whose weight falls to zero leave it and may return. It
    ends at the budget, when ``L_sub <= tolerance``, or when no row helps. The objective falls in every round, so no
    support occurs twice and the loop ends.

    >>> exact = matching_pursuit(torch.eye(3).double(), torch.tensor([1., 3., -2.]).double(), 14., 2, 0., 0.)
    >>> exact.tolist()
    [1.0, 3.0, 0.0]
    """
    n = len(correlation)
    weights = torch.zeros(n, dtype=gram.dtype)
    support: list[int] = []
    floor = 1e-12 * max(float(correlation.abs().max()), 1e-300) if n else 0.0
    while len(support) < min(budget, n):
        objective = (
            energy - float(2 * correlation @ weights - weights @ gram @ weights) + ridge * float(weights @ weights)
        )
        if objective <= tolerance:
            break
        unmatched = correlation - gram @ weights
        unmatched[support] = -torch.inf
        best = int(unmatched.argmax())
        if float(unmatched[best]) <= floor:
            break
        support.append(best)
        support, solved = _nonnegative_ridge(gram, correlation, support, weights[support], ridge)
        weights.zero_()
        weights[support] = solved
        if best not in support:  # nothing gained but rounding
            break
    return weights


def _nonnegative_ridge(
    gram: Tensor, correlation: Tensor, support: list[int], start: Tensor, ridge: float
) -> tuple[list[int], Tensor]:
    """Best non-negative weights on ``support`` by active-set steps (Lawson and Hanson's inner loop), from ``start``.

    Returns the part of the support that stays positive and its weights. A row that was dropped on the way comes back if
    its gradient says so at the end, so the answer is the true minimum over the support.
    """
    current = dict(zip(support, start.tolist(), strict=True))
    active = list(support)
    while True:
        index = torch.tensor(active)
        system = gram[index][:, index] + ridge * torch.eye(len(active), dtype=gram.dtype)
        solved = torch.linalg.lstsq(system, correlation[index].unsqueeze(1), driver="gelsd").solution.squeeze(1)
        if bool((solved > 0).all()):
            current = dict.fromkeys(support, 0.0) | dict(zip(active, solved.tolist(), strict=True))
            weights = torch.tensor([current[row] for row in support], dtype=gram.dtype)
            rows = torch.tensor(support)
            slope = correlation[rows] - gram[rows][:, rows] @ weights - ridge * weights
            outside = [row for row in support if row not in active]
            gains = {row: float(slope[support.index(row)]) for row in outside}
            back = max(outside, key=lambda row: gains[row], default=None)
            if back is None or gains[back] <= 1e-12 * float(correlation.abs().max()):
                return active, solved
            active.append(back)
            continue
        # Walk from the current weights towards the solution until the first one reaches zero, and drop it.
        reach = {
            row: current[row] / (current[row] - new)
            for row, new in zip(active, solved.tolist(), strict=True)
            if new <= 0
        }
        step = min(reach.values())
        for row, new in zip(active, solved.tolist(), strict=True):
            current[row] += step * (new - current[row])
        dropped = [row for row, share in reach.items() if share <= step]
        for row in dropped:
            current[row] = 0.0
        active = [row for row in active if row not in dropped]
