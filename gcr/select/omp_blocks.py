"""The matching pursuit of ``omp.py`` for one large problem, for any target, with kept rows and costs.

Correlations of all rows are computed once for a block of rounds, not for each. With S the support, w its weights and
``P = (G_SS + ridge I)^-1``, a block does this:

1. Guess: the next rows are among the candidates C of largest correlation now. Given S, matching among them is
   matching with ``H = G_CC + ridge I - G_CS A``, where ``A = P G_SC``. A few rounds of it cost O(|C|) each. They give
   rows, their weights v after each round, and those of S, ``w - A v``.
2. Check: one product gives the correlations of all n rows after each of these rounds. Rounds count up to the first
   whose row was not the best of all rows, or after which a weight is not positive.
3. In that last case rows leave on the way to the solution with signs (``nnls.py``). Taking out slot s:
   ``P - p p^T / p_s`` with p its column.

The first row of a block is the best of all, so each block adds one. With K rows of n, f features and c residuals, the
checks cost O(n K min(K, f c)), products with new rows O(n K (f + c)), P O(K^3 + |C| K^3 / 16): matrix products all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcr.select.batched_problems import GAIN, SINGULAR
from gcr.select.nnls import nonnegative_solution

LINE_BYTES = 2**30  # of inner products of all rows with the support that are held
ROUNDS = 16  # that are guessed at once
CANDIDATES = 256
BLOCK = 2**22  # numbers in a block of rows
FRESH = 16  # blocks after which P is computed anew


@dataclass
class Matching:
    """One problem: rows ``left (x) right``, their products with the target, and who may enter."""

    left: Tensor  # [n, f] float64
    right: Tensor  # [n, c] float64
    correlation: Tensor  # [n]: <g_j, target>
    energy: float  # |target|^2
    budget: float  # rows, or what they may cost together
    ridge: float
    tolerance: float
    valid: Tensor  # [n] bool: may enter
    keep: Tensor  # [m] int64: rows whose place is taken from the beginning
    cost: Tensor | None = None  # [n] > 0
    rows: Tensor = field(init=False)  # [k] int64: the support, and rows that left since P was fresh
    alive: Tensor = field(init=False)  # [k] bool: did not leave
    weights: Tensor = field(init=False)  # [k], 0 for those that left
    inverse: Tensor = field(init=False)  # [k, k]: P, with zeros for those that left
    now: Tensor = field(init=False)  # [n]: correlations with what is unmatched
    lines: Tensor | None = None  # [most, n]: <g_s, g_j> of the slots, if they are held

    def __post_init__(self) -> None:
        n, width = len(self.left), self.left.shape[1] * self.right.shape[1]
        most = int(self.budget) if self.cost is None else min(n, int(self.budget / float(self.cost.min())))
        most += 2 * FRESH * ROUNDS  # more than can leave between two fresh starts
        if most <= width / 2 and 8 * n * most <= LINE_BYTES:
            self.lines = self.left.new_empty(most, n)
        self.norms = self.left.square().sum(1) * self.right.square().sum(1) + self.ridge
        self.floor = GAIN * self.correlation.abs().amax()
        self.closed = ~self.valid
        self.rows, self.now, self.age = self.keep, self.correlation, 0
        self.alive = torch.ones_like(self.rows, dtype=torch.bool)
        if self.lines is not None:
            self.lines[: len(self.rows)] = self.products(self.rows)
        self.refresh()
        if len(self.rows):
            self.make_nonnegative(torch.zeros_like(self.weights))

    def products(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Inner products of some rows with others, or with all."""
        left, right = (self.left, self.right) if second is None else (self.left[second], self.right[second])
        return (self.left[first] @ left.T) * (self.right[first] @ right.T)

    def matched(self, rows: Tensor, weights: Tensor) -> Tensor:
        """``<g_j, sum_s weights_bs g_s>`` of all rows j: [b, k] -> [b, n]. Lines of ``rows`` come first if held."""
        if self.lines is not None:
            return weights @ self.lines[: len(rows)]
        b, c = len(weights), self.right.shape[1]
        scaled = (weights.unsqueeze(2) * self.right[rows]).transpose(1, 2).reshape(b * c, -1)  # [b c, k]
        total, step = (scaled @ self.left[rows]).T, max(BLOCK // (b * c), 1)  # [f, b c]
        parts = zip(self.left.split(step), self.right.split(step), strict=True)
        return torch.cat([torch.einsum("nbc,nc->bn", (x @ total).view(-1, b, c), d) for x, d in parts], 1)

    def against_support(self, some: Tensor) -> Tensor:
        """Inner products of the support with some rows: [k, m]."""
        return self.products(self.rows, some) if self.lines is None else self.lines[: len(self.rows), some]

    def refresh(self) -> None:
        """Forget the rows that left; P, weights and correlations anew, without signs."""
        if not bool(self.alive.all()):
            if self.lines is not None:
                first = int((~self.alive).long().argmax())  # lines before it stay where they are
                self.lines[first : int(self.alive.sum())] = self.lines[first : len(self.rows)][self.alive[first:]]
            self.rows = self.rows[self.alive]
        system = self.system()
        factor, failed = torch.linalg.cholesky_ex(system)
        if bool(failed):  # kept rows that lie in the span of others, and no ridge
            system.diagonal().add_(1e-10 * float(self.norms[self.rows].amax()))
            factor = torch.linalg.cholesky(system)
        self.inverse = torch.cholesky_inverse(factor)
        right = self.correlation[self.rows].unsqueeze(1)
        self.weights = torch.cholesky_solve(right, factor).squeeze(1)
        self.alive, self.age = torch.ones_like(self.rows, dtype=torch.bool), 0
        self.update_now()

    def system(self) -> Tensor:
        """``G_SS + ridge I`` of all slots."""
        system = self.against_support(self.rows)
        system.diagonal().add_(self.ridge)
        return system

    def update_now(self) -> None:
        if len(self.rows):
            self.now = self.correlation - self.matched(self.rows, self.weights.unsqueeze(0))[0]

    def make_nonnegative(self, start: Tensor) -> None:
        """From weights ``start`` >= 0 to the solution with signs; rows without weight leave."""
        current, left = start, list[int]()
        while bool((falling := self.alive & (self.weights <= 0)).any()):
            reach = torch.where(falling, current / (current - self.weights).clamp_min(1e-300), torch.inf)
            step = reach.amin()
            current = torch.where(self.alive, current + step.clamp_max(1) * (self.weights - current), 0.0)
            for slot in torch.nonzero(falling & (reach <= step)).flatten().tolist():
                self.take_out(slot)
                left.append(slot)
        self.update_now()
        if left and bool((self.now[self.rows[left]] > self.floor).any()):  # rarely one must return
            used = self.alive.index_fill(0, torch.tensor(left, device=self.rows.device), True)
            self.alive = nonnegative_solution(
                self.system().unsqueeze(0),
                self.correlation[self.rows].unsqueeze(0),
                used.unsqueeze(0),
                current.unsqueeze(0),
                self.weights.unsqueeze(0),
                self.floor.reshape(1),
            )[0]
            self.refresh()

    def take_out(self, slot: int) -> None:
        column = self.inverse[slot].clone()
        self.weights -= column * (self.weights[slot] / column[slot])
        self.inverse.addr_(column, column / column[slot], alpha=-1)
        self.inverse[slot], self.inverse[:, slot], self.weights[slot], self.alive[slot] = 0.0, 0.0, 0.0, False

    def room(self) -> float:
        """How many rows may still enter, or what they may cost."""
        taken = torch.cat([self.rows[self.alive], self.keep]).unique()
        return self.budget - (len(taken) if self.cost is None else float(self.cost[taken].sum()))

    def run(self) -> Tensor:
        """The weights at the end: [n], zero off the support."""
        while self.block():
            self.age += 1
            if self.age >= FRESH or len(self.rows) <= CANDIDATES:  # while it costs nothing
                self.refresh()
        self.refresh()  # without the rounding of many blocks
        if len(self.keep):  # kept rows without a weight have a last chance
            absent = self.keep[~torch.isin(self.keep, self.rows)]
            before = torch.cat([self.weights, self.weights.new_zeros(len(absent))])
            if self.lines is not None:
                self.lines[len(self.rows) : len(before)] = self.products(absent)
            self.rows, self.alive = torch.cat([self.rows, absent]), torch.ones_like(before, dtype=torch.bool)
            self.refresh()
            self.make_nonnegative(before)
        return torch.zeros_like(self.correlation).index_add(0, self.rows, self.weights.clamp_min(0))

    def score(self, correlation: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """What decides who comes next: the correlation, or that per cost."""
        return correlation if self.cost is None else correlation / self.cost[rows]

    def block(self) -> bool:
        """Guess a few rounds and keep those that were right. Returns whether to go on."""
        room = self.room()
        objective = self.energy - float((self.weights * self.correlation[self.rows]).sum())
        open_ = ~self.closed.index_fill(0, self.rows[self.alive], True) & (self.now > self.floor)
        open_ &= room >= 1 if self.cost is None else self.cost <= room
        if objective <= self.tolerance or not bool(open_.any()):
            return False
        score = self.score(self.now).masked_fill(~open_, -torch.inf)
        candidates = score.topk(min(CANDIDATES, len(score))).indices
        candidates = candidates[open_[candidates]].sort().values  # ascending, so that the lowest row wins a tie
        rounds = min(ROUNDS, len(candidates), int(room) if self.cost is None else ROUNDS)
        return self.accept(Guess.make(self, candidates, rounds, room), room, objective)

    def accept(self, guess: Guess, room: float, objective: float) -> bool:
        """The rounds of the guess that were right, up to one that makes a weight negative."""
        k, b = len(self.rows), len(guess.rows)
        if self.lines is not None:
            self.lines[k : k + b] = self.products(guess.rows)
        changes = torch.cat([guess.support_change, guess.weights], 1)  # [b, k + b]: after each round
        after = self.now - self.matched(torch.cat([self.rows, guess.rows]), changes)  # [b, n]
        length = self.right_rounds(guess, after, room, objective)
        singular = torch.nonzero(guess.singular[:length]).flatten()
        if len(singular):  # a row in the span of the support helps nobody
            length = int(singular[0])
            self.closed[guess.rows[length]] = True
        if length == 0:
            return True
        support = self.weights + guess.support_change  # [b, k]
        own = torch.where(torch.ones_like(guess.weights).tril().bool(), guess.weights, 1.0)
        lowest = torch.cat([support.masked_fill(~self.alive, 1.0), own], 1).amin(1)
        negative = torch.nonzero(lowest[:length] <= 0).flatten()
        length = int(negative[0]) + 1 if len(negative) else length
        before = torch.cat([self.weights, self.weights.new_zeros(length)])
        if length > 1:
            before = torch.cat([support[length - 2], guess.weights[length - 2, :length]])
        self.weights = torch.cat([support[length - 1], guess.weights[length - 1, :length]])
        self.rows, self.now = torch.cat([self.rows, guess.rows[:length]]), after[length - 1]
        self.alive = torch.cat([self.alive, torch.ones_like(guess.rows[:length], dtype=torch.bool)])
        self.inverse = self.grown_inverse(guess, length)
        if not len(negative):
            return True
        newest = self.rows[-1]
        self.make_nonnegative(before.clamp_min(0))
        return bool((self.rows[self.alive] == newest).any())  # one that leaves at once gains nothing but rounding

    def grown_inverse(self, guess: Guess, length: int) -> Tensor:
        """P with the first ``length`` rows of the guess."""
        k, own = len(self.inverse), guess.inverse[:length, :length]
        reach = guess.reach[:, :length] @ own.T  # [k, length]
        grown = self.inverse.new_empty(k + length, k + length)
        torch.addmm(self.inverse, reach, reach.T, out=grown[:k, :k])
        grown[k:, :k] = -(reach @ own).T
        grown[:k, k:] = grown[k:, :k].T
        grown[k:, k:] = own.T @ own
        return grown

    def right_rounds(self, guess: Guess, after: Tensor, room: float, objective: float) -> int:
        """How many rounds chose the best of all rows, and one that helps. The first always does."""
        score = self.score(after[:-1]).masked_fill(self.closed.index_fill(0, self.rows[self.alive], True), -torch.inf)
        for place, chosen in enumerate(guess.rows.tolist()[:-1]):
            score[place:, chosen] = -torch.inf
            if self.cost is not None:
                room -= float(self.cost[chosen])
                score[place, self.cost > room] = -torch.inf
        best, row = score.max(1)
        right = (row == guess.rows[1:]) & (best > -torch.inf)
        right &= (guess.values[1:] > self.floor) & (objective - guess.halves.square().cumsum(0)[:-1] > self.tolerance)
        return 1 + int(right.long().cumprod(0).sum())


@dataclass(frozen=True)
class Guess:
    """Rounds among the candidates only."""

    rows: Tensor  # [b] int64
    values: Tensor  # [b]: correlation of each when it came
    halves: Tensor  # [b]: by the square of which the objective fell
    singular: Tensor  # [b] bool: lies in the span of the support
    inverse: Tensor  # [b, b] lower: that of the factor of H for these rows
    reach: Tensor  # [k, b]: A of these rows
    weights: Tensor  # [b, b]: of the rows after each round
    support_change: Tensor  # [b, k]: of the support's weights after each round

    @classmethod
    def make(cls, problem: Matching, candidates: Tensor, rounds: int, room: float) -> Guess:
        cross = problem.against_support(candidates)
        reach = problem.inverse @ cross
        system = problem.products(candidates, candidates) - cross.T @ reach
        system.diagonal().add_(problem.ridge)
        now, norms = problem.now[candidates], problem.norms[candidates]
        cost = None if problem.cost is None else problem.cost[candidates]
        lines, bar = system.new_zeros(rounds, len(candidates)), torch.zeros_like(now)
        factor = torch.eye(rounds, dtype=system.dtype, device=system.device)
        seen: list[tuple[Tensor, ...]] = []  # place, correlation, half, whether singular
        for b in range(rounds):
            score = problem.score(now, candidates) + bar
            if cost is not None:
                score = score.masked_fill(cost > room, -torch.inf)
            best = score.argmax(0, keepdim=True)
            line, value = lines[:b].index_select(1, best).squeeze(1), now.index_select(0, best)
            rest = system.diagonal().index_select(0, best) - line.square().sum()
            inside = rest <= SINGULAR * norms.index_select(0, best)
            pivot = torch.where(inside, torch.inf, rest).sqrt()
            lines[b] = (system.index_select(0, best).squeeze(0) - line @ lines[:b]) / pivot
            factor[b, :b], factor[b, b] = line, torch.where(inside, 1.0, pivot).squeeze(0)
            now = torch.addcmul(now, value / pivot, lines[b], value=-1)
            bar.index_fill_(0, best, -torch.inf)
            seen.append((best, value, value / pivot, inside))
            if cost is not None:
                room -= float(cost[best])
        places, values, halves, singular = (torch.cat(column) for column in zip(*seen, strict=True))
        inverse = torch.linalg.solve_triangular(factor, torch.eye(rounds).to(factor), upper=False)
        weights = (halves.unsqueeze(1) * inverse).cumsum(0)
        change = -(weights @ reach[:, places].T)
        return cls(candidates[places], values, halves, singular, inverse, reach[:, places], weights, change)
