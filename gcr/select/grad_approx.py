"""GradApprox (GCR paper, Algorithm 2): the weighted rows whose gradient comes nearest to that of the whole pool.

For each class alone, with budget K / classes, ``L_sub = |sum_pool w g - sum_chosen w' g'|^2 + ridge * |w'|^2`` is
minimised greedily by non-negative matching pursuit over last-layer gradients. The pool's weights scale the target
only (but with ``atoms="weighted"``); a chosen row's new weight stands alone.

>>> pool = Pool(labels=torch.zeros(3).long(), weights=torch.ones(3),
...             features=torch.zeros(3, 1), residuals=torch.tensor([[1., 0.], [0., 1.], [1., 0.]]))
>>> chosen = GradApprox(ridge=0.0)(pool, budget=2, draws=torch.zeros(3))
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])

Two options go beyond the paper. ``replace`` lowers ``L_sub`` by exchanging rows after the greedy choice
(``swap.py``). ``trim`` keeps outliers out of memory: the longest gradients of each class count in the target but
are not chosen. Matching pursuit otherwise goes for them first, since they make up most of the target and promise the
largest correlation; and they belong to examples that the network has got wrong, among them all that are labelled
wrong.

``power`` tempers them instead: every residual d keeps its direction and has length ``|d| ** power`` (0 stays 0), in the
target and among the rows alike. At 1 nothing changes, at 0 hard and easy examples weigh the same; herding, which sets
residuals aside, lies beyond. ``ridge`` and ``trim`` see the tempered lengths. ``shrink`` draws the fitted weights to
the mean of their class: ``(1 - shrink) w + shrink mean(w)``.

Two ablations separate the value of rows and of weights. ``rows="random"`` takes those that
``class-balanced`` would take and fits their weights; ``weights="unit"`` keeps the rows that match and not the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, class_budgets, rows_by_class, task_budgets
from gcr.select.gradients import LastLayerGradients
from gcr.select.matching import match
from gcr.select.omp_released import match_released
from gcr.settings import BadInput, Settings, setting


@dataclass(frozen=True)
class GradApprox(Settings):
    name: ClassVar[str] = "grad-approx"
    summary: ClassVar[str] = "GCR: rows and weights whose gradient matches that of the whole pool, class by class"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "residuals"})

    ridge: float = setting(0.5, "penalty on the squared weights (lambda in the paper)", low=0.0)
    tolerance: float = setting(
        0.0, "stop a class when its objective falls to this (epsilon in the paper)", low=0.0, advanced=True
    )
    shares: str = setting(
        "class",
        "equal shares of the buffer for classes (paper), or for tasks, online for streams, each chosen alone, by the"
        " pool's numbers inside (reference code)",
        choices=("class", "task"),
        advanced=True,
    )
    negative: str = setting(
        "excluded",
        "weights below 0: excluded from the solution (paper), or their rows dropped, and redrawn with weight 1"
        " (reference code)",
        choices=("excluded", "dropped"),
        advanced=True,
    )
    atoms: str = setting(
        "plain",
        "gradients to choose from: as they are (paper), or scaled by the weights of before, which the new ones replace"
        " (reference code)",
        choices=("plain", "weighted"),
        advanced=True,
    )
    replace: int = setting(
        0, "passes of exchanging rows after the greedy choice; 0 is the paper's algorithm", low=0, advanced=True
    )
    trim: float = setting(
        0.0, "share of each class, the longest gradients, that is not chosen", low=0.0, high=0.9, advanced=True
    )
    power: float = setting(
        1.0, "power of the residuals' lengths; 1: as they are, 0: all alike", low=0.0, high=1.0, advanced=True
    )
    shrink: float = setting(
        0.0, "share of the way from fitted weights to the mean of their class", low=0.0, high=1.0, advanced=True
    )
    rows: str = setting(
        "matched",
        "those that match the gradient best, or random ones of every class",
        choices=("matched", "random"),
        advanced=True,
    )
    weights: str = setting(
        "fitted",
        "of the chosen rows: those that match the gradient, or all 1",
        choices=("fitted", "unit"),
        advanced=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negative == "dropped" and (
            given := self.changed("tolerance", "replace", "trim", "power", "shrink", "rows")
        ):
            raise BadInput(
                f"{given} is not part of the released matching (negative=dropped); "
                "add --set selector.negative=excluded or use --variant paper"
            )
        if self.weights == "unit" and self.shrink:
            raise BadInput("shrink draws fitted weights together, but weights=unit makes all 1; leave out one of them")

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        assert pool.features is not None
        assert pool.residuals is not None
        residuals, weights = tempered(pool.residuals, self.power), pool.weights
        if self.atoms == "weighted":
            residuals, weights = residuals * weights.unsqueeze(1), torch.ones_like(weights)
        gradients = LastLayerGradients(pool.features, residuals)
        labels, tasks = pool.labels, pool.tasks if self.shares == "task" else None
        if tasks is not None:  # a class that came in two streams is two
            labels = torch.stack([tasks, labels]).unique(dim=1, return_inverse=True)[1]
        classes = rows_by_class(labels)
        budgets = class_budgets([len(rows) for rows in classes], budget)
        if tasks is not None:
            budgets = task_budgets(labels, tasks, budget)
        barred = longest(gradients, classes, self.trim, budgets) if self.trim else None
        if self.rows == "random":
            barred = not_drawn(draws if barred is None else draws + barred, classes, budgets)
        if self.negative == "dropped":
            chosen = match_released(gradients, classes, budgets, weights, self.ridge, draws)
        else:
            chosen = match(
                gradients, labels, weights, budget, self.ridge, self.tolerance, self.replace, barred, budgets
            )
        if self.weights == "unit":
            return replace(chosen, weights=torch.ones_like(chosen.weights))
        if self.shrink:
            chosen = shrunk(chosen, labels, self.shrink)
        fitted = self.atoms == "plain" and not self.shrink
        return chosen if fitted else with_weights_of_whole_classes(chosen, pool, classes, budgets)


def tempered(residuals: Tensor, power: float) -> Tensor:
    """Rows of the same directions and of lengths to this power; a row of zeros stays: [n, c].

    >>> tempered(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 0.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    if power == 1:
        return residuals
    lengths = torch.linalg.vector_norm(residuals.double(), dim=1, keepdim=True)
    scale = torch.where(lengths > 0, lengths, 1.0) ** (power - 1)
    return residuals.double() * scale


def shrunk(chosen: Coreset, labels: Tensor, share: float) -> Coreset:
    """Each weight moved by this share of its distance to the mean over the chosen rows of its class."""
    weights = chosen.weights.clone()
    for own in rows_by_class(labels[chosen.rows]):
        weights[own] += share * (weights[own].mean() - weights[own])
    return replace(chosen, weights=weights)


def with_weights_of_whole_classes(chosen: Coreset, pool: Pool, classes: list[Tensor], budgets: list[int]) -> Coreset:
    """Where a class is wholly kept there is nothing to fit, and its weights stay."""
    whole = torch.zeros_like(pool.weights, dtype=torch.bool)
    for rows, share in zip(classes, budgets, strict=True):
        whole[rows] = share == len(rows)
    return replace(chosen, weights=torch.where(whole[chosen.rows], pool.weights[chosen.rows], chosen.weights))


def longest(gradients: LastLayerGradients, classes: list[Tensor], trim: float, budgets: list[int]) -> Tensor:
    """The share ``trim`` of each class with the longest gradients, less where its budget needs them: [n] bool."""
    lengths = gradients.squared_norms()
    barred = torch.zeros_like(lengths, dtype=torch.bool)
    for rows, needed in zip(classes, budgets, strict=True):
        n_barred = min(int(trim * len(rows)), len(rows) - needed)
        barred[rows[lengths[rows].argsort(descending=True, stable=True)[:n_barred]]] = True
    return barred


def not_drawn(draws: Tensor, classes: list[Tensor], budgets: list[int]) -> Tensor:
    """All rows but those of smallest draw in each class, as many as its budget: [n] bool.

    >>> not_drawn(torch.tensor([0.9, 0.1, 0.5, 0.8]), [torch.tensor([0, 1, 2]), torch.tensor([3])], [1, 1])
    tensor([ True, False,  True, False])
    """
    barred = torch.ones_like(draws, dtype=torch.bool)
    for rows, share in zip(classes, budgets, strict=True):
        barred[rows[draws[rows].argsort(stable=True)[:share]]] = False
    return barred
