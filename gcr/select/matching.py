"""Gradient matching over a pool: classes become problems, problems become padded batches, answers become a coreset.

Small classes are solved together with their Gram matrices; a class too large for that is solved alone, with products
made when they are needed, so that memory stays a small multiple of the input whatever the pool's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gcr.select import omp, omp_blocks, omp_factors
from gcr.select.batched_problems import Problems, Tell
from gcr.select.coreset import Coreset, class_budgets, rows_by_class
from gcr.select.gradients import LastLayerGradients
from gcr.select.swap import replace_rows
from gcr.settings import BadInput

BATCH_BYTES = 2**28  # of factors, or of Gram matrices, that are held at once
BLOCKS_FROM = 2**13  # rows of a problem from which blocks of rounds are faster,
BLOCKS_WORK = 2**35  # or numbers that ``omp_factors`` would multiply,
ALONE_FROM = 2**10  # or rows of one problem on a CPU whose gradients have more numbers than it has rows to choose,
WIDE = 512  # and at least these;
CROWDED = 1.25  # not where gradients have fewer numbers a chosen row: rows leave all the time then
TOGETHER = 4  # problems from which a GPU solves them together, round by round,
FEW = 256  # where none is to have more rows: those that leave cost O(rows^3)


def match(
    gradients: LastLayerGradients,
    labels: Tensor | None,
    weights: Tensor,
    budget: int,
    ridge: float,
    tolerance: float,
    replace: int = 0,
    barred: Tensor | None = None,
    budgets: list[int] | None = None,
    tell: Tell | None = None,
) -> Coreset:
    """The rows and weights whose gradient comes nearest to that of the pool, class by class where there are labels.

    A class that is wholly kept keeps its weights: that matches exactly. Where matching ends before the budget because
    no row helps, the class is topped up by falling correlation with what is unmatched (lowest row on ties); such a
    row keeps the weight it brought, or 1 if that was 0. Rows that are ``barred`` [n] count in the target but are not
    chosen; enough others must be there. ``budgets`` are the shares of the classes, lowest label first, if not equal.
    """
    everything = torch.arange(len(gradients), device=weights.device)
    groups = [everything] if labels is None else rows_by_class(labels)
    budgets = budgets or class_budgets([len(rows) for rows in groups], budget)
    topped_up, without_gradient, done = 0, 0, 0

    def solve(problems: Problems, shares: Tensor, _: Tensor) -> Tensor:
        nonlocal topped_up, without_gradient, done
        found, filled, zero = _solve(problems, shares, ridge, tolerance, replace, _beyond(done, tell))
        done += int(shares.sum()) if tell else 0
        topped_up, without_gradient = topped_up + filled, without_gradient + zero
        return found

    chosen = by_group(gradients, groups, budgets, weights, solve, barred)
    note = _note(len(chosen.rows), topped_up, without_gradient, labels is not None)
    return Coreset(chosen.rows, chosen.weights, note)


def by_group(
    gradients: LastLayerGradients,
    groups: list[Tensor],
    budgets: list[int],
    weights: Tensor,
    solve: Callable[[Problems, Tensor, Tensor], Tensor],
    barred: Tensor | None = None,
    with_gram: bool = False,
) -> Coreset:
    """Every group by itself, many at once; one that is wholly kept keeps its weights. ``solve`` gets problems of b
    groups, their budgets [b] and the pool's rows [b, n] behind theirs, and gives weights [b, n]."""
    sized = list(zip(groups, budgets, strict=True))
    chosen = [(rows, weights[rows].double()) for rows, share in sized if share == len(rows)]
    for batch in _batches([(rows, share) for rows, share in sized if 0 < share < len(rows)], gradients):
        problems, index = _pad(batch, gradients, weights, barred, with_gram)
        found = solve(problems, torch.tensor([share for _, share in batch], device=weights.device), index)
        kept = found > 0
        chosen.append((index[kept], found[kept]))
    rows = torch.cat([part for part, _ in chosen])
    order = rows.argsort()
    return Coreset(rows[order], torch.cat([part for _, part in chosen])[order].to(weights.dtype))


def _beyond(done: float, tell: Tell | None) -> Tell | None:
    return None if tell is None else lambda more: tell(done + more)


