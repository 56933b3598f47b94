"""Non-negative least squares for a batch of normal equations, by active sets (Lawson and Hanson 1974).

Minimise ``w^T A w - 2 c^T w`` over ``w >= 0``: walk from a feasible point towards the solution without signs until a
weight reaches zero, fix it there, solve again; when all free weights are positive, free a fixed one if its slope says
so.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nonnegative_solution(
    system: Tensor, right: Tensor, used: Tensor, start: Tensor, solved: Tensor, floor: Tensor
) -> Tensor:
    """Which of the ``used`` slots are free (positive) at the minimum: [b, k] bool.

    ``system`` [b, k, k] and ``right`` [b, k] are A and c; ``start`` >= 0 is a feasible point, ``solved`` the solution
    without signs, ``floor`` [b] the slope below which a fixed slot stays fixed.

    >>> used, start, floor = torch.ones(1, 2).bool(), torch.zeros(1, 2).double(), torch.zeros(1)
    >>> A, c = torch.tensor([[[2., 1.], [1., 2.]]]).double(), torch.tensor([[3., 0.]]).double()
    >>> nonnegative_solution(A, c, used, start, torch.tensor([[2., -1.]]).double(), floor)
    tensor([[ True, False]])
    """
    free, current = used, start
    for _ in range(3 * used.shape[1] + 10):  # enough for any problem; a bound in case rounding makes it cycle
        falling = free & (solved <= 0)
        if bool(falling.any()):
            reach = torch.where(falling, current / (current - solved).clamp_min(1e-300), torch.inf)
            step = reach.amin(1, keepdim=True)
            current = torch.where(free, current + step.clamp_max(1) * (solved - current), 0.0)
            free = free & ~(falling & (reach <= step))
        else:
            current = torch.where(free, solved, 0.0)
            slope = right - torch.bmm(system, current.unsqueeze(2)).squeeze(2)
            gain, back = slope.masked_fill(free | ~used, -torch.inf).max(1, keepdim=True)
            returning = gain > floor.unsqueeze(1)
            if not bool(returning.any()):
                break
            free = free.scatter(1, back, free.gather(1, back) | returning)
        factor = torch.linalg.cholesky(only(system, free))
        solved = torch.cholesky_solve(torch.where(free, right, 0.0).unsqueeze(2), factor).squeeze(2)
    return free


def only(system: Tensor, slots: Tensor) -> Tensor:
    """[b, k, k] with the identity in all lines but those of ``slots`` [b, k]: solving leaves the others alone."""
    eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    return torch.where(slots.unsqueeze(1) & slots.unsqueeze(2), system, eye)


def to_front(slots: Tensor) -> Tensor:
    """[b, k] bool -> the order that moves ``slots`` to the front and keeps their sequence."""
    return (~slots).long().argsort(dim=1, stable=True)
