"""The nearest point of a cone of half-spaces, in a fixed number of pivots that never ask the host.

The point with ``G x >= 0`` nearest to g is ``x = g + G^T z``, where ``z >= 0`` minimises ``1/2 z^T M z + q^T z`` with
``M = G G^T`` and ``q = G g``: then ``w = q + M z >= 0`` and ``z . w = 0``. Principal pivoting exchanges ``z_i`` and
``w_i`` where one of them is negative until none is: first the most negative, which is quick and may in theory go round
in circles, then the first negative, which cannot (Murty 1974).
"""

from __future__ import annotations

import torch
from torch import Tensor

# On the diagonal of M once the rows of G have length 1, so that M is definite even where directions repeat. No slope
# of x along them falls below -sqrt(RIDGE / 2) |g| = -2.3e-6 |g|, but for rounding. How far x itself moves has no such
# bound: between directions that are opposite but for 1e-7 it may move by |g|.
RIDGE = 1e-11
ROUNDING = 1e-13  # of the largest slope: no more negative than this is not negative
QUICK, CERTAIN = 2, 6  # pivots of either kind for each direction; t full directions have been seen to need 2 t at most


def gem_multipliers(products: Tensor, slopes: Tensor) -> Tensor:
    """``z`` for M [t, t] and q [t], both float64. A direction that is zero has multiplier zero.

    >>> gem_multipliers(torch.eye(2).double(), torch.tensor([-3.0, 1.0]).double()).round(decimals=6)
    tensor([3., 0.], dtype=torch.float64)
    """
    t = len(slopes)
    length = products.diagonal().sqrt()
    scale = torch.where(length > 0, 1 / length, 0.0)
    eye = torch.eye(t, dtype=products.dtype, device=products.device)
    unit = products * scale * scale.unsqueeze(1) + RIDGE * eye
    table = torch.cat([unit, (slopes * scale).unsqueeze(1)], 1)  # w = M z + q; after pivots, whichever are basic
    floor = -ROUNDING * table[:, t].abs().max()
    is_z = torch.zeros_like(slopes, dtype=torch.bool)  # whether row i says what z_i is, not w_i
    first = torch.arange(t, 0, -1, dtype=slopes.dtype, device=slopes.device)
    for number in range((QUICK + CERTAIN) * t):
        values = table[:, t]
        wrong = values < floor
        urgency = torch.where(wrong, -values if number < QUICK * t else first, 0.0)
        chosen = eye.index_select(0, urgency.argmax().reshape(1)).squeeze(0) * wrong  # all zero: nothing is wrong
        table, is_z = _exchanged(table, chosen), is_z ^ (chosen > 0)
    return torch.where(is_z, table[:, t], 0.0).clamp_min(0) * scale


def _exchanged(table: Tensor, chosen: Tensor) -> Tensor:
    """Solve row r of ``y = A x + b``, in ``table`` as [A, b], for ``x_r`` and put that into the other rows.

    ``chosen`` [t] is 1 at r and 0 elsewhere; where it is 0 everywhere the table stays as it is.
    """
    padded = torch.cat([chosen, chosen.new_zeros(1)])
    row, column = chosen @ table, table @ padded
    pivot = torch.where(chosen.any(), row @ padded, 1.0)
    solved = (padded - row * (1 - padded)) / pivot
    others = (1 - chosen).unsqueeze(1) * (1 - padded)
    return table * others + torch.outer(column * (1 - chosen) + chosen, solved)
