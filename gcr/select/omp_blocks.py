"""The matching pursuit of ``omp.py`` for one large problem, for any target, with kept rows and costs.

Correlations of all rows are computed once for a block of rounds, not for each. With S the support, w its weights and
``P = (G_SS + ridge I)^-1``, a block does this:

1. Guess: the next rows are among the candidates C of largest correlation now. Given S, matching among them is
   matching with ``H = G_CC + ridge I - G_CS A``, where ``A = P G_SC``. A few rounds of it cost O(|C|) each. They give
   rows, their weights v after each round, and those of S, ``w - A v``.
2. Where a weight is not positive then, rows leave on the way to the solution with signs (``nnls.py``), and the guess
   goes on. Taking out slot s: ``P - p p^T / p_s`` with p its column.
3. Check: one product gives the correlations of all n rows after each of these rounds. Rounds count up to the first
   whose row was not the best of all rows.

The first row of a block is the best of all, so each block adds one. With K rows of n, f features and c residuals, the
checks cost O(n K min(K, f c)), products with new rows O(n K (f + c)), P O(|C| K^3 / 16): matrix products all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcr.select.batched_problems import GAIN, SINGULAR
from gcr.select.nnls import nonnegative_solution

LINE_BYTES = 2**30  # of inner products of all rows with the support that are held
ROUNDS = 20  # that are guessed at once
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
        most += ROUNDS if most <= CANDIDATES else 2 * FRESH * ROUNDS  # and those that left between two fresh starts
        if most <= width / 2 and 8 * n * most <= LINE_BYTES:
            self.lines = self.left.new_empty(most, n)
        lengths = torch.linalg.vecdot(self.left, self.left)
        self.norms = lengths * torch.linalg.vecdot(self.right, self.right) + self.ridge
        self.floor = GAIN * self.correlation.abs().amax()
        self.closed, self.now = ~self.valid, self.correlation
        self.start(self.keep, self.keep, torch.zeros_like(self.correlation[self.keep]))

    def start(self, rows: Tensor, new: Tensor, weights: Tensor) -> None:
        """The support is ``rows``, of which the last are ``new``; from ``weights`` >= 0 to the solution with signs."""
        if self.lines is not None:
            self.lines[len(rows) - len(new) : len(rows)] = self.products(new)
        self.support = Support(rows, torch.ones_like(rows, dtype=torch.bool), weights, weights.new_zeros(0, 0))
        self.refresh()
        left = [slot for slot, _, _ in self.support.to_signs(weights)]
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
        return self.accept(Guess(self, candidates, rounds, room), room)

    def accept(self, guess: Guess, room: float) -> bool:
        """The rounds of the guess that were right."""
        k, b = len(self.support.rows), len(guess.rows)
        if b == 0:  # a row in the span of the support helps nobody
            self.closed[guess.singular_row] = True
            return True
        if self.lines is not None:
            self.lines[k : k + b] = self.products(guess.rows)
        start = torch.cat([self.support.weights, self.now.new_zeros(b)])
        after = self.now - self.matched(guess.support.rows, guess.weights - start)  # [b, n]
        right = self.right_rounds(guess, after, room)
        self.now = after[right - 1]
        self.support = guess.support_after(right)
        if right < b:
            return True
        self.let_return(guess.left, guess.last)
        return not guess.ended

    def right_rounds(self, guess: Guess, after: Tensor, room: float) -> int:
        """How many rounds chose the best of all rows, and one that helps. The first always does."""
        barred, b = self.closed.index_fill(0, self.support.rows[self.support.alive], True), len(after)
        scores = self.score(after[:-1])
        open_ = scores.masked_fill(barred, -torch.inf)
        for place, chosen in enumerate(guess.rows[:-1].tolist()):
            open_[place:, chosen] = -torch.inf
            for row in guess.leaving.get(place, []):
                open_[place:, row] = scores[place:, row].masked_fill(self.closed[row], -torch.inf)
            if self.cost is not None:
                room -= float(self.cost[chosen])
                open_[place, self.cost > room] = -torch.inf
        best, row_of_best = open_.max(1)
        objective = self.energy - guess.weights[:-1] @ self.correlation[guess.support.rows]
        right = (row_of_best == guess.rows[1:b]) & (best > -torch.inf) & (guess.values[1:b] > self.floor)
        right &= objective > self.tolerance
        return 1 + int(right.long().cumprod(0).sum())


@dataclass
class Support:
    """The rows in use, and those that left since P was fresh."""

    rows: Tensor  # [k] int64
    alive: Tensor  # [k] bool: did not leave
    weights: Tensor  # [k], 0 for those that left
    inverse: Tensor  # [k, k]: P, with zeros for those that left

    def grown(self, guess: Stretch, length: int) -> Support:
        """With the first ``length`` rows of a stretch."""
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

    def to_signs(self, current: Tensor) -> list[tuple[int, Tensor, float]]:
        """Walk from weights ``current`` >= 0 to those without signs; slots that reach 0 leave.

        Returns for each the slot, its column of P, and its weight as a multiple of the column's own entry.
        """
        left: list[tuple[int, Tensor, float]] = []
        while bool((falling := self.alive & (self.weights <= 0)).any()):
            reach = torch.where(falling, current / (current - self.weights).clamp_min(1e-300), torch.inf)
            step = reach.amin()
            current = torch.where(self.alive, current + step.clamp_max(1) * (self.weights - current), 0.0)
            for slot in torch.nonzero(falling & (reach <= step)).flatten().tolist():
                left.append((slot, *self.take_out(slot)))
        return left

    def take_out(self, slot: int) -> tuple[Tensor, float]:
        column = self.inverse[slot].clone()
        multiple = float(self.weights[slot] / column[slot])
        self.weights -= column * multiple
        self.inverse.addr_(column, column / column[slot], alpha=-1)
        self.inverse[slot], self.inverse[:, slot], self.weights[slot], self.alive[slot] = 0.0, 0.0, 0.0, False
        return column, multiple


class Guess:
    """Rounds among the candidates only, in stretches that end where a row leaves.

    ``reach`` is A and ``system`` H. With rows P in, of ``H_PP = F F^T`` and ``Z = F^-1 H_PC``: ``H - Z^T Z`` and
    ``[A - A_P F^-T Z; F^-T Z]``. With slot s out, of column p of P: ``H + A_s A_s^T / p_s`` and ``A - p A_s / p_s``.
    """

    def __init__(self, problem: Matching, candidates: Tensor, rounds: int, room: float) -> None:
        self.support = problem.support
        self.stretches: list[tuple[Support, Stretch, int, Support]] = []  # before, rounds, how many, after
        self.leaving: dict[int, list[int]] = {}  # rows that leave in a round
        self.left: list[int] = []  # slots that left in the last round
        self.last, self.ended, self.singular_row, done = self.support.weights, False, 0, 0
        cross = problem.products(self.support.rows, candidates)
        self.reach = self.support.inverse @ cross
        self.system = problem.products(candidates, candidates) - cross.T @ self.reach
        self.system.diagonal().add_(problem.ridge)
        self.now, self.bar = problem.now[candidates], torch.zeros_like(problem.now[candidates])
        weights: list[Tensor] = []
        while done < rounds and self.going(problem):
            stretch = Stretch.make(problem, candidates, self, rounds - done, room)
            length, negative = stretch.usable(self.support)
            if length == 0:
                self.singular_row = int(stretch.rows[0])
                break
            weights += self.take(stretch, length, negative, done + length - 1)
            done += length
            if negative and problem.cost is not None:
                break
        self.rows = torch.cat([problem.keep[:0], *(s.rows[:length] for _, s, length, _ in self.stretches)])
        self.values = torch.cat([self.now[:0], *(s.values[:length] for _, s, length, _ in self.stretches)])
        size = len(self.support.rows)
        self.weights = torch.stack([torch.nn.functional.pad(w, (0, size - len(w))) for w in weights] or [self.now[:0]])

    def going(self, problem: Matching) -> bool:
        """Whether what left in the last round is away for good, and was not what came."""
        if not self.left:
            return True
        rows, support = self.support.rows[self.left], self.support
        now = problem.correlation[rows] - problem.products(rows, support.rows) @ support.weights
        return not self.ended and not bool((now > problem.floor).any())

    def take(self, stretch: Stretch, length: int, negative: bool, place: int) -> list[Tensor]:
        """The first ``length`` rounds, the last of them with signs. Returns the weights after each round."""
        before = self.support
        weights = [
            torch.cat([before.weights + change, own[:length]])
            for change, own in zip(stretch.support_change[:length], stretch.weights[:length], strict=True)
        ]
        self.last = weights[-2] if length > 1 else torch.cat([before.weights, before.weights.new_zeros(1)])
        self.last = self.last.clamp_min(0)
        self.support = before.grown(stretch, length)
        left = self.support.to_signs(self.last) if negative else []
        weights[-1] = self.support.weights
        self.left = [slot for slot, _, _ in left]
        self.leaving[place] = self.support.rows[self.left].tolist() if left else []
        self.ended = bool(left) and not bool(self.support.alive[-1])
        self.stretches.append((before, stretch, length, self.support))
        places, lines = stretch.places[:length], stretch.lines[:length]
        into = stretch.inverse[:length, :length].T @ lines
        self.reach = torch.cat([self.reach - self.reach[:, places] @ into, into])
        self.system = self.system - lines.T @ lines
        self.now = self.now - stretch.halves[:length] @ lines
        self.bar[places] = -torch.inf
        for slot, column, multiple in left:
            line = self.reach[slot].clone()
            self.reach.addr_(column, line / column[slot], alpha=-1)
            self.reach[slot] = 0.0
            self.system.addr_(line, line / column[slot])
            self.now = self.now + line * multiple
        return weights

    def support_after(self, rounds: int) -> Support:
        """The support after so many rounds."""
        for before, stretch, length, after in self.stretches:
            if rounds < length:
                return before.grown(stretch, rounds)
            rounds -= length
            if rounds == 0:
                return after
        raise AssertionError("fewer rounds were guessed")


@dataclass(frozen=True)
class Stretch:
    """Rounds in which rows only enter."""

    places: Tensor  # [b] int64: of the rows among the candidates
    rows: Tensor  # [b] int64
    values: Tensor  # [b]: correlation of each when it came
    halves: Tensor  # [b]: by the square of which the objective fell
    singular: Tensor  # [b] bool: lies in the span of the support
    lines: Tensor  # [b, m]: Z
    inverse: Tensor  # [b, b] lower: F^-1
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
    def make(cls, problem: Matching, candidates: Tensor, guess: Guess, rounds: int, room: float) -> Stretch:
        system, now, bar, norms = guess.system, guess.now, guess.bar.clone(), problem.norms[candidates]
        cost = None if problem.cost is None else problem.cost[candidates]
        lines = system.new_zeros(rounds, len(candidates))
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
        weights, reach = (halves.unsqueeze(1) * inverse).cumsum(0), guess.reach[:, places]
        change = -(weights @ reach.T)
        return cls(places, candidates[places], values, halves, singular, lines, inverse, reach, weights, change)
