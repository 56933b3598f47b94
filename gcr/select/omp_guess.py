"""Rounds of matching pursuit among a few candidates, given a support: what ``omp_blocks.py`` checks and keeps.

P, the inverse of the support's system, is a matrix that stays as it is during a guess, plus a few columns: rows that
enter add ``V V^T``, a row that leaves takes away ``p p^T / p_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gcr.select.batched_problems import GAIN, SINGULAR


@dataclass
class Problem:
    """Rows ``left (x) right``, their products with the target, and who may enter."""

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

    def __post_init__(self) -> None:
        lengths = torch.linalg.vector_norm(self.left, dim=1) * torch.linalg.vector_norm(self.right, dim=1)
        self.ridges = torch.full_like(lengths, self.ridge)  # of each row
        self.lengths, self.norms = lengths, lengths.square() + self.ridges
        self.floor = GAIN * self.correlation.abs().amax()

    def products(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Inner products of some rows with others, or with all."""
        left, right = (self.left, self.right) if second is None else (self.left[second], self.right[second])
        return (self.left[first] @ left.T) * (self.right[first] @ right.T)

    def helps(self, support: Support, left: list[int]) -> bool:
        """Whether one of the slots that have just left would help now. A single one does not: its weight fell to 0."""
        if len(left) < 2:
            return False
        rows = support.rows[left]
        now = self.correlation[rows] - self.products(rows, support.rows) @ support.weights
        return bool((now > self.floor).any())

    def score(self, correlation: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """What decides who comes next: the correlation, or that per cost."""
        return correlation if self.cost is None else correlation / self.cost[rows]


@dataclass
class Support:
    """The rows in use, and those that left since P was fresh."""

    rows: Tensor  # [k] int64
    alive: Tensor  # [k] bool: did not leave
    weights: Tensor  # [k], 0 for those that left
    inverse: Tensor  # [m, m]: the part of P that stays; zero beyond the rows that it knows
    columns: Tensor  # [k, r]: P is ``inverse + columns diag(signs) columns^T``
    signs: Tensor  # [r]

    @classmethod
    def make(cls, rows: Tensor, weights: Tensor, inverse: Tensor) -> Support:
        """With P as it is."""
        nothing = weights.new_zeros(len(rows), 0)
        return cls(rows, torch.ones_like(rows, dtype=torch.bool), weights, inverse, nothing, nothing.new_zeros(0))

    def merged(self) -> Support:
        """The same with P written out, in place."""
        k = len(self.rows)
        inverse = self.inverse[:k, :k]
        inverse.addmm_(self.columns * self.signs, self.columns.T)
        gone = torch.nonzero(~self.alive).flatten()
        inverse[gone], inverse[:, gone] = 0.0, 0.0
        return Support(self.rows, self.alive, self.weights, self.inverse, self.columns[:, :0], self.signs[:0])

    def grown(self, stretch: Stretch, length: int) -> Support:
        """With the first ``length`` rows of a stretch."""
        own, rows = stretch.inverse[:length, :length], stretch.rows[:length]
        new = torch.cat([-stretch.reach[:, :length] @ own.T, own.T])  # [k + length, length]
        columns = torch.cat([torch.nn.functional.pad(self.columns, (0, 0, 0, length)), new], 1)
        signs = torch.nn.functional.pad(self.signs, (0, length), value=1.0)
        weights = [self.weights + stretch.support_change[length - 1], stretch.weights[length - 1, :length]]
        alive = torch.nn.functional.pad(self.alive, (0, length), value=True)
        return Support(torch.cat([self.rows, rows]), alive, torch.cat(weights), self.inverse, columns, signs)

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
        column = self.inverse[slot, : len(self.rows)] + self.columns @ (self.signs * self.columns[slot])
        column.masked_fill_(~self.alive, 0.0)
        multiple = float(self.weights[slot] / column[slot])
        self.weights = self.weights - column * multiple
        own = column[slot : slot + 1]
        self.columns = torch.cat([self.columns, (column / own.abs().sqrt()).unsqueeze(1)], 1)
        self.signs = torch.cat([self.signs, -own.sign()])
        self.alive[slot], self.weights[slot] = False, 0.0
        return column, multiple


class Reached(NamedTuple):
    """Some rows, as the slots see them."""

    rows: Tensor  # [m] int64, ascending
    cross: Tensor  # [k, m]: their products with the slots
    reach: Tensor  # [k, m]: A, P times these


class Guess:
    """Rounds among the candidates only, in stretches that end where a row leaves.

    ``reach`` is A and ``system`` H. With rows P in, of ``H_PP = F F^T`` and ``Z = F^-1 H_PC``: ``H - Z^T Z`` and
    ``[A - A_P F^-T Z; F^-T Z]``. With slot s out, of column p of P: ``H + A_s A_s^T / p_s`` and ``A - p A_s / p_s``.
    """

    def __init__(
        self,
        problem: Problem,
        support: Support,
        reached: Reached,
        now: Tensor,
        rounds: int,
        room: float,
    ) -> None:
        """``now`` are the candidates' correlations."""
        self.support, self.cross, self.reach = support, reached.cross, reached.reach
        self.candidates = candidates = reached.rows
        self.stretches: list[tuple[Support, Tensor, Stretch, int]] = []  # support and reach before, rounds, how many
        self.leaving: dict[int, list[int]] = {}  # rows that leave in a round
        self.left: list[int] = []  # slots that left in the last round
        self.last, self.ended, self.singular_row, done = self.support.weights, False, 0, 0
        self.system = problem.products(candidates, candidates) - self.cross.T @ self.reach
        self.system.diagonal().add_(problem.ridges[self.candidates])
        self.now, self.bar = now, torch.zeros_like(now)
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
        self.rows = torch.cat([problem.keep[:0], *(s.rows[:length] for *_, s, length in self.stretches)])
        self.values = torch.cat([self.now[:0], *(s.values[:length] for *_, s, length in self.stretches)])
        size = len(self.support.rows)
        self.weights = torch.stack([torch.nn.functional.pad(w, (0, size - len(w))) for w in weights] or [self.now[:0]])

    def going(self, problem: Problem) -> bool:
        """Whether what left in the last round is away for good, and was not what came."""
        return not self.ended and not problem.helps(self.support, self.left)

    def take(self, stretch: Stretch, length: int, negative: bool, place: int) -> list[Tensor]:
        """The first ``length`` rounds, the last of them with signs. Returns the weights after each round."""
        before = self.support
        self.stretches.append((before, self.reach, stretch, length))
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
        places, lines = stretch.places[:length], stretch.lines[:length]
        self.reach = stretch.reach_with(self.reach, length)
        self.system = torch.addmm(self.system, lines.T, lines, alpha=-1)
        self.now = self.now - stretch.halves[:length] @ lines
        self.bar[places] = -torch.inf
        for slot, column, multiple in left:
            line = self.reach[slot].clone()
            self.reach.addr_(column, line / column[slot], alpha=-1)
            self.reach[slot] = 0.0
            self.system.addr_(line, line / column[slot])
            self.now = self.now + line * multiple
        return weights

    def after(self, rounds: int) -> tuple[Support, Tensor]:
        """Support and reach after so many rounds."""
        for before, reach, stretch, length in self.stretches:
            if rounds == 0:
                return before, reach
            if rounds < length:
                return before.grown(stretch, rounds), stretch.reach_with(reach, rounds)
            rounds -= length
        return self.support, self.reach


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

    def reach_with(self, reach: Tensor, length: int) -> Tensor:
        """A of the candidates, with the first ``length`` of these rows in the support."""
        into = self.inverse[:length, :length].T @ self.lines[:length]
        return torch.cat([torch.addmm(reach, reach[:, self.places[:length]], into, alpha=-1), into])

    def usable(self, support: Support) -> tuple[int, bool]:
        """How many rounds come before one whose row is singular, or end with one that makes a weight negative."""
        length = len(self.rows) if not bool(self.singular.any()) else int(self.singular.long().argmax())
        own = torch.where(torch.ones_like(self.weights).tril().bool(), self.weights, 1.0)
        others = (support.weights + self.support_change).masked_fill(~support.alive, 1.0)
        negative = torch.nonzero(torch.cat([others, own], 1)[:length].amin(1) <= 0).flatten()
        return (int(negative[0]) + 1, True) if len(negative) else (length, False)

    @classmethod
    def make(cls, problem: Problem, candidates: Tensor, guess: Guess, rounds: int, room: float) -> Stretch:
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
