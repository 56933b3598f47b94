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

from gcr.select.coreset import Coreset
from gcr.select.gradients import LastLayerGradients
from gcr.select.match import batches, padded
from gcr.select.nnls import only
from gcr.select.omp import Pursuit
from gcr.select.problems import Problems


def match_dropping(
    gradients: LastLayerGradients,
    classes: list[Tensor],
    budgets: list[int],
    weights: Tensor,
    ridge: float,
    draws: Tensor,
) -> Coreset:
    """Every class by itself, ``classes`` being their rows; one that is wholly kept keeps its weights. The pool's
    ``weights`` scale the target only; ``draws`` [n] fill up."""
    groups = list(zip(classes, budgets, strict=True))
    found = [(rows, weights[rows].double()) for rows, share in groups if share == len(rows)]
    topped_up = 0
    for batch in batches([(rows, share) for rows, share in groups if 0 < share < len(rows)], gradients):
        problems, index = padded(batch, gradients, weights, with_gram=True)
        shares = torch.tensor([share for _, share in batch], device=weights.device)
        fitted = Dropping.start(problems, shares, ridge).run()
        missing = shares - (fitted > 0).sum(1)
        free = problems.valid & (fitted == 0)
        rank = draws[index].masked_fill(~free, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
        fitted = torch.where(free & (rank < missing.unsqueeze(1)), 1.0, fitted)
        kept = fitted > 0
        found.append((index[kept], fitted[kept]))
        topped_up += int(missing.sum())
    rows, chosen = (torch.cat(part) for part in zip(*found, strict=True))
    order = rows.argsort()
    note = f"{topped_up} of {len(rows)} rows topped up at random" if topped_up else ""
    return Coreset(rows[order], chosen[order].to(weights.dtype), note)


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
