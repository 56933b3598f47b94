"""Matching pursuit as the GCR paper's released code has it: atoms that turn negative are dropped.

As in ``omp.py`` the row of largest correlation enters, but its weights are those of plain ridge regression on the
support; while one is negative, the most negative row leaves and the rest is solved again. It ends when the best row is
in the support already, or after twice as many rounds as rows are asked for, where rows come and go (the released code
has no such end, but one more: where the row that has just entered is the one to leave; and its first row enters
without the ridge). What a class then lacks is drawn at random, with weight 1. The paper asks for weights >= 0
instead, which ``omp.py`` finds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gcr.select.coreset import Coreset
from gcr.select.gradients import LastLayerGradients


def match_dropping(
    gradients: LastLayerGradients,
    classes: list[Tensor],
    budgets: list[int],
    weights: Tensor,
    ridge: float,
    draws: Tensor,
) -> Coreset:
    """One class after the other, ``classes`` being their rows. The pool's ``weights`` scale the target only; ``draws``
    [n] fill up."""
    found: list[tuple[Tensor, Tensor]] = []
    topped_up = 0
    for rows, share in zip(classes, budgets, strict=True):
        if share == len(rows):
            found.append((rows, weights[rows].double()))
            continue
        left, right = gradients.left(rows), gradients.right(rows)
        support, fitted = pursue((left @ left.T) * (right @ right.T), weights[rows].double(), share, ridge)
        free = torch.ones(len(rows), dtype=torch.bool, device=rows.device).index_fill_(0, support, False)
        others = rows[free]
        others = others[draws[others].argsort(stable=True)[: share - len(support)]]
        topped_up += len(others)
        found.append((torch.cat([rows[support], others]), torch.cat([fitted, fitted.new_ones(len(others))])))
    rows, chosen = (torch.cat(part) for part in zip(*found, strict=True))
    order = rows.argsort()
    note = f"{topped_up} of {len(rows)} rows topped up at random" if topped_up else ""
    return Coreset(rows[order], chosen[order].to(weights.dtype), note)


def pursue(gram: Tensor, target_weights: Tensor, budget: int, ridge: float) -> tuple[Tensor, Tensor]:
    """Rows in order of entry and their weights: inner products [n, n], target [n] -> [k], [k] with k <= budget.

    >>> gram = torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    >>> pursue(gram, torch.ones(2, dtype=torch.float64), 2, ridge=1.0)[1].tolist()
    [0.8, 0.5]
    """
    correlation = gram @ target_weights
    support, fitted = torch.zeros(0, dtype=torch.int64, device=gram.device), gram.new_zeros(0)
    for _ in range(2 * budget):  # a row may come, leave and come again
        best = (correlation - gram[:, support] @ fitted).argmax().unsqueeze(0)
        if len(support) == budget or bool((support == best).any()):
            break
        support = torch.cat([support, best])
        fitted = _ridge_regression(gram, correlation, support, ridge)
        while len(support) and float(fitted.min()) < 0:
            left = torch.arange(len(support), device=gram.device) != fitted.argmin()
            support = support[left]
            fitted = _ridge_regression(gram, correlation, support, ridge)
    positive = fitted > 0
    return support[positive], fitted[positive]


def _ridge_regression(gram: Tensor, correlation: Tensor, support: Tensor, ridge: float) -> Tensor:
    """In the sense of least squares where it has many solutions, as the released code solves it."""
    among = gram[support][:, support]
    among = among + ridge * torch.eye(len(support), dtype=gram.dtype, device=gram.device)
    solution: Tensor = torch.linalg.pinv(among, hermitian=True) @ correlation[support]
    return solution
