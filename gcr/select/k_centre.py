"""Greedy k-centre: rows that leave no row far from a chosen one. Chosen rows have weight 1.

The farthest-first walk of Gonzalez (1985), which Sener & Savarese (ICLR 2018, Algorithm 1) use on features of a
network and PatchCore (Roth et al., CVPR 2022) for its memory bank: the next centre is ``argmax_x min_centre || f(x) -
f(centre) ||``. From any first centre the largest distance of a row to its centre is at most twice the least possible.
By default the first centre is the row nearest the mean, so that nothing is drawn at random.

The plain walk reads all n rows for each of K centres. This one gives the same rows in the same order and reads them
once for each block of centres:

1. A distance to the nearest centre only falls. So among the ``TOP`` farthest rows the walk may go on alone, as long as
   its next centre is not nearer than the farthest of all other rows was.
2. Then all rows catch up with the new centres C by a matrix product in float32: ``|x - c|^2 - |x|^2 = |c|^2 - 2 <x,
   c>``. Its rounding is at most ``e = (d + 16) (2^-24 (|x| + |c|)^2 + 2^-120)``. Only where this comes within e of the
   distance that is known is ``|| x - c ||`` computed, in float64, and that alone counts.

Cost: O(n K d) in matrix products, O(K TOP d) in the walks, O(n d) memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcr.select.checks import (
    as_matrix,
    as_rows,
    check_budget,
    check_finite,
    check_memory,
    is_number,
    is_whole,
    like_input,
)
from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.select.cuda_graph import capture
from gcr.settings import BadInput, Settings

Progress = Callable[[int, int], object]  # (rows chosen, budget)

TOP = {"cpu": 1024, "cuda": 2048}  # rows that are walked alone
ROUNDS_UNSEEN = 16  # centres between two looks of the host; on a GPU captured together
BLOCK = 2**22  # numbers that are held at once in a block of rows
LONGEST = 1e140  # of features in float64, whose squares are added up


def k_centre(
    features: Any,
    budget: int,
    *,
    keep: Any = None,
    start: int | None = None,
    projection: Any = None,
    progress: Progress | None = None,
) -> Coreset:
    """Choose ``budget`` rows of ``features`` [n, d], the farthest from those chosen before each time.

    ``keep`` rows are centres from the beginning and count in the budget; else ``start`` is the first centre, by default
    the row nearest the mean. ``projection`` is a [d, p] matrix, or a number p for a seeded random one: distances are
    then those of the projected rows. ``progress(chosen, budget)`` is called now and then. Rows come back in the order
    of choice, as the kind of array that came in; equally far rows: the lowest first. ``note`` has the radius, the
    largest distance of a row to its centre.

    >>> chosen = k_centre([[0.0], [0.1], [5.0], [9.0]], 3, start=0)
    >>> chosen.rows.tolist(), chosen.note
    ([0, 3, 2], 'every row is within 0.1 of a chosen one')
    """
    if progress is not None and not callable(progress):
        raise BadInput(f"progress must be a function of rows chosen and budget, got {progress!r}")
    device = features.device if isinstance(features, Tensor) else torch.device("cpu")
    rows = as_matrix("features", features, device, finite=False)
    n = len(rows)
    matrix = None if projection is None else _projection(rows, projection)
    if matrix is None:  # the rows themselves, which are read again and again, and their copies in float32
        needed = rows.numel() * (rows.element_size() + 4)
        check_memory("features", needed, device, "give projection=, the numbers to keep of a row")
    else:
        needed = n * matrix.shape[1] * (matrix.element_size() + 4)
        check_memory("projected features", needed, device, "give a projection with fewer columns")
    check_finite("features", rows)
    check_budget(budget, n)
    first = None
    if keep is not None:
        first = as_rows("keep", keep, n, device)
        if start is not None:
            raise BadInput("keep and start exclude each other: kept rows are the first centres; leave out start")
        if budget < len(first):
            raise BadInput(f"budget must be at least the number of kept rows, {len(first)}, got {budget}")
    if start is not None:
        if not is_whole(start):
            raise BadInput(f"start must be the number of a row, got {start}")
        first = as_rows("start", [start], n, device)
    if matrix is not None:
        rows = torch.cat([block.to(matrix.dtype) @ matrix for block in rows.split(max(BLOCK // rows.shape[1], 1))])
        check_finite("projected features", rows)
    _check_lengths(rows)
    walk = Walk(rows)
    order = walk.run(int(budget), first if first is not None and len(first) else None, progress)
    radius = float(walk.near.amax().clamp_min(0))
    weights = torch.ones(len(order), dtype=torch.float32, device=device)
    return like_input(features, Coreset(order, weights, f"every row is within {radius:.6g} of a chosen one"))


@dataclass(frozen=True)
class KCentre(Settings):
    """The same number of rows from every class, spread to cover its features.

    >>> features = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]])
    >>> pool = Pool(labels=torch.zeros(5).long(), weights=torch.ones(5), features=features)
    >>> KCentre()(pool, 3, torch.zeros(5)).rows.tolist()
    [0, 3, 4]
    """

    name: ClassVar[str] = "k-centre"
    summary: ClassVar[str] = "rows of each class that cover its features, farthest first"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        features = pool.features
        assert features is not None
        return choose_per_class(pool, budget, lambda rows, k: farthest_first(features[rows], k))


def farthest_first(features: Tensor, picks: int) -> Tensor:
    """The first ``picks`` centres in the order of the walk: [n, f] -> [picks]. Equally far rows: the lowest first.

    >>> farthest_first(torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]]), 3).tolist()
    [3, 0, 4]
    """
    return Walk(features).run(picks)


class Walk:
    """``near`` [n] is the distance of each row to its nearest centre, -1 for a centre: no duplicate is below 0."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        n, d = features.shape
        self.block = max(BLOCK // max(d, 1), 1)
        self.near = torch.full((n,), torch.inf, dtype=torch.float64, device=features.device)
        self.top = min(n, TOP["cuda" if features.is_cuda else "cpu"])
        self.small = self.lengths = self.near[:0]  # made by ``prepare``

    def run(self, picks: int, first: Tensor | None = None, progress: Progress | None = None) -> Tensor:
        """The centres in order: [picks]; those that are ``first`` given come first."""
        if picks == 0:
            return torch.zeros(0, dtype=torch.int64, device=self.near.device)
        order = [self.middle_row() if first is None else first]
        self.catch_up(order[0])
        done = len(order[0])
        ahead = TopWalk(self.top, self.features) if done < picks else None
        if progress is not None:
            progress(done, picks)
        while ahead is not None and done < picks:
            new = ahead.run(self, picks - done)
            self.catch_up(new)
            order.append(new)
            done += len(new)
            if progress is not None:
                progress(done, picks)
        return torch.cat(order)

    def middle_row(self) -> Tensor:
        """The row nearest the mean: [1]."""
        blocks = self.features.split(max(self.block, 2**16))
        mean = sum(rows.double().sum(0) for rows in blocks) / len(self.features)
        return torch.cat([torch.linalg.vector_norm(rows.double() - mean, dim=1) for rows in blocks]).argmin(0, True)

    def catch_up(self, centres: Tensor) -> None:
        """Lower ``near`` to what ``centres`` [b] bring."""
        self.near[centres] = -1.0
        points = self.features[centres].double()
        if len(centres) <= 2 or len(self.near) <= self.top:
            for point in points:
                for rows, near in zip(self.features.split(self.block), self.near.split(self.block), strict=True):
                    torch.minimum(near, torch.linalg.vector_norm(rows.double() - point, dim=1), out=near)
            return
        self.prepare()
        self.by_products(points, self.small[centres], self.lengths[centres])

    def least(self, rows: Tensor) -> Tensor:
        """Bounds from below of the distances among some rows: [m, m]."""
        self.prepare()
        small, lengths = self.small[rows], self.lengths[rows]
        error = self.rounding * 4 * lengths.amax() + self.least_error
        squares = torch.addmm(lengths.float(), small, small.T, alpha=-2).double() + lengths.unsqueeze(1) - error
        return squares.clamp_min_(0).sqrt_().mul_((1 - 1e-12) / self.scale)

    def prepare(self) -> None:
        """Rows about their mean and within [-1, 1], in float32, and the squares of their lengths."""
        if len(self.small):
            return
        blocks = self.features.split(self.block)
        mean = sum(rows.double().sum(0) for rows in blocks) / len(self.features)
        largest = max(float((rows.double() - mean).abs().amax()) for rows in blocks)
        self.scale = 1.0 / largest if largest > 0 else 1.0
        self.small = torch.empty(self.features.shape, dtype=torch.float32, device=self.near.device)
        for rows, into in zip(blocks, self.small.split(self.block), strict=True):
            into.copy_((rows.double() - mean) * self.scale)
        self.lengths = torch.cat([rows.double().square().sum(1) for rows in self.small.split(self.block)])
        exact = torch.get_float32_matmul_precision() == "highest"  # else products may be rounded to 8 bits
        self.rounding = (self.features.shape[1] + 16) * 2.0**-24 + (0.0 if exact else 2.0**-6)
        self.least_error = (self.features.shape[1] + 16) * 2.0**-120  # products below float32's range

    def by_products(self, points: Tensor, small: Tensor, lengths: Tensor) -> None:
        columns, squares, longest = small.T.contiguous(), lengths.float(), lengths.amax().sqrt()
        step = max(BLOCK // len(points), 1)
        for begin in range(0, len(self.near), step):
            near, own = self.near[begin : begin + step], self.lengths[begin : begin + step]
            score = torch.addmm(squares, self.small[begin : begin + step], columns, alpha=-2)
            error = self.rounding * (own.sqrt() + longest).square() + self.least_error
            lowest = score.amin(1).double()
            limit = torch.where(near > 0, (near * self.scale).square() - own + error, -torch.inf)
            hit = torch.nonzero(lowest <= limit).flatten()
            bound = torch.minimum(limit[hit], lowest[hit] + 2 * error[hit])
            which, centre = torch.nonzero(score[hit] <= bound.unsqueeze(1), as_tuple=True)
            for some, at in zip((hit[which] + begin).split(self.block), centre.split(self.block), strict=True):
                distance = torch.linalg.vector_norm(self.features[some].double() - points[at], dim=1)
                self.near.scatter_reduce_(0, some, distance, "amin")


class TopWalk:
    """The plain walk among the farthest rows.

    On a GPU its rounds are captured once and replayed. On a CPU, where many rows are left aside, a bound from one
    matrix product shows which distances can matter.
    """

    def __init__(self, top: int, features: Tensor) -> None:
        self.rows = torch.zeros(top, features.shape[1], dtype=torch.float64, device=features.device)
        self.near = torch.zeros(top, dtype=torch.float64, device=features.device)
        self.least: Tensor | None = None  # [top, top]: distances are not below these
        self.value = [self.near[:1].clone() for _ in range(ROUNDS_UNSEEN)]
        self.best = [torch.zeros(1, dtype=torch.int64, device=features.device) for _ in range(ROUNDS_UNSEEN)]
        self.rounds: Callable[[], None] = self.go_on
        if features.is_cuda:
            self.go_on()
            self.rounds = capture(self.go_on, features.device).replay

    def go_on(self) -> None:
        """A few rounds: the farthest row is a centre, and the others are as near as it brings them."""
        for value, best in zip(self.value, self.best, strict=True):
            torch.max(self.near, 0, keepdim=True, out=(value, best))
            centre = self.rows.index_select(0, best)
            if self.least is None:
                distance = torch.linalg.vector_norm(self.rows - centre, dim=1)
                torch.minimum(self.near, distance, out=self.near)
            else:
                some = torch.nonzero(self.least[int(best)] <= self.near).flatten()
                distance = torch.linalg.vector_norm(self.rows.index_select(0, some) - centre, dim=1)
                self.near[some] = torch.minimum(self.near[some], distance)
            self.near.index_fill_(0, best, -1.0)

    def run(self, walk: Walk, most: int) -> Tensor:
        """The next centres, at least one and at most so many: those surely farther than any row left aside."""
        top, n = len(self.near), len(walk.near)
        order = walk.near.sort(descending=True, stable=True)
        candidates = order.indices[:top].sort().values  # ascending, so that the lowest row wins a tie
        self.rows.copy_(walk.features[candidates])
        self.near.copy_(walk.near[candidates])
        beyond, beyond_row = -torch.inf, n
        if top < n:
            beyond, beyond_row = order.values[top].item(), int(order.indices[top])
        if top < n and not self.near.is_cuda:
            self.least = walk.least(candidates)
        chosen, found = list[Tensor](), 0
        while True:
            self.rounds()
            value, rows = torch.cat(self.value), candidates[torch.cat(self.best)]
            good = (value > beyond) | ((value == beyond) & (rows < beyond_row))
            length = min(int(good.long().cumprod(0).sum()), most - found)
            chosen.append(rows[:length])
            found += length
            if length < len(rows) or found == most:
                return torch.cat(chosen)


def _projection(rows: Tensor, projection: Any) -> Tensor:
    """The matrix [d, p], or a random one of p columns, in float64 for rows of float64 and integers."""
    d = rows.shape[1]
    small = rows.dtype in (torch.float16, torch.bfloat16, torch.float32)
    if is_number(projection):
        if not is_whole(projection):
            raise BadInput(f"projection must be a whole number of columns or a matrix, got {projection}")
        if projection < 1:
            raise BadInput(f"projection must be a number of columns >= 1 or a matrix, got {projection}")
        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(d, int(projection), generator=generator, dtype=torch.float32) / int(projection) ** 0.5
    else:
        matrix = as_matrix("projection", projection, rows.device)
        if len(matrix) != d:
            raise BadInput(f"projection must have a row for each of the {d} features, got shape {tuple(matrix.shape)}")
    converted: Tensor = matrix.to(rows.device, torch.float32 if small else torch.float64)
    return converted


def _check_lengths(rows: Tensor) -> None:
    """Squares of distances must be numbers of float64: those of shorter types always are."""
    if rows.dtype == torch.float64:
        largest = max(float(block.abs().amax()) for block in rows.split(max(BLOCK // max(rows.shape[1], 1), 1)))
        if largest > LONGEST or 0 < largest < 1 / LONGEST:
            raise BadInput(f"features must be between {1 / LONGEST:g} and {LONGEST:g}, got {largest:g}; scale them")
