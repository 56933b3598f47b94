"""The matching pursuit of ``omp.py`` for problems too large for a Gram matrix: same rounds, same answers.

What is unmatched is computed from the factors, ``<g_j, r> = d_j^T R [f_j; 1]`` with R the unmatched part of the
target as a small matrix, so that memory stays near that of the pool; only the support's own system and its inverse
Cholesky factor, which grows by a line per round, are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcr.select.batched_problems import GAIN, SINGULAR, Problems, Tell
from gcr.select.nnls import nonnegative_solution, only, to_front


def matching_pursuit(
    problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0, tell: Tell | None = None
) -> Tensor:
    """Weights [b, n] of the greedy solution of every problem, zero off its support. ``budgets`` is [b]. ``tell`` hears
    how many rows there are so far."""
    longest = int(budgets.max())
    correlation, energy = problems.target()
    floor = GAIN * correlation.abs().amax(1)
    norms = problems.squared_norms() + ridge
    support = Support.empty(len(budgets), longest, correlation)
    unmatched, closed = correlation, ~problems.valid
    running = torch.ones_like(budgets, dtype=torch.bool)
    width = 0
    while True:
        taken = support.spread(correlation) > 0
        value, best = unmatched.masked_fill(closed | taken, -torch.inf).max(1, keepdim=True)
        objective = energy - (support.weights * support.correlation).sum(1)
        running = running & (support.count < budgets) & (value.squeeze(1) > floor) & (objective > tolerance)
        before = support.weights.clone()
        products = problems.products(best, support.rows[:, :width]).squeeze(1)
        added = support.append(best.squeeze(1), running, products, norms.gather(1, best), correlation.gather(1, best))
        closed = closed.scatter(1, best, closed.gather(1, best) | (running & ~added).unsqueeze(1))
        width = min(width + 1, longest)
        negative = ((support.weights[:, :width] <= 0) & support.used(width)).any(1)
        any_running, any_negative = torch.stack([running.any(), negative.any()]).tolist()
        if not any_running:
            support.refresh(width)  # the last word on the weights, without the rounding of many small updates
            return support.spread(correlation).clamp_min(0)
        if tell is not None:
            tell(float(support.count.sum()))
        if any_negative:
            some = torch.nonzero(negative).flatten()
            part = support.pick(some)
            part.make_nonnegative(before[some], floor[some])
            support.put(some, part)
            weight_now = support.spread(correlation).gather(1, best).squeeze(1)
            running = running & ((weight_now > 0) | ~added)  # a row that left at once gains nothing but rounding
            width = max(int(support.count.max()), 1)
        unmatched = correlation - problems.matched(support.rows[:, :width], support.weights[:, :width])


@dataclass
class Support:
    """The rows in use and their exact solution. Slots beyond ``count`` are empty; the last slot is spare.

    ``system`` is ``G_SS + ridge I`` and ``inverse`` the inverse of its lower Cholesky factor, with the identity in
    empty slots, so that what is solved for all slots at once leaves the empty ones at zero.
    """

    rows: Tensor  # [b, k + 1] int64
    count: Tensor  # [b] int64
    weights: Tensor  # [b, k + 1]
    correlation: Tensor  # [b, k + 1]: <g_s, target> of the rows in use, else 0
    system: Tensor  # [b, k + 1, k + 1]
    inverse: Tensor  # [b, k + 1, k + 1]
    half: Tensor  # [b, k + 1]: inverse @ correlation

    @classmethod
    def empty(cls, b: int, k: int, like: Tensor) -> Support:
        line = like.new_zeros(b, k + 1)
        eye = torch.eye(k + 1, dtype=like.dtype, device=like.device).repeat(b, 1, 1)
        rows = torch.zeros_like(line, dtype=torch.int64)
        return cls(rows, rows[:, 0].clone(), line, line.clone(), eye, eye.clone(), line.clone())

    def used(self, width: int) -> Tensor:
        """[b, width] bool: slots in use."""
        return torch.arange(width, device=self.rows.device) < self.count.unsqueeze(1)

    def spread(self, like: Tensor) -> Tensor:
        """The weights at their rows: [b, n] like ``like``."""
        weights = torch.where(self.used(self.rows.shape[1]), self.weights, 0.0)
        return torch.zeros_like(like).scatter_add(1, self.rows, weights)

    def pick(self, problems: Tensor) -> Support:
        return Support(*(column[problems] for column in vars(self).values()))

    def put(self, problems: Tensor, part: Support) -> None:
        for name, column in vars(self).items():
            column[problems] = getattr(part, name)

    def append(self, row: Tensor, wanted: Tensor, products: Tensor, norm: Tensor, correlation: Tensor) -> Tensor:
        """Add ``row`` [b] to the ``wanted`` problems and solve again, without signs. Returns where that was done.

        ``products`` [b, k] are its inner products with the slots, ``norm`` [b, 1] its own with itself plus the ridge.
        A row within the span of the support (possible without ridge) is not added.
        """
        b, k = products.shape
        products = torch.where(self.used(k), products, 0.0)
        inverse = self.inverse[:, :k, :k]
        line = torch.bmm(inverse, products.unsqueeze(2))  # of the factor
        rest = norm - line.square().sum(1)
        added = wanted.unsqueeze(1) & (rest > SINGULAR * norm)
        pivot = torch.where(added, rest, 1.0).sqrt()
        new_line = -torch.bmm(line.transpose(1, 2), inverse).squeeze(1) / pivot  # of the inverse
        half = (correlation - (line.squeeze(2) * self.half[:, :k]).sum(1, keepdim=True)) / pivot
        problem = torch.arange(b, device=row.device)
        slot = torch.where(added.squeeze(1), self.count, self.rows.shape[1] - 1)
        self.inverse[problem, slot, :k], self.inverse[problem, slot, slot] = new_line, 1 / pivot.squeeze(1)
        self.system[problem, slot, :k], self.system[problem, :k, slot] = products, products
        self.system[problem, slot, slot] = norm.squeeze(1)
        self.rows[problem, slot], self.correlation[problem, slot] = row, correlation.squeeze(1)
        self.half[problem, slot] = half.squeeze(1)
        self.weights[:, :k] += new_line * torch.where(added, half, 0.0)
        self.weights[problem, slot] = (half / pivot).squeeze(1)
        self.count += added.squeeze(1)
        return added.squeeze(1)

    def make_nonnegative(self, start: Tensor, floor: Tensor) -> None:
        """From weights ``start`` >= 0 to the solution with signs; rows whose weight is zero leave the support."""
        width = int(self.count.max())
        used, correlation = self.used(width), self.correlation[:, :width]
        system, solved = self.system[:, :width, :width], self.weights[:, :width]
        free = nonnegative_solution(system, correlation, used, start[:, :width], solved, floor)
        order = to_front(free)
        lines = order.unsqueeze(2).expand(-1, -1, width)
        still = free.gather(1, order)
        self.rows[:, :width] = self.rows[:, :width].gather(1, order)
        self.correlation[:, :width] = torch.where(still, correlation.gather(1, order), 0.0)
        self.system[:, :width, :width] = only(system.gather(1, lines).gather(2, lines.transpose(1, 2)), still)
        self.count = free.sum(1)
        self.refresh(width)

    def refresh(self, width: int) -> None:
        """Recompute the factor, and all that depends on it, for the slots below ``width``."""
        factor = torch.linalg.cholesky(self.system[:, :width, :width])
        eye = torch.eye(width, dtype=factor.dtype, device=factor.device).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        half = torch.bmm(inverse, self.correlation[:, :width].unsqueeze(2))
        self.inverse[:, :width, :width], self.half[:, :width] = inverse, half.squeeze(2)
        self.weights[:, :width] = torch.bmm(inverse.transpose(1, 2), half).squeeze(2)
