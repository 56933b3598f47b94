"""Matching pursuit as the GCR paper's released code has it: atoms that turn negative are dropped.

As in ``omp.py`` the row of largest correlation enters, but its weights are those of plain ridge regression on the
support; while one is negative, the most negative row leaves and the rest is solved again. It ends when the best row is
in the support already, or after twice as many rounds as rows are asked for, where rows come and go (the released code
has no such end, but one more: where the row that has just entered is the one to leave; and its first row enters
without the ridge). What a class then lacks is drawn at random, with weight 1. The paper asks for weights >= 0
instead, which ``omp.py`` finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from gcr.select.batched_problems import Problems
from gcr.select.coreset import Coreset
from gcr.select.gradients import LastLayerGradients
from gcr.select.matching import by_group
from gcr.select.nnls import only
from gcr.select.omp import Pursuit


def match_released(
    gradients: LastLayerGradients,
    classes: list[Tensor],
    budgets: list[int],
    weights: Tensor,
    ridge: float,
    draws: Tensor,
) -> Coreset:
    """Every class by itself, ``classes`` being their rows. The pool's ``weights`` scale the target only; ``draws`` [n]
    fill up."""
    topped_up = 0

    def solve(problems: Problems, shares: Tensor, index: Tensor) -> Tensor:
        nonlocal topped_up
        fitted = Dropping.start(problems, shares, ridge).run()
        missing = shares - (fitted > 0).sum(1)
        topped_up += int(missing.sum())
        free = problems.valid & (fitted == 0)
        rank = draws[index].masked_fill(~free, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
        return torch.where(free & (rank < missing.unsqueeze(1)), 1.0, fitted)

    chosen = by_group(gradients, classes, budgets, weights, solve, with_gram=True)
    note = f"{topped_up} of {len(chosen.rows)} rows topped up at random" if topped_up else ""
    return Coreset(chosen.rows, chosen.weights, note)


@dataclass
class Dropping(Pursuit):
    """Without a ridge it also ends where the best row lies in the span of the support.

    >>> rows = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    >>> one, any_row = torch.ones(1, 2, 1).double(), torch.ones(1, 2).bool()
    >>> problem = Problems(rows, one, any_row, torch.ones(1, 2).double(), gram=rows @ rows.transpose(1, 2))
    >>> Dropping.start(problem, torch.tensor([2]), ridge=1.0).run().round(decimals=9).tolist()
    [[0.5, 0.8]]
    """

    never: Tensor = field(init=False)  # [b, n]: BARRED for padding, else 0
    entries: Tensor = field(init=False)  # [b] int64: rows that came so far, again or not

    @classmethod
    def start(cls, problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0) -> Self:
        pursuit = super().start(problems, budgets, ridge, tolerance)
        pursuit.never = pursuit.bar[:, :-1].clone()
        pursuit.entries = torch.zeros_like(pursuit.count)
        return pursuit

    def next_row(self) -> tuple[Tensor, Tensor, Tensor]:
        value, best = (self.now[:, : self.n] + self.never).max(1, keepdim=True)
        inside = self.bar.gather(1, best) < 0
        may = (self.count < self.budgets) & (self.entries < 2 * self.budgets) & ((value > 0) & ~inside).squeeze(1)
        self.entries += may & ~self.paused
        return value, best, may

    def staying(self, some: Tensor, system: Tensor, right: Tensor, used: Tensor, weights: Tensor) -> Tensor:
        free = used
        while bool((falling := free & (weights <= 0)).any()):
            worst = weights.masked_fill(~free, torch.inf).argmin(1, keepdim=True)
            free = free.scatter(1, worst, free.gather(1, worst) & ~falling.any(1, keepdim=True))
            factor = torch.linalg.cholesky(only(system, free))
            weights = torch.cholesky_solve(torch.where(free, right, 0.0).unsqueeze(2), factor).squeeze(2)
        return free