def _solve(
    problems: Problems, shares: Tensor, ridge: float, tolerance: float, replace: int, tell: Tell | None
) -> tuple[Tensor, int, int]:
    """Weights [b, n], how many rows were topped up, and how many problems have no gradient at all."""
    correlation, energy = problems.target()
    if not bool(torch.isfinite(energy).all()):
        raise BadInput(
            "gradients are too long: their inner products overflow; scale them down, and ridge by the square"
        )
    if problems.gram is None and _prefers_blocks(problems, shares):
        weights = _by_blocks(problems, correlation, energy, shares, ridge, tolerance, tell)
    elif problems.gram is None:
        weights = omp_factors.matching_pursuit(problems, shares, ridge, tolerance, tell)
    else:
        weights = omp.matching_pursuit(problems, shares, ridge, tolerance)
    if replace:
        weights = replace_rows(problems, weights, ridge, replace)
    missing = shares - (weights > 0).sum(1)
    filled, zero = torch.stack([missing.sum(), (problems.squared_norms().amax(1) == 0).sum()]).tolist()
    if filled:
        everything = torch.arange(weights.shape[1], device=weights.device).expand_as(weights)
        unmatched = problems.target()[0] - problems.matched(everything, weights)
        free = problems.valid & (weights == 0)
        order = unmatched.masked_fill(~free, -torch.inf).argsort(dim=1, descending=True, stable=True)
        rank = order.argsort(dim=1)
        brought = torch.where(problems.target_weights > 0, problems.target_weights, 1.0)
        weights = torch.where(free & (rank < missing.unsqueeze(1)), brought, weights)
    return weights, filled, zero


def _prefers_blocks(problems: Problems, shares: Tensor) -> bool:
    """Whether one large problem after another, by blocks of rounds, is faster than all at once, round by round."""
    most = int(shares.max())
    if len(shares) >= TOGETHER and most <= FEW and _room_for_large(shares.device):
        return False
    work = problems.left.shape[2] * problems.right.numel() * most
    rows, width = problems.left.shape[1], problems.left.shape[2] * problems.right.shape[2]
    on_cpu = shares.device.type == "cpu"
    if on_cpu and width <= CROWDED * most and work < BLOCKS_WORK:
        return False
    alone = len(shares) == 1 and on_cpu and width >= max(WIDE, most)
    return rows >= (ALONE_FROM if alone else BLOCKS_FROM) or work >= BLOCKS_WORK


def _room_for_large(device: torch.device) -> int:
    """Bytes of factors of large groups that are solved together; none on a CPU, where blocks of rounds are faster.

    A GPU computes all correlations of a round in about the time of its launches. Gathering and converting a batch takes
    some copies of it.
    """
    return int(torch.cuda.mem_get_info(device)[0]) // 16 if device.type == "cuda" else 0


def _by_blocks(
    problems: Problems,
    correlation: Tensor,
    energy: Tensor,
    shares: Tensor,
    ridge: float,
    tolerance: float,
    tell: Tell | None,
) -> Tensor:
    """One problem after another: [b, n]."""
    nothing = torch.zeros(0, dtype=torch.int64, device=shares.device)
    found = [
        omp_blocks.Matching(
            problems.left[b],
            problems.right[b],
            correlation[b],
            float(energy[b]),
            int(shares[b]),
            ridge,
            tolerance,
            problems.valid[b],
            nothing,
            tell=_beyond(float(shares[:b].sum()), tell),
        ).run()
        for b in range(len(shares))
    ]
    return torch.stack(found)


