"""Non-negative orthogonal matching pursuit in Gram space, for many problems at once (Algorithm 2 of the GCR paper).

The textbook algorithm, to the row:

1. Add the row of largest correlation ``<g_j, t - sum w g>`` among rows not in the support; lowest index on ties.
2. Solve for the best ``w >= 0`` on the support: non-negative least squares with the ridge, exactly.
3. Rows whose weight falls to zero leave the support and may return.
4. Stop at the budget, when ``L_sub <= tolerance``, or when no correlation is positive.

``L_sub`` falls in every round, so no support occurs twice. With L the Cholesky factor of ``G_SS + ridge I``, two
matrices grow by a line per round, ``Q = L^-1 G_S`` (correlations of all rows with the orthogonalised support) and
``L^-1``. The new line of the factor is a column of Q that is there already, and one product gives the new lines of
both; what is unmatched, and the weights, change by a multiple of them. A round is thus one pass over ``[Q, L^-1]``
and a handful of small operations. Where a weight turns negative, the problem pauses, is solved with signs
(``nnls.py``) and rebuilt. Problems are padded to one size and advance together, in float64. On a GPU a few rounds
are captured and replayed, and the host looks only in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gcr.select.batched_problems import GAIN, SINGULAR, Problems
from gcr.select.cuda_graph import capture
from gcr.select.nnls import nonnegative_solution, only, to_front

ROUNDS_UNSEEN = 4  # rounds on a GPU between two looks of the host, captured together
BARRED = -1e300  # correlation of a row that cannot enter; finite, so that zero times it is zero


def matching_pursuit(problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0) -> Tensor:
    """Weights [b, n] of the greedy solution of every problem, zero off its support. ``budgets`` is [b].

    The problems must have their Gram matrices.

    >>> rows = torch.eye(3).double().unsqueeze(0)
    >>> one, any_row = torch.ones(1, 3, 1).double(), torch.ones(1, 3).bool()
    >>> problem = Problems(rows, one, any_row, target_weights=torch.tensor([[1., 3., 2.]]).double(), gram=rows)
    >>> matching_pursuit(problem, torch.tensor([2]), ridge=0.0).tolist()
    [[0.0, 3.0, 2.0]]
    """
    return Pursuit.start(problems, budgets, ridge, tolerance).run()


@dataclass
class Pursuit:
    """The state of all problems. Slots beyond ``count`` are empty and hold zeros; one slot more is spare."""

    gram: Tensor  # [b, n, n + k + 1]: zeros behind the inner products, where the lines have L^-1
    correlation: Tensor  # [b, n]: <g_j, target>
    norms: Tensor  # [b, n]: squared lengths plus ridge
    budgets: Tensor  # [b]
    floor: Tensor  # [b]: correlations up to this do not help
    energy: Tensor  # [b]: |target|^2
    ridge: float
    tolerance: float
    rows: Tensor  # [b, k + 1] int64: the support, in order of entry
    count: Tensor  # [b] int64
    lines: Tensor  # [b, k + 1, n + k + 1]: [Q, L^-1]
    now: Tensor  # [b, n + k + 1]: unmatched correlation of every row, and the weights of the slots, negated
    bar: Tensor  # [b, n + 1]: BARRED for rows that cannot enter, else 0; the last one is spare
    objective: Tensor  # [b]
    running: Tensor  # [b] bool: changed in the last round
    paused: Tensor  # [b] bool: has a weight that is not positive
    ended: Tensor  # [b] bool: gains nothing but rounding
    slot_numbers: Tensor  # [k] int64

    @classmethod
    def start(cls, problems: Problems, budgets: Tensor, ridge: float, tolerance: float = 0.0) -> Self:
        assert problems.gram is not None
        (b, n), k = problems.valid.shape, int(budgets.max())
        correlation, energy = problems.target()
        rows = torch.zeros(b, k + 1, dtype=torch.int64, device=budgets.device)
        nobody = torch.zeros(b, dtype=torch.bool, device=budgets.device)
        return cls(
            gram=torch.cat([problems.gram, correlation.new_zeros(b, n, k + 1)], 2),
            correlation=correlation,
            norms=problems.squared_norms() + ridge,
            budgets=budgets,
            floor=GAIN * correlation.abs().amax(1),
            energy=energy,
            ridge=ridge,
            tolerance=tolerance,
            rows=rows,
            count=rows[:, 0].clone(),
            lines=correlation.new_zeros(b, k + 1, n + k + 1),
            now=torch.cat([correlation, correlation.new_zeros(b, k + 1)], 1),
            bar=torch.nn.functional.pad(torch.zeros_like(correlation).masked_fill(~problems.valid, BARRED), (0, 1)),
            objective=energy.clone(),
            running=nobody,
            paused=nobody.clone(),
            ended=nobody.clone(),
            slot_numbers=torch.arange(k, device=budgets.device),
        )

    def run(self) -> Tensor:
        """The weights at the end: [b, n]."""
        self.round(1)
        replay = self.captured() if self.budgets.is_cuda else None
        rounds = 1
        while True:
            running, paused = torch.stack([self.running.any(), self.paused.any()]).tolist()  # the host looks
            if paused:
                self.repair(torch.nonzero(self.paused).flatten())
            elif not running:
                return self.final_weights()
            if replay is not None:
                replay()
            else:
                rounds += 1
                self.round(min(rounds, self.slots))

    @property
    def slots(self) -> int:
        return self.rows.shape[1] - 1

    @property
    def n(self) -> int:
        return self.correlation.shape[1]

    def round(self, width: int) -> None:
        """Add a row to every problem that can take one. Slots from ``width`` on are known to be empty before it."""
        n = self.n
        value, best, open_ = self.next_row()
        torch.logical_and(open_, ~(self.paused | self.ended), out=self.running)
        running, lines = self.running.unsqueeze(1), self.lines[:, :width]
        line = lines.gather(2, best.unsqueeze(1).expand(-1, width, 1)).transpose(1, 2)  # of the factor L: [b, 1, width]
        norm = self.norms.gather(1, best)
        rest = norm - torch.linalg.vecdot(line, line)
        added = running & (rest > SINGULAR * norm)  # else the row lies in the span of the support
        scale = torch.where(added, rest, torch.inf).rsqrt()  # zero where nothing is added
        slot = torch.where(added, self.count.unsqueeze(1), self.slots)
        base = self.gram.gather(1, best.unsqueeze(2).expand(-1, 1, self.gram.shape[2]))
        base.scatter_(2, (n + slot).unsqueeze(2), 1.0)
        new = base.baddbmm_(line, lines, alpha=-1).mul_(scale.unsqueeze(2))
        half = value * scale
        self.now.addcmul_(half, new.squeeze(1), value=-1)
        self.lines.scatter_(1, slot.unsqueeze(2).expand_as(new), new)
        self.rows.scatter_(1, slot, best)
        self.bar.scatter_(1, torch.where(running, best, n), BARRED)
        self.objective.addcmul_(half.squeeze(1), half.squeeze(1), value=-1)
        self.count += added.squeeze(1)
        used = self.slot_numbers < self.count.unsqueeze(1)
        self.paused |= (used & (self.now[:, n:-1] >= 0)).any(1)

    def next_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """For every problem: the row that comes next and its correlation [b, 1], and whether it may enter [b]."""
        value, best = (self.now[:, : self.n] + self.bar[:, : self.n]).max(1, keepdim=True)
        may = (self.count < self.budgets) & (value.squeeze(1) > self.floor) & (self.objective > self.tolerance)
        return value, best, may

    def captured(self) -> Callable[[], None]:
        """A few rounds over all slots as a CUDA graph: one launch in place of some hundreds."""

        def rounds() -> None:
            for _ in range(ROUNDS_UNSEEN):
                self.round(self.slots)

        return capture(rounds, self.budgets.device).replay

    def repair(self, some: Tensor) -> None:
        """Drop the rows of the problems ``some`` that must go, and rebuild what follows."""
        width = int(self.count[some].max())
        count, rows = self.count[some], self.rows[some, :width]
        used = torch.arange(width, device=rows.device) < count.unsqueeze(1)
        gram = self.gram[some, :, : self.n]
        system = self._system(gram, rows, used)
        right = torch.where(used, self.correlation[some].gather(1, rows), 0.0)
        free = self.staying(some, system, right, used, -self.now[some, self.n : self.n + width])

        order = to_front(free)
        rows, free = rows.gather(1, order), free.gather(1, order)
        line_order = order.unsqueeze(2).expand(-1, -1, width)
        system = only(system.gather(1, line_order).gather(2, line_order.transpose(1, 2)), free)
        right = torch.where(free, right.gather(1, order), 0.0)
        factor = torch.linalg.cholesky(system)
        chosen = gram.gather(1, rows.unsqueeze(2).expand(-1, -1, self.n))
        eye = torch.eye(width, dtype=system.dtype, device=system.device).expand_as(system)
        lines = torch.linalg.solve_triangular(factor, torch.cat([chosen, eye], 2), upper=False) * free.unsqueeze(2)
        half = torch.bmm(lines[:, :, self.n :], right.unsqueeze(2)).transpose(1, 2)  # [b, 1, width]
        start = torch.cat([self.correlation[some], torch.zeros_like(right)], 1)

        self.rows[some, :width] = rows
        self.count[some] = free.sum(1)
        self.lines[some] = 0.0
        self.lines[some, :width, : self.n + width] = lines
        self.now[some] = 0.0
        self.now[some, : self.n + width] = start - torch.bmm(half, lines).squeeze(1)
        self.objective[some] = self.energy[some] - half.square().sum((1, 2))
        bar = self.bar[some].scatter(1, rows, 0.0)  # rows that left may return
        self.bar[some] = bar.scatter(1, torch.where(free, rows, self.n), BARRED)
        self.paused[some] = False

    def staying(self, some: Tensor, system: Tensor, right: Tensor, used: Tensor, weights: Tensor) -> Tensor:
        """Which of the ``used`` slots stay: those with a weight in the solution with signs. ``weights`` are those
        without."""
        width, last = used.shape[1], (self.count[some] - 1).reshape(-1, 1, 1)
        newest = self.lines[some, :width, self.n : self.n + width].gather(1, last.expand(-1, 1, width)).squeeze(1)
        before = torch.where(used, weights - (newest * right).sum(1, keepdim=True) * newest, 0.0)
        before = before.scatter(1, last.squeeze(2), 0.0).clamp_min(0)  # the weights before the newest row came
        free = nonnegative_solution(system, right, used, before, weights, self.floor[some])
        self.ended[some] = ~free.gather(1, last.squeeze(2)).squeeze(1)
        return free

    def _system(self, gram: Tensor, rows: Tensor, used: Tensor) -> Tensor:
        """``G_SS + ridge I`` for the slots in use: [b, k, k]."""
        k = rows.shape[1]
        lines = gram.gather(1, rows.unsqueeze(2).expand(-1, -1, gram.shape[2]))
        system = lines.gather(2, rows.unsqueeze(1).expand(-1, k, -1))
        return only(system + self.ridge * torch.eye(k, dtype=system.dtype, device=system.device), used)

    def final_weights(self) -> Tensor:
        """The weights at their rows, solved once more without the rounding of many small changes: [b, n]."""
        rows = self.rows[:, : self.slots]
        used = torch.arange(self.slots, device=rows.device) < self.count.unsqueeze(1)
        system = self._system(self.gram, rows, used)
        right = torch.where(used, self.correlation.gather(1, rows), 0.0).unsqueeze(2)
        weights = torch.cholesky_solve(right, torch.linalg.cholesky(system)).squeeze(2)
        positive = torch.where(used, weights, 0.0).clamp_min(0)  # without a ridge, rounding may go below zero
        return torch.zeros_like(self.correlation).scatter_add(1, rows, positive)
