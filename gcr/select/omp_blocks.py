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
    support: Support = field(init=False)
    now: Tensor = field(init=False)  # [n]: correlations with what is unmatched
    lines: Tensor | None = None  # [most, n]: <g_s, g_j> of the slots, if they are held
    age: int = 0  # blocks since P was fresh

    def __post_init__(self) -> None:
        n, width = len(self.left), self.left.shape[1] * self.right.shape[1]
        most = int(self.budget) if self.cost is None else min(n, int(self.budget / float(self.cost.min())))
        most += 2 * FRESH * ROUNDS  # more than can leave between two fresh starts
        if most <= width / 2 and 8 * n * most <= LINE_BYTES:
            self.lines = self.left.new_empty(most, n)
        self.norms = self.left.square().sum(1) * self.right.square().sum(1) + self.ridge
        self.floor = GAIN * self.correlation.abs().amax()
        self.closed, self.now = ~self.valid, self.correlation
        self.start(self.keep, self.keep, torch.zeros_like(self.correlation[self.keep]))

    def start(self, rows: Tensor, new: Tensor, weights: Tensor) -> None:
        """The support is ``rows``, of which the last are ``new``; from ``weights`` >= 0 to the solution with signs."""
        if self.lines is not None:
            self.lines[len(rows) - len(new) : len(rows)] = self.products(new)
        self.support = Support(rows, torch.ones_like(rows, dtype=torch.bool), weights, weights.new_zeros(0, 0))
        self.refresh()
        left = self.support.to_signs(weights)
        self.update_now()
        self.let_return(left, weights)

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

    def system(self) -> Tensor:
        """``G_SS + ridge I`` of all slots."""
        system = self.products(self.support.rows, self.support.rows)
        system.diagonal().add_(self.ridge)
        return system

    def refresh(self) -> None:
        """Forget the rows that left; P, weights and correlations anew, without signs."""
        rows, alive = self.support.rows, self.support.alive
        if not bool(alive.all()):
            if self.lines is not None:
                first = int((~alive).long().argmax())  # lines before it stay where they are
                self.lines[first : int(alive.sum())] = self.lines[first : len(rows)][alive[first:]]
            self.support.rows = rows = rows[alive]
        system = self.system()
        factor, failed = torch.linalg.cholesky_ex(system)
        if bool(failed):  # kept rows that lie in the span of others, and no ridge
            system.diagonal().add_(1e-10 * float(self.norms[rows].amax()))
            factor = torch.linalg.cholesky(system)
        weights = torch.cholesky_solve(self.correlation[rows].unsqueeze(1), factor).squeeze(1)
        inverse = torch.cholesky_inverse(factor)
        self.support, self.age = Support(rows, torch.ones_like(rows, dtype=torch.bool), weights, inverse), 0
        self.update_now()

    def update_now(self) -> None:
        if len(self.support.rows):
            self.now = self.correlation - self.matched(self.support.rows, self.support.weights.unsqueeze(0))[0]

    def let_return(self, left: list[int], before: Tensor) -> None:
        """Where a row that has just left would help after all, the full search among the slots."""
        support = self.support
        if not left or not bool((self.now[support.rows[left]] > self.floor).any()):
            return
        used = support.alive.index_fill(0, torch.tensor(left, device=support.rows.device), True)
        right, start = self.correlation[support.rows].unsqueeze(0), torch.where(used, before, 0.0).unsqueeze(0)
        floor, weights = self.floor.reshape(1), support.weights.unsqueeze(0)
        support.alive = nonnegative_solution(self.system()[None], right, used[None], start, weights, floor)[0]
        self.refresh()

    def room(self) -> float:
        """How many rows may still enter, or what they may cost."""
        taken = torch.cat([self.support.rows[self.support.alive], self.keep]).unique()
        return self.budget - (len(taken) if self.cost is None else float(self.cost[taken].sum()))

    def run(self) -> Tensor:
        """The weights at the end: [n], zero off the support."""
        while self.block():
            self.age += 1
            if self.age >= FRESH or len(self.support.rows) <= CANDIDATES:  # while it costs nothing
                self.refresh()
        self.refresh()  # without the rounding of many blocks
        rows = self.support.rows
        absent = self.keep[~torch.isin(self.keep, rows)]
        if len(absent):  # they have a last chance
            weights = torch.cat([self.support.weights.clamp_min(0), self.now.new_zeros(len(absent))])
            self.start(torch.cat([rows, absent]), absent, weights)
        return torch.zeros_like(self.now).index_add(0, self.support.rows, self.support.weights.clamp_min(0))

    def score(self, correlation: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """What decides who comes next: the correlation, or that per cost."""
        return correlation if self.cost is None else correlation / self.cost[rows]

    def block(self) -> bool:
        """Guess a few rounds and keep those that were right. Returns whether to go on."""
        room = self.room()
        objective = self.energy - float((self.support.weights * self.correlation[self.support.rows]).sum())
        open_ = ~self.closed.index_fill(0, self.support.rows[self.support.alive], True) & (self.now > self.floor)
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
        k, before = len(self.support.rows), self.support.weights
        length, negative = guess.usable(self.support)
        if length == 0:  # a row in the span of the support helps nobody
            self.closed[guess.rows[0]] = True
            return True
        support = self.support.grown(guess, length)
        last = torch.cat([before, before.new_zeros(length)])  # the weights before the last round
        if length > 1:
            last = last + torch.cat([guess.support_change[length - 2], guess.weights[length - 2, :length]])
        left = support.to_signs(last.clamp_min(0)) if negative else []
        if self.lines is not None:
            self.lines[k : k + length] = self.products(guess.rows[:length])
        changes = torch.cat([guess.support_change, guess.weights[:, :length]], 1)[:length]  # after each round
        changes[-1] = support.weights - torch.cat([before, before.new_zeros(length)])
        after = self.now - self.matched(support.rows, changes)  # [length, n]
        right = self.right_rounds(guess, after, room, objective)
        self.now = after[right - 1]
        if right < length:
            self.support = self.support.grown(guess, right)
            return True
        self.support, newest = support, support.rows[-1]
        self.let_return(left, last.clamp_min(0))
        here = self.support.rows[self.support.alive]
        return not negative or bool((here == newest).any())  # one that leaves at once gains nothing but rounding

    def right_rounds(self, guess: Guess, after: Tensor, room: float, objective: float) -> int:
        """How many rounds chose the best of all rows, and one that helps. The first always does."""
        barred, b = self.closed.index_fill(0, self.support.rows[self.support.alive], True), len(after)
        score = self.score(after[:-1]).masked_fill(barred, -torch.inf)
        for place, chosen in enumerate(guess.rows[: b - 1].tolist()):
            score[place:, chosen] = -torch.inf
            if self.cost is not None:
                room -= float(self.cost[chosen])
                score[place, self.cost > room] = -torch.inf
        best, row = score.max(1)
        left = objective - guess.halves.square().cumsum(0)[: b - 1]
        right = (row == guess.rows[1:b]) & (best > -torch.inf) & (guess.values[1:b] > self.floor)
        right &= left > self.tolerance
        return 1 + int(right.long().cumprod(0).sum())


@dataclass
class Support:
    """The rows in use, and those that left since P was fresh."""

    rows: Tensor  # [k] int64
    alive: Tensor  # [k] bool: did not leave
    weights: Tensor  # [k], 0 for those that left
    inverse: Tensor  # [k, k]: P, with zeros for those that left

    def grown(self, guess: Guess, length: int) -> Support:
        """With the first ``length`` rows of the guess."""
        k, own = len(self.rows), guess.inverse[:length, :length]
        reach = guess.reach[:, :length] @ own.T  # [k, length]
        inverse = self.inverse.new_empty(k + length, k + length)
        torch.addmm(self.inverse, reach, reach.T, out=inverse[:k, :k])
        inverse[k:, :k] = -(reach @ own).T
        inverse[:k, k:] = inverse[k:, :k].T
        inverse[k:, k:] = own.T @ own
        rows = guess.rows[:length]
        weights = [self.weights + guess.support_change[length - 1], guess.weights[length - 1, :length]]
        alive = torch.cat([self.alive, torch.ones_like(rows, dtype=torch.bool)])
        return Support(torch.cat([self.rows, rows]), alive, torch.cat(weights), inverse)

    def to_signs(self, current: Tensor) -> list[int]:
        """Walk from weights ``current`` >= 0 to those without signs; slots that reach 0 leave and are returned."""
        left = list[int]()
        while bool((falling := self.alive & (self.weights <= 0)).any()):
            reach = torch.where(falling, current / (current - self.weights).clamp_min(1e-300), torch.inf)
            step = reach.amin()
            current = torch.where(self.alive, current + step.clamp_max(1) * (self.weights - current), 0.0)
            for slot in torch.nonzero(falling & (reach <= step)).flatten().tolist():
                self.take_out(slot)
                left.append(slot)
        return left

    def take_out(self, slot: int) -> None:
        column = self.inverse[slot].clone()
        self.weights -= column * (self.weights[slot] / column[slot])
        self.inverse.addr_(column, column / column[slot], alpha=-1)
        self.inverse[slot], self.inverse[:, slot], self.weights[slot], self.alive[slot] = 0.0, 0.0, 0.0, False


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

    def usable(self, support: Support) -> tuple[int, bool]:
        """How many rounds come before one whose row is singular, or end with one that makes a weight negative."""
        length = len(self.rows) if not bool(self.singular.any()) else int(self.singular.long().argmax())
        own = torch.where(torch.ones_like(self.weights).tril().bool(), self.weights, 1.0)
        others = (support.weights + self.support_change).masked_fill(~support.alive, 1.0)
        negative = torch.nonzero(torch.cat([others, own], 1)[:length].amin(1) <= 0).flatten()
        return (int(negative[0]) + 1, True) if len(negative) else (length, False)

    @classmethod
    def make(cls, problem: Matching, candidates: Tensor, rounds: int, room: float) -> Guess:
        cross = problem.products(problem.support.rows, candidates)
        reach = problem.support.inverse @ cross
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
