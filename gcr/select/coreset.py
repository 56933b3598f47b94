"""What selection takes and gives: a ``Pool`` of examples in, a ``Coreset`` of rows and weights out.

A selector is a frozen dataclass of settings, callable as ``selector(pool, budget, draws) -> Coreset``. It holds no
state and never sees a network; it names the columns of the pool that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gcr.settings import BadInput


@dataclass(frozen=True)
class Pool:
    """Examples to choose from. ``features``, ``residuals`` and ``reducible`` are there when the selector asks for them.

    The last-layer gradient of example i is the outer product of ``residuals[i]`` (the derivative of its replay loss by
    its logits) and ``[features[i]; 1]``.
    """

    labels: Tensor  # [n] int64
    weights: Tensor  # [n] float, >= 0: what each example stands for already
    features: Tensor | None = None  # [n, f]
    residuals: Tensor | None = None  # [n, classes]
    kept: Tensor | None = None  # [n] bool: rows of the buffer as it was; the others are candidates
    tasks: Tensor | None = None  # [n] int64: the task of each example, or the stream that it came in
    reducible: Tensor | None = None  # [n]: cross-entropy by the stored logits less that of now

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Coreset:
    """The chosen ``rows`` of the pool, the ``weights`` they carry from now on, and a ``note`` in words."""

    rows: Tensor  # [budget] int64, unique; ascending, or in the order of choice where that means something (herding)
    weights: Tensor  # [budget] float, positive (0 only where a kept row brought 0)
    note: str = ""
    serves: Tensor | None = None  # [budget] int64: which of several targets each row is matched to


@runtime_checkable
class Selector(Protocol):
    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        """Choose ``budget`` rows (all of them if the pool is smaller). ``draws`` is one uniform per row."""
        ...


def checked(coreset: Coreset, n: int, budget: int, selector: str) -> Coreset:
    """Refuse what a selector must not choose of a pool of ``n`` rows."""
    if not isinstance(coreset, Coreset):
        raise BadInput(f"{selector} must return a Coreset, got {type(coreset).__name__}")
    rows, weights, size = coreset.rows, coreset.weights, min(budget, n)
    if rows.shape != (size,) or rows.dtype != torch.int64 or weights.shape != (size,):
        raise BadInput(
            f"{selector} must choose {size} rows of the pool, int64, with a weight each, got rows {list(rows.shape)} "
            f"of {str(rows.dtype).removeprefix('torch.')} and weights {list(weights.shape)}"
        )
    if len(rows.unique()) < size or int(rows.min()) < 0 or int(rows.max()) >= n:
        raise BadInput(f"{selector} must choose each row once, from 0 to {n - 1}, got {rows.tolist()!r:.60}")
    if not bool(weights.isfinite().all()) or float(weights.min()) < 0 or float(weights.sum()) <= 0:
        raise BadInput(f"{selector} must give finite weights >= 0, not all 0, got {weights.tolist()!r:.60}")
    return coreset


def class_budgets(counts: list[int], budget: int) -> list[int]:
    """Share ``budget`` equally among classes that have ``counts`` examples each.

    What does not divide, and what a small class cannot take, goes to the others, lowest class first; the budget is
    spent whenever there are enough examples.

    >>> class_budgets([5, 5, 5], 10)
    [4, 3, 3]
    >>> class_budgets([1, 5, 5], 10)
    [1, 5, 4]
    """
    shares = [0] * len(counts)
    left = min(budget, sum(counts))
    while left:
        open_classes = [c for c, count in enumerate(counts) if shares[c] < count]
        share = max(left // len(open_classes), 1)
        for c in open_classes:
            given = min(counts[c] - shares[c], share, left)
            shares[c] += given
            left -= given
    return shares


def task_budgets(labels: Tensor, tasks: Tensor, budget: int) -> list[int]:
    """Share ``budget`` equally among tasks, and a task's share among its classes by their numbers of examples.

    One share for each class that occurs, lowest label first.

    >>> task_budgets(torch.tensor([0, 0, 0, 1, 2, 2, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 4)
    [2, 0, 2]
    """
    classes, counts = torch.unique(labels, return_counts=True)
    task_of = {int(label): int(tasks[labels == label][0]) for label in classes}
    members: dict[int, list[int]] = {}
    for place, label in enumerate(classes.tolist()):
        members.setdefault(task_of[label], []).append(place)
    sizes = counts.tolist()
    totals = [sum(sizes[place] for place in places) for places in members.values()]
    shares = [0] * len(sizes)
    for places, total, share in zip(members.values(), totals, class_budgets(totals, budget), strict=True):
        exact = {place: sizes[place] * share / total for place in places}
        for place in places:
            shares[place] = int(exact[place])
        left = share - sum(shares[place] for place in places)
        for place in sorted(places, key=lambda place: shares[place] - exact[place])[:left]:
            shares[place] += 1
    return shares


def rows_by_class(labels: Tensor) -> list[Tensor]:
    """The rows of each class that occurs, lowest label first.

    >>> [rows.tolist() for rows in rows_by_class(torch.tensor([7, 3, 7]))]
    [[1], [0, 2]]
    """
    counts = torch.unique(labels, return_counts=True)[1]
    return list(torch.tensor_split(labels.argsort(stable=True), counts.cumsum(0)[:-1].cpu()))


def choose_per_class(
    pool: Pool, budget: int, choose: Callable[[Tensor, int], Tensor], in_order: bool = False
) -> Coreset:
    """Share the budget equally and take ``choose(rows of a class, its share)``, positions within them; unit weights.

    ``in_order``: rows stay class by class, as they were chosen, and a class without candidates keeps its first.
    """
    classes = rows_by_class(pool.labels)
    budgets = class_budgets([len(rows) for rows in classes], budget)
    chosen = []
    for rows, share in zip(classes, budgets, strict=True):
        nothing_new = in_order and pool.kept is not None and bool(pool.kept[rows].all())
        chosen.append(rows[:share] if nothing_new else rows[choose(rows, share)])
    rows = torch.cat(chosen) if in_order else torch.cat(chosen).sort().values
    return Coreset(rows, torch.ones_like(pool.weights[rows]))
