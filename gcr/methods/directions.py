"""Gradients as directions in the space of all parameters: their inner products, and what they add up to.

A direction is a list with a tensor, or None for zero, per parameter. All parameters together make few large kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Direction = Sequence[Tensor | None]

BLOCKS = 1024  # of numbers, whose products a GPU sums side by side


def inner_products(directions: Sequence[Direction]) -> Tensor:
    """Of each with each, in float64: [n, n].

    >>> g, h = [torch.tensor([1.0, 2.0]), None], [torch.tensor([3.0, 0.0]), torch.ones(1)]
    >>> inner_products([g, h]).tolist()
    [[5.0, 3.0], [3.0, 10.0]]
    """
    flat = torch.stack([torch.cat([part.reshape(-1) for part in direction]) for direction in _filled(directions)])
    flat = F.pad(flat, (0, -flat.shape[1] % BLOCKS))
    blocks = flat.reshape(len(flat), BLOCKS, -1).transpose(0, 1).double()
    return (blocks @ blocks.mT).sum(0)


def add(first: Direction, others: Sequence[Direction], multipliers: Tensor) -> list[Tensor | None]:
    """``first + multipliers . others``; None for a parameter that none of them moves."""
    moved = [any(part is not None for part in same) for same in zip(first, *others, strict=True)]
    total, *rest = _filled([first, *others])
    for direction, multiplier in zip(rest, multipliers.to(total[0].dtype), strict=True):
        total = list(torch._foreach_add(total, torch._foreach_mul(direction, multiplier)))
    parts = iter(total)
    return [next(parts) if is_moved else None for is_moved in moved]


def _filled(directions: Sequence[Direction]) -> list[list[Tensor]]:
    """With zeros for None, without the parameters that are None in all."""
    columns = []
    for same in zip(*directions, strict=True):
        there = next((part for part in same if part is not None), None)
        if there is not None:
            columns.append([torch.zeros_like(there) if part is None else part for part in same])
    return [list(line) for line in zip(*columns, strict=True)]
