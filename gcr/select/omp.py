"""Non-negative orthogonal matching pursuit in Gram space, for many problems at once (Algorithm 2 of the GCR paper).

Each problem has its own rows g_j and target t, and asks for weights ``w >= 0`` with at most ``budget`` non-zeros that
make ``L_sub(w) = |t - sum_j w_j g_j|^2 + ridge * |w|^2`` small. This is the textbook algorithm, to the row:

1. Add the row of largest correlation ``<g_j, t - sum w g>`` among rows not in the support; lowest index on ties.
2. Solve for the best ``w >= 0`` on the support: non-negative least squares with the ridge, exactly.
3. Rows whose weight falls to zero leave the support and may return.
4. Stop at the budget, when ``L_sub <= tolerance``, or when no correlation is positive.

``L_sub`` falls in every round, so no support occurs twice. The system ``(G_SS + ridge I) w = c_S`` is solved with a
Cholesky factor (its inverse, to be exact) that grows by a line with every row; only when a weight turns non-positive
is it factored again, without the rows that leave. Problems are padded to one size and advance together, in float64,
on whatever device the rows are on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GAIN = 1e-12  # a row helps if its correlation exceeds this share of the largest one at the start
SINGULAR = 1e-13  # a row lies in the span of the support if less than this share of its squared length is new


@dataclass(frozen=True)
class Problems:
    """A batch of b problems of n rows each. Rows g_j are outer products of ``left`` and ``right``; padding is zero."""

    left: Tensor  # [b, n, f] float64
    right: Tensor  # [b, n, c] float64
    valid: Tensor  # [b, n] bool: not padding
    target_weights: Tensor  # [b, n] float64: the target is the sum of the rows with these weights
    gram: Tensor | None = None  # [b, n, n]; without it, products are made when they are needed

    def matched(self, rows: Tensor, weights: Tensor) -> Tensor:
        """``<g_j, sum_s weights_s g_rows_s>`` for every row j: [b, k], [b, k] -> [b, n]."""
        if self.gram is not None:
            full = torch.zeros_like(self.target_weights).scatter_add(1, rows, weights)
            return torch.bmm(self.gram, full.unsqueeze(2)).squeeze(2)
        scaled = _take(self.right, rows) * weights.unsqueeze(2)
        total = torch.bmm(_take(self.left, rows).transpose(1, 2), scaled)  # [b, f, c]
        return (torch.bmm(self.left, total) * self.right).sum(2)

    def products(self, row: Tensor, rows: Tensor) -> Tensor:
        """``<g_row, g_rows_s>``: [b], [b, k] -> [b, k]."""
        if self.gram is not None:
            return self.gram[torch.arange(len(row), device=row.device), row].gather(1, rows)
        one = row.unsqueeze(1)
        left = torch.bmm(_take(self.left, rows), _take(self.left, one).transpose(1, 2))
        right = torch.bmm(_take(self.right, rows), _take(self.right, one).transpose(1, 2))
        return (left * right).squeeze(2)

    def squared_norms(self) -> Tensor:
        return self.left.square().sum(2) * self.right.square().sum(2)

    def target(self) -> tuple[Tensor, Tensor]:
        """``<g_j, target>`` [b, n] and ``|target|^2`` [b]."""
        everything = torch.arange(self.valid.shape[1], device=self.valid.device).expand(self.valid.shape)
        correlation = self.matched(everything, self.target_weights)
        return correlation, (correlation * self.target_weights).sum(1)


@dataclass
class Support:
    """The rows in use and their exact solution. Slots beyond ``count`` are empty; the last slot is spare.

    ``inner`` is ``G_SS + ridge I`` and ``inverse`` the inverse of its lower Cholesky factor, with the identity in empty
    slots, so that what is solved for all slots at once leaves the empty ones at zero. The inverse factor grows by a
    line as the factor would, and turns every solve into products.
    """

    rows: Tensor  # [b, k + 1] int64
    count: Tensor  # [b] int64
    weights: Tensor  # [b, k + 1]
    correlation: Tensor  # [b, k + 1]: <g_s, target> of the rows in use, else 0
    inner: Tensor  # [b, k + 1, k + 1]
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

        ``products`` [b, k] are its inner products with the slots, ``norm`` its own with itself plus the ridge. A row
        within the span of the support (possible without ridge) is not added.
        """
        b, k = products.shape
        products = torch.where(self.used(k), products, 0.0)
        inverse = self.inverse[:, :k, :k]
        line = torch.bmm(inverse, products.unsqueeze(2))  # of the factor
        rest = norm - line.square().sum((1, 2))
        added = wanted & (rest > SINGULAR * norm)
        pivot = torch.where(added, rest, 1.0).sqrt()
        new_line = -torch.bmm(line.transpose(1, 2), inverse).squeeze(1) / pivot.unsqueeze(1)  # of the inverse
        problem, slot = torch.arange(b, device=row.device), torch.where(added, self.count, self.rows.shape[1] - 1)
        half = (correlation - (line.squeeze(2) * self.half[:, :k]).sum(1)) / pivot
        self.inverse[problem, slot, :k], self.inverse[problem, slot, slot] = new_line, 1 / pivot
        self.inner[problem, slot, :k], self.inner[problem, :k, slot] = products, products
        self.inner[problem, slot, slot] = norm
        self.rows[problem, slot], self.correlation[problem, slot], self.half[problem, slot] = row, correlation, half
        self.weights[:, :k] += new_line * torch.where(added, half, 0.0).unsqueeze(1)
        self.weights[problem, slot] = half / pivot
        self.count += added
        return added

    def make_nonnegative(self, start: Tensor, floor: Tensor) -> None:
        """From weights ``start`` >= 0 to the non-negative solution on the support (Lawson and Hanson's active sets).

        Walk towards the solution without signs until a weight reaches zero, fix it there, solve again; at the end
        free a fixed row if its slope says so. Rows fixed at zero leave the support.
        """
        width = int(self.count.max())
        used, inner, correlation = self.used(width), self.inner[:, :width, :width], self.correlation[:, :width]
        free, current, solved = used, start[:, :width], self.weights[:, :width]
        for _ in range(3 * width + 10):  # enough for any problem; a bound against rounding that never settles
            falling = free & (solved <= 0)
            if bool(falling.any()):
                reach = torch.where(falling, current / (current - solved).clamp_min(1e-300), torch.inf)
                step = reach.amin(1, keepdim=True)
                current = torch.where(free, current + step.clamp_max(1) * (solved - current), 0.0)
                free = free & ~(falling & (reach <= step))
            else:
                current = torch.where(free, solved, 0.0)
                slope = correlation - torch.bmm(inner, current.unsqueeze(2)).squeeze(2)
                gain, back = slope.masked_fill(free | ~used, -torch.inf).max(1, keepdim=True)
                returning = gain > floor.unsqueeze(1)
                if not bool(returning.any()):
                    break
                free = free.scatter(1, back, free.gather(1, back) | returning)
            factor = torch.linalg.cholesky(_only(inner, free))
            solved = torch.cholesky_solve(torch.where(free, correlation, 0.0).unsqueeze(2), factor).squeeze(2)
        self._compact(free)
        self.refresh(width)

    def _compact(self, free: Tensor) -> None:
        """Move the ``free`` slots to the front, in their order."""
        width = free.shape[1]
        order = (~free).long().argsort(dim=1, stable=True)
        lines = order.unsqueeze(2).expand(-1, -1, width)
        inner = self.inner[:, :width, :width].gather(1, lines).gather(2, lines.transpose(1, 2))
        still = free.gather(1, order)
        self.rows[:, :width] = self.rows[:, :width].gather(1, order)
        self.correlation[:, :width] = torch.where(still, self.correlation[:, :width].gather(1, order), 0.0)
        self.inner[:, :width, :width] = _only(inner, still)
        self.count = free.sum(1)

    def refresh(self, width: int) -> None:
        """Factor ``inner`` anew, and all that follows from it, for the slots below ``width``."""
        factor = torch.linalg.cholesky(self.inner[:, :width, :width])
        inverse = torch.linalg.solve_triangular(factor, _eye_like(factor).expand_as(factor), upper=False)
        half = torch.bmm(inverse, self.correlation[:, :width].unsqueeze(2))
        self.inverse[:, :width, :width], self.half[:, :width] = inverse, half.squeeze(2)
        self.weights[:, :width] = torch.bmm(inverse.transpose(1, 2), half).squeeze(2)


