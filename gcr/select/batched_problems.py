"""Matching problems in padded batches: rows, target, and the inner products that matching pursuit needs.

A problem has rows g_j and a target t, their sum with given weights, and asks for weights ``w >= 0`` with at most
``budget`` non-zeros that make ``L_sub(w) = |t - sum_j w_j g_j|^2 + ridge * |w|^2`` small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tell = Callable[[float], object]  # hears how much of a budget is used

GAIN = 1e-12  # a row helps if its correlation exceeds this share of the largest one at the start
SINGULAR = 1e-13  # a row lies in the span of the support if less than this share of its squared length is new


@dataclass(frozen=True)
class Problems:
    """A batch of b problems of n rows each. Rows g_j are outer products of ``left`` and ``right``; padding is zero."""

    left: Tensor  # [b, n, f] float64
    right: Tensor  # [b, n, c] float64
    valid: Tensor  # [b, n] bool: may be chosen; not padding
    target_weights: Tensor  # [b, n] float64: the target is the sum of the rows with these weights
    gram: Tensor | None = None  # [b, n, n]; without it, products are made when they are needed

    def matched(self, rows: Tensor, weights: Tensor) -> Tensor:
        """``<g_j, sum_s weights_s g_rows_s>`` for every row j: [b, k], [b, k] -> [b, n]."""
        if self.gram is not None:
            full = torch.zeros_like(self.target_weights).scatter_add(1, rows, weights)
            return torch.bmm(self.gram, full.unsqueeze(2)).squeeze(2)
        scaled = _take(self.right, rows) * weights.unsqueeze(2)
        total = torch.bmm(_take(self.left, rows).transpose(1, 2), scaled)  # [b, f, c]
        return torch.bmm(self.left, total).mul_(self.right).sum(2)

    def products(self, first: Tensor, second: Tensor) -> Tensor:
        """``<g_first_s, g_second_t>``: [b, k], [b, m] -> [b, k, m]."""
        if self.gram is not None:
            b, k, m = len(first), first.shape[1], second.shape[1]
            lines = self.gram.gather(1, first.unsqueeze(2).expand(-1, -1, self.gram.shape[2]))
            return lines.gather(2, second.unsqueeze(1).expand(b, k, m))
        left = torch.bmm(_take(self.left, first), _take(self.left, second).transpose(1, 2))
        return left * torch.bmm(_take(self.right, first), _take(self.right, second).transpose(1, 2))

    def squared_norms(self) -> Tensor:
        return self.left.square().sum(2) * self.right.square().sum(2)

    def target(self) -> tuple[Tensor, Tensor]:
        """``<g_j, target>`` [b, n] and ``|target|^2`` [b]."""
        everything = torch.arange(self.valid.shape[1], device=self.valid.device).expand(self.valid.shape)
        correlation = self.matched(everything, self.target_weights)
        return correlation, (correlation * self.target_weights).sum(1)


def _take(factor: Tensor, rows: Tensor) -> Tensor:
    """[b, n, f], [b, k] -> [b, k, f]."""
    return factor.gather(1, rows.unsqueeze(2).expand(-1, -1, factor.shape[2]))