def match_targets(
    gradients: LastLayerGradients,
    groups: list[Tensor],
    budgets: Sequence[float],
    weights: Tensor,
    targets: list[Tensor] | None,
    keep: Tensor,
    cost: Tensor | None,
    ridge: float,
    tolerance: float,
    names: list[int] | None = None,
    passes_on: bool = False,
    tell: Tell | None = None,
) -> Coreset:
    """Rows of each group that match its share of each target ([c, f] matrices), or the group's own sum.

    Rows ``keep`` are in from the beginning, with weight 0 where they do not help. A row serves one target. With costs,
    a group ``passes_on`` what it has not spent.
    """
    if targets is not None and len(targets) > 1 and len(keep):
        raise BadInput(f"keep goes with one target, got {len(targets)}; match their sum, or leave out keep")
    free = torch.ones(len(gradients), dtype=torch.bool, device=weights.device)
    is_kept = torch.zeros_like(free).index_fill(0, keep, True)
    whole, parts, missing = float(sum(budgets)), list[tuple[Tensor, Tensor, int]](), 0.0
    spare, unspent, unserved, done = 0.0, 0.0, 0, 0.0
    for group, (rows, budget) in enumerate(zip(groups, budgets, strict=True)):
        kept = torch.nonzero(is_kept[rows]).flatten()
        needed = len(kept) if cost is None else float(cost[rows][kept].sum())
        if budget < needed:
            what = "number of kept rows" if cost is None else "cost of the kept rows"
            if names is None:
                raise BadInput(f"budget must be at least the {what}, {needed:g}, got {budget:g}")
            given = f"{needed:g}, but the share of group {names[group]} is {budget:g} of {whole:g}"
            raise BadInput(f"budget must give each group at least the {what}, {given}; a dict has one for each group")
        shares: list[float] = [budget]
        if targets is not None:
            equal = class_budgets([len(rows)] * len(targets), int(budget)) if cost is None else None
            shares = list(equal) if equal else [budget / len(targets)] * len(targets)
        part = LastLayerGradients(gradients.features[rows], gradients.residuals[rows], gradients.bias)
        everything = torch.arange(len(rows), device=rows.device)
        left, right = part.left(everything), part.right(everything)
        for number, share in enumerate(shares):
            total = part.weighted_sum(weights[rows]) if targets is None else targets[number] * (budget / whole)
            correlation, energy = ((left @ total.T) * right).sum(1), float(total.square().sum())
            if not math.isfinite(energy) or not bool(torch.isfinite(correlation).all()):
                raise BadInput("target or gradients are too long: products overflow; scale them, and ridge by squares")
            price = None if cost is None else cost[rows]
            allowed = share if price is None else (share + spare) * (1 + 1e-12)  # shares are rounded
            matching = omp_blocks.Matching(
                *(left, right, correlation, energy, allowed, ridge, tolerance, free[rows], kept, price),
                tell=_beyond(done, tell),
            )
            found = matching.run()
            done += share
            taken = torch.nonzero((found > 0) | is_kept[rows]).flatten()
            free[rows[taken]] = False
            parts.append((rows[taken], found[taken], number))
            missing += max(share - len(taken), 0) if price is None else 0
            if price is not None:
                left_over = max(share + spare - float(price[taken].sum()), 0.0)
                fits = bool((free[rows] & (price <= left_over)).any())
                spare = left_over if passes_on else 0.0
                unspent += left_over if fits or not bool(free[rows].any()) else 0.0
                unserved += share > 0 and not fits and not len(taken)
    if passes_on and cost is not None:
        unspent = spare if bool((free & (cost <= spare)).any()) else 0.0
    chosen = torch.cat([rows for rows, _, _ in parts])
    order = chosen.argsort()
    serves = torch.cat([torch.full_like(rows, number) for rows, _, number in parts])[order]
    several = targets is not None and len(targets) > 1
    empty = [number for number in range(len(targets or [])) if not bool((serves == number).any())] if several else []
    alone = ": no other row comes nearer" if len(parts) == 1 else ""  # else a row of another group might
    notes = {
        f"matching ended {missing:g} rows below the budget: no other row comes nearer": missing >= 1,
        f"matching left {unspent:g} of {whole:g} unspent{alone}": unspent > 1e-9 * whole,
        f"{unserved} shares of the budget are below the cost of any row": unserved,
        f"no row for target {', '.join(map(str, empty))}": empty,
    }
    note = "; ".join(text for text, holds in notes.items() if holds)
    return Coreset(chosen[order], torch.cat([part for _, part, _ in parts])[order], note, serves if several else None)


def _batches(groups: list[tuple[Tensor, int]], gradients: LastLayerGradients) -> list[list[tuple[Tensor, int]]]:
    """Groups of like size together, as many as memory allows."""
    width = gradients.features.shape[1] + gradients.residuals.shape[1] + 1
    large_bytes = _room_for_large(gradients.features.device)
    made: list[list[tuple[Tensor, int]]] = []
    longest = 0
    for group in sorted(groups, key=lambda group: -len(group[0])):
        n, count = len(group[0]), len(made[-1]) + 1 if made else 1
        fits = 8 * count * longest * max(longest, width) <= BATCH_BYTES
        if large_bytes and longest > 2 * width:  # no Gram matrices, and little padding
            fits = 8 * count * longest * width <= large_bytes and 2 * n > longest
        if not made or not fits:
            made.append([])
            longest = n
        made[-1].append(group)
    return made


def _pad(
    batch: list[tuple[Tensor, int]],
    gradients: LastLayerGradients,
    weights: Tensor,
    barred: Tensor | None,
    with_gram: bool,
) -> tuple[Problems, Tensor]:
    """The groups of a batch as problems of one size, and the pool's row behind each of theirs. They have Gram matrices
    if these are small, or ``with_gram``."""
    n = len(batch[0][0])
    index = torch.stack([torch.nn.functional.pad(rows, (0, n - len(rows)), value=-1) for rows, _ in batch])
    valid = index >= 0
    index = index.clamp_min(0)
    left, right = gradients.left(index), gradients.right(index)
    if not bool(valid.all()):
        right = right * valid.unsqueeze(2)
    target_weights = torch.where(valid, weights[index].double(), 0.0)
    gram = None
    small = n <= 2 * left.shape[2] and 8 * len(batch) * n * n <= BATCH_BYTES
    if small or with_gram:  # else the factors are less to read
        gram = torch.bmm(left, left.transpose(1, 2)) * torch.bmm(right, right.transpose(1, 2))
    can_enter = valid if barred is None else valid & ~barred[index]
    return Problems(left, right, can_enter, target_weights, gram), index


def _note(n: int, topped_up: int, without_gradient: int, by_class: bool) -> str:
    parts = []
    if topped_up:
        parts.append(f"{topped_up} of {n} rows topped up")
    if without_gradient:
        classes = "1 class has" if without_gradient == 1 else f"{without_gradient} classes have"
        what = classes if by_class else "the pool has"
        parts.append(f"{what} no gradient, and rows were taken in their order")
    return "; ".join(parts)