def matching_pursuit(problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0) -> Tensor:
    """Weights [b, n] of the greedy solution of every problem, zero off its support. ``budgets`` is [b].

    >>> rows = torch.eye(3).double().unsqueeze(0)
    >>> one, any_row = torch.ones(1, 3, 1).double(), torch.ones(1, 3).bool()
    >>> problem = Problems(rows, one, any_row, target_weights=torch.tensor([[1., 3., 2.]]).double())
    >>> matching_pursuit(problem, torch.tensor([2]), ridge=0.0).tolist()
    [[0.0, 3.0, 2.0]]
    """
    return pursue(problems, budgets, ridge, tolerance).spread(problems.target_weights)


def pursue(problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0) -> Support:
    """The greedy support of every problem."""
    longest = int(budgets.max())
    correlation, energy = problems.target()
    floor = GAIN * correlation.abs().amax(1)
    norms = problems.squared_norms() + ridge
    support = Support.empty(len(budgets), longest, correlation)
    unmatched, closed = correlation, ~problems.valid
    running = torch.ones_like(budgets, dtype=torch.bool)
    width = 0
    while True:
        taken = support.spread(problems.target_weights) > 0
        value, best = unmatched.masked_fill(closed | taken, -torch.inf).max(1, keepdim=True)
        objective = energy - (support.weights * support.correlation).sum(1)
        running = running & (support.count < budgets) & (value.squeeze(1) > floor) & (objective > tolerance)
        before = support.weights.clone()
        row = best.squeeze(1)
        line = problems.products(row, support.rows[:, :width])
        added = support.append(
            row, running, line, norms.gather(1, best).squeeze(1), correlation.gather(1, best).squeeze(1)
        )
        closed = closed.scatter(1, best, closed.gather(1, best) | (running & ~added).unsqueeze(1))
        width = min(width + 1, longest)
        negative = ((support.weights[:, :width] <= 0) & support.used(width)).any(1)
        any_running, any_negative = torch.stack([running.any(), negative.any()]).tolist()  # the round's one host read
        if not any_running:
            support.refresh(width)  # the last word on the weights, without the rounding of many small updates
            return support
        if any_negative:
            some = torch.nonzero(negative).flatten()
            part = support.pick(some)
            part.make_nonnegative(before[some], floor[some])
            support.put(some, part)
            weight_now = support.spread(problems.target_weights).gather(1, best).squeeze(1)
            running = running & ((weight_now > 0) | ~added)  # a row that left at once gains nothing but rounding
            width = max(int(support.count.max()), 1)
        unmatched = correlation - problems.matched(support.rows[:, :width], support.weights[:, :width])


def _take(factor: Tensor, rows: Tensor) -> Tensor:
    """[b, n, f], [b, k] -> [b, k, f]."""
    return factor.gather(1, rows.unsqueeze(2).expand(-1, -1, factor.shape[2]))


def _only(matrix: Tensor, slots: Tensor) -> Tensor:
    """[b, k, k] with the identity in all lines but those of ``slots`` [b, k]."""
    return torch.where(slots.unsqueeze(1) & slots.unsqueeze(2), matrix, _eye_like(matrix))


def _eye_like(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
