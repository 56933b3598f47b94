"""The matching pursuit of ``omp.py`` for one large problem, for any target, with kept rows and costs.

Correlations of all rows are computed once for a block of rounds, not for each. With S the support, w its weights and
``P = (G_SS + ridge I)^-1``, a block does this:

1. Guess: the next rows are among the candidates C, those whose correlations lack least of the largest one for their
   lengths. Given S, matching among them is matching with ``H = G_CC + ridge I - G_CS A``, where ``A = P G_SC``. A few
   rounds of it cost O(|C|) each. They give rows, their weights v after each round, and those of S, ``w - A v``.
2. Where a weight is not positive then, rows leave on the way to the solution with signs (``nnls.py``), and the guess
   goes on. Taking out slot s: ``P - p p^T / p_s`` with p its column.
3. Check: one product gives the correlations of all n rows after each of these rounds, on a CPU in float32. With u its
   rounding it is off by at most ``u (m + k / m + f + c + 16) |g_j| sum_s |v_s| |g_s|`` for a change v of k weights, m
   of which are summed at a time. Where a row might be better than the one chosen, its correlation is computed in
   float64, and that alone counts. Rounds count up to the first whose row was not the best of all rows.
4. Correlations of the next block: in float32 too, from the change ``R = sum_s v_s g_s`` in float64, which adds
   ``u (f + c + 16) |g_j| |R|`` to what they may be off. Those of candidates are computed in float64. Where another row
   might still come first, so are all.

The first row of a block is the best of all, so each block adds one. With K rows of n, f features and c residuals, the
checks cost O(n K min(K, f c)), products with new rows O(n K (f + c)), P O(|C| K^3 / 16): matrix products all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcr.select.batched_problems import Tell
from gcr.select.nnls import nonnegative_solution
from gcr.select.omp_guess import Guess, Problem, Reached, Support

LINE_BYTES = 2**30  # of inner products of all rows with the support that are held
ROUNDS = 24  # that are guessed at once
CANDIDATES = 320
BLOCK = 2**22  # numbers in a block of rows
SUMMED = 256  # slots that are summed at a time in the check
FRESH = 24  # blocks after which P is computed anew
APART = 1e-8  # of a row's squared length: its least ridge where rows are kept
CHANCES = 8  # of kept rows that left to come back at the end


def along(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Inner products of some matrices with rows: [b, c, f], [f, n], [c, n] -> [b, n]."""
    (b, c, f), step = total.shape, max(BLOCK // (len(total) * len(right)), 1)
    parts = zip(left.split(step, 1), right.split(step, 1), strict=True)
    return torch.cat([(total.view(-1, f) @ x).view(b, c, -1).mul_(d).sum(1) for x, d in parts], 1)


@dataclass
class Matching(Problem):
    """One problem and how far it is."""

    support: Support = field(init=False)
    now: Tensor = field(init=False)  # [n]: correlations with what is unmatched,
    off: Tensor = field(init=False)  # [n]: by how much these may be off
    own: tuple[Tensor, Tensor] = field(init=False)  # [most, f], [most, c]: the factors of the slots
    lines: Tensor | None = None  # [most, n]: <g_s, g_j> of the slots, if they are held; of ``rough`` rows
    reached: Reached | None = None  # candidates of the last block, unless P was computed anew since
    age: int = 0  # blocks since P was fresh
    tell: Tell | None = None  # hears what of the budget is used

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.keep):  # others never enter the span of those before; kept rows may lie in each other's
            self.ridges = self.ridges.maximum(APART * self.lengths.square()).clamp_min(1e-150)
            self.norms = self.lengths.square() + self.ridges
        (n, f), c = self.left.shape, self.right.shape[1]
        most = int(self.budget) if self.cost is None else min(n, int(self.budget / float(self.cost.min())))
        most += ROUNDS if most <= CANDIDATES else 2 * FRESH * ROUNDS  # and those that left between two fresh starts
        held = most <= f * c and 8 * n * most <= LINE_BYTES
        gains = not held or f * c < ROUNDS * (most / 2 + f + c) / 2  # what all correlations in float64 cost anew
        exact = torch.get_float32_matmul_precision() == "highest"  # else products may be rounded to 8 bits
        self.rough, self.unit = (self.left.T, self.right.T), 1.0  # [f, n], [c, n]: the rows, divided by the unit
        if gains and exact and not self.left.is_cuda:
            left, right = (factor.abs().amax().clamp_min(1e-75) for factor in (self.left, self.right))
            self.rough = (self.left.T / left).float().contiguous(), (self.right.T / right).float().contiguous()
            self.unit = float(left * right)
        if held:
            self.lines = self.rough[0].new_empty(most, n)
        self.own = self.left.new_empty(most, f), self.right.new_empty(most, c)
        self.closed, self.now, self.off = ~self.valid, self.correlation, torch.zeros_like(self.correlation)
        self.start(self.keep, self.keep, torch.zeros_like(self.correlation[self.keep]))

    @property
    def is_rough(self) -> bool:
        return self.rough[0].dtype == torch.float32

    def add_lines(self, rows: Tensor, slot: int) -> None:
        """Factors of those that go to the slots from ``slot`` on, and products of all rows with them."""
        for own, factor in zip(self.own, (self.left, self.right), strict=True):
            own[slot : slot + len(rows)] = factor[rows]
        if self.lines is not None:
            left, right = self.rough
            into = self.lines[slot : slot + len(rows)]
            torch.mul(left[:, rows].T @ left, right[:, rows].T @ right, out=into)

    def start(self, rows: Tensor, new: Tensor, weights: Tensor) -> None:
        """The support is ``rows``, of which the last are ``new``; from ``weights`` >= 0 to the solution with signs."""
        self.add_lines(new, len(rows) - len(new))
        self.support = Support.make(rows, weights, weights.new_zeros(0, 0))
        self.refresh()
        left = [slot for slot, _, _ in self.support.to_signs(weights)]
        self.support = self.support.merged()
        self.update_now()
        self.let_return(left, weights)

    def support_products(self, others: Tensor) -> Tensor:
        """Inner products of the slots with some rows."""
        k = len(self.support.rows)
        if self.lines is None or self.is_rough:
            left, right = self.own
            return (left[:k] @ self.left[others].T).mul_(right[:k] @ self.right[others].T)
        return self.lines[:k].index_select(1, others)

    def matched(self, weights: Tensor, some: Tensor | None = None) -> Tensor:
        """``<g_j, sum_s weights_bs g_s>`` of all rows j, or of ``some``, over the first k slots: [b, k] -> [b, n]."""
        b, k = weights.shape
        if self.lines is not None and not self.is_rough:
            return weights @ (self.lines[:k] if some is None else self.lines[:k, some])
        left, right = (self.left, self.right) if some is None else (self.left[some], self.right[some])
        (n, f), c = left.shape, right.shape[1]
        if some is not None and n * (f + c + b) < b * c * f:  # few rows: their products cost less
            return weights @ (self.own[0][:k] @ left.T).mul_(self.own[1][:k] @ right.T)
        return along(self.total(weights), left.T, right.T)

    def roughly(self, weights: Tensor) -> Tensor:
        """The same of all rows in the precision of the check, for rows divided by their unit."""
        if self.lines is None:
            return along((self.total(weights) / self.unit).to(self.rough[0]), *self.rough)
        product, weights = self.lines.new_zeros(len(weights), self.lines.shape[1]), weights.to(self.lines)
        for begin in range(0, weights.shape[1], SUMMED):
            part = weights[:, begin : begin + SUMMED]
            product += part @ self.lines[begin : begin + part.shape[1]]
        return product

    def total(self, weights: Tensor) -> Tensor:
        """``sum_s weights_bs g_s`` over the first k slots: [b, k] -> [b, c, f]."""
        (b, k), (left, right) = weights.shape, self.own
        scaled = (weights.unsqueeze(2) * right[:k]).transpose(1, 2).reshape(-1, k)
        return (scaled @ left[:k]).view(b, right.shape[1], -1)

    def system(self) -> Tensor:
        """``G_SS + ridge I`` of all slots."""
        system = self.support_products(self.support.rows)
        system.diagonal().add_(self.ridges[self.support.rows])
        return system

    def refresh(self, final: bool = False) -> None:
        """Forget the rows that left; weights anew, without signs, and P and correlations unless this is ``final``."""
        rows, alive = self.support.rows, self.support.alive
        if not bool(alive.all()):  # the last rows take the places of those that left
            k = int(alive.sum())
            holes, last = torch.nonzero(~alive[:k]).flatten(), k + torch.nonzero(alive[k:]).flatten()
            rows = rows.index_copy(0, holes, rows[last])[:k]
            for held in (*self.own, *([] if self.lines is None else [self.lines])):
                held[holes] = held[last]
            self.support.rows = rows
        factor = torch.linalg.cholesky(self.system())
        weights = torch.cholesky_solve(self.correlation[rows].unsqueeze(1), factor).squeeze(1)
        if final:
            self.support = Support.make(rows, weights, weights.new_zeros(0, 0))
            return
        k, most = len(rows), min(len(rows) + FRESH * ROUNDS, len(self.own[0]))  # rows there can be before the next time
        inverse = weights.new_zeros(most, most)
        inverse[:k, :k] = torch.cholesky_inverse(factor)
        self.support, self.reached, self.age = Support.make(rows, weights, inverse), None, 0
        self.update_now()

    def update_now(self) -> None:
        if len(self.support.rows):
            self.now = self.correlation - self.matched(self.support.weights.unsqueeze(0))[0]
            self.off = torch.zeros_like(self.now)

    def change_now(self, change: Tensor) -> None:
        """The weights of the slots [k] have changed."""
        if not self.is_rough:
            self.now = self.now - self.matched(change.unsqueeze(0))[0]
            return
        total = self.total(change.unsqueeze(0))
        size, norm = float(total.abs().amax().clamp_min(1e-300)), float(torch.linalg.vector_norm(total))
        moved = along((total / size).float(), *self.rough)[0]
        self.now = self.now - moved.double() * (size * self.unit)
        self.off = self.off + self.rounding(0) * norm * self.lengths + 1e-30 * size * self.unit

    def rounding(self, k: int) -> float:
        """Of a sum over k slots, as a share of the product of lengths."""
        summed = min(k, SUMMED) + k // SUMMED if self.lines is not None else k
        return torch.finfo(self.rough[0].dtype).eps / 2 * (summed + sum(map(len, self.rough)) + 16)

    def let_return(self, left: list[int], before: Tensor) -> None:
        """Where a row that has just left would help after all, the full search among the slots."""
        support = self.support
        if not self.helps(support, left):
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
        self.add_rows()
        for _ in range(CHANCES):
            rows = self.support.rows
            absent = self.keep[~torch.isin(self.keep, rows)]
            if not len(absent):
                break
            self.update_now()
            absent = absent[self.now[absent] > self.floor]
            if not len(absent):
                break
            weights = torch.cat([self.support.weights.clamp_min(0), self.now.new_zeros(len(absent))])
            self.start(torch.cat([rows, absent]), absent, weights)
            self.add_rows()  # with other weights, others may help
        return torch.zeros_like(self.now).index_add(0, self.support.rows, self.support.weights.clamp_min(0))

    def add_rows(self) -> None:
        """Until the budget is used up, or no row helps."""
        while self.block():
            self.age += 1
            if self.tell is not None:
                self.tell(self.budget - self.room())
            if self.age >= FRESH or len(self.support.rows) <= CANDIDATES:  # while it costs nothing
                self.refresh()
        self.refresh(final=True)  # without the rounding of many blocks

    def block(self) -> bool:
        """Guess a few rounds and keep those that were right. Returns whether to go on."""
        room = self.room()
        objective = self.energy - float((self.support.weights * self.correlation[self.support.rows]).sum())
        open_ = ~self.closed.index_fill(0, self.support.rows[self.support.alive], True)
        open_ &= self.now + self.off > self.floor
        open_ &= room >= 1 if self.cost is None else self.cost <= room
        if objective <= self.tolerance or not bool(open_.any()):
            return False
        score = self.score(self.now).masked_fill(~open_, -torch.inf)
        near = (score - score.amax()) / self.lengths.clamp_min(1e-300)
        candidates = near.topk(min(CANDIDATES, len(score))).indices
        candidates = candidates[open_[candidates]].sort().values  # ascending, so that the lowest row wins a tie
        rounds = min(ROUNDS, len(candidates), int(room) if self.cost is None else ROUNDS)
        self.reached = self.reach(candidates)
        now = self.now[candidates]
        if self.is_rough:
            now = self.correlation[candidates] - self.support.weights @ self.reached.cross
            best = torch.where(now > self.floor, self.score(now, candidates), -torch.inf).amax()
            most = self.score(self.now + self.off).masked_fill(~open_, -torch.inf).index_fill(0, candidates, -torch.inf)
            if bool(self.off.any()) and bool(most.amax() >= best):  # another one might come first
                self.update_now()
                return self.block()
        return self.accept(Guess(self, self.support, self.reached, now, rounds, room), room)

    def reach(self, candidates: Tensor) -> Reached:
        """What the block before had of these candidates is not computed again."""
        if self.reached is None:
            cross = self.support_products(candidates)
            return Reached(candidates, cross, self.support.inverse[: len(cross), : len(cross)] @ cross)
        before, place = self.reached, torch.searchsorted(self.reached.rows, candidates)
        place = place.clamp_max(len(before.rows) - 1)
        cross, reach = before.cross[:, place], before.reach[:, place]
        new = torch.nonzero(before.rows[place] != candidates).flatten()
        cross[:, new] = self.support_products(candidates[new])
        reach[:, new] = self.support.inverse[: len(cross), : len(cross)] @ cross[:, new]
        return Reached(candidates, cross, reach)

    def accept(self, guess: Guess, room: float) -> bool:
        """The rounds of the guess that were right."""
        k, b = len(self.support.rows), len(guess.rows)
        if b == 0:  # a row in the span of the support helps nobody
            self.closed[guess.singular_row] = True
            return True
        self.add_lines(guess.rows, k)
        start = torch.cat([self.support.weights, self.now.new_zeros(b)])
        right = self.right_rounds(guess, start, room)
        self.change_now(guess.weights[right - 1] - start)
        support, reach = guess.after(right)
        self.support = support.merged()
        cross = torch.cat([guess.cross, self.products(support.rows[k:], guess.candidates)])
        self.reached = Reached(guess.candidates, cross, reach)
        if right < b:
            return True
        self.let_return(guess.left, guess.last)
        return not guess.ended

    def right_rounds(self, guess: Guess, start: Tensor, room: float) -> int:
        """How many rounds chose the best of all rows, and one that helps. The first always does."""
        weights = guess.weights[:-1]
        if not len(weights):
            return 1
        following, fits = guess.rows[1:], torch.ones_like(guess.rows[1:], dtype=torch.bool)
        open_ = ~self.closed.index_fill(0, self.support.rows[self.support.alive], True)
        open_ = open_.index_fill(0, guess.candidates, False).repeat(len(weights), 1)  # the best of them was chosen
        for place, chosen in enumerate(guess.rows[:-1].tolist()):
            for row in guess.leaving.get(place, []):
                open_[place:, row] = ~self.closed[row]
            if self.cost is not None:
                room -= float(self.cost[chosen])
                open_[place] &= self.cost <= room
                fits[place] = self.cost[following[place]] <= room
        value = self.score(guess.values[1:], following)
        right = fits & ~self.beaten(guess, start, open_, value)
        objective = self.energy - weights @ self.correlation[guess.support.rows]
        right &= (guess.values[1:] > self.floor) & (objective > self.tolerance)
        return 1 + int(right.long().cumprod(0).sum())

    def beaten(self, guess: Guess, start: Tensor, open_: Tensor, value: Tensor) -> Tensor:
        """In which rounds but the first a row of those ``open_`` [b, n] comes before the one chosen, of ``value`` [b].

        ``start`` [k] are the weights before.
        """
        slots, weights, following = guess.support.rows, guess.weights[:-1], guess.rows[1:]
        changes = weights - start
        size = changes.abs().amax(1, keepdim=True).clamp_min(1e-300)
        small = changes / size  # [b, k]
        scale = 1 / (size.squeeze(1) * self.unit**2)
        longest = self.rounding(len(slots)) * (small.abs() @ self.lengths[slots])
        cost = torch.ones_like(self.now) if self.cost is None else self.cost
        most = torch.stack([scale, -value * scale, longest], 1) @ torch.stack(
            [self.now + self.off, cost, self.lengths / self.unit**2]
        )
        possible = open_ & (most.add_(1e-30) >= self.roughly(small))  # [b, n]
        rows = torch.nonzero(possible.any(0)).flatten()
        score = self.score(self.correlation[rows] - self.matched(weights, rows), rows)  # [b, m]
        first = (score > value.unsqueeze(1)) | ((score == value.unsqueeze(1)) & (rows < following.unsqueeze(1)))
        return torch.any(possible[:, rows] & first, 1)
