"""Bilevel coresets (Borsos, Mutny and Krause 2020): rows such that a model fitted to them serves the whole pool.

Their problem (2) is ``min_w L(theta*(w))`` with ``theta*(w) = argmin_theta sum_i w_i l_i(theta)``, few ``w_i`` not
zero, and their Algorithm 1 adds a row at a time. Here the model is their tractable proxy, kernel ridge regression of
one-hot labels y. With w the weights, p the pool's own weights (sum 1) and K the kernel scaled to a mean diagonal of
1:

- inner problem: ``sum_i w_i |K_i a - y_i|^2 + ridge * tr(a^T K a)``. By the representer theorem a is zero off the
  chosen rows S, and there ``a_S = (ridge / w + K_SS)^-1 y_S``;
- outer loss: ``L(w) = sum_j p_j |r_j|^2``, the squared residuals ``r = K_S a_S - y`` over the whole pool;
- implicit gradient: ``dL/dw_i = -2 <(C P r)_i, r_i>`` with ``P = diag(p)`` and
  ``C = (K - K_S (ridge / w + K_SS)^-1 K_S^T) / ridge``, for chosen rows and, at weight 0, for all others.

Why: in feature space ``theta = A^-1 sum_i w_i x_i y_i^T`` with ``A = ridge I + sum_i w_i x_i x_i^T``, so a little
more of w_i moves theta by ``-A^-1 x_i r_i^T``, and C is ``X A^-1 X^T`` written with the kernel (Woodbury).

Each step adds the row of most negative derivative with weight 1 and then takes a few projected gradient steps on the
weights of all chosen rows. As in the paper the whole pool is one problem: classes share no fixed budget.

The authors' code for continual learning has another proxy: logistic regression with a neural tangent kernel of the
images, ridge 1e-3, fitted by L-BFGS. It begins with a random row, looks for each further one among 200 random rows
(CIFAR-10: 600), and takes one Adam step on the weights before each. Chosen rows of a task get weight 1: fitted weights
only guide the choice.

>>> pool = Pool(labels=torch.tensor([0, 0, 0, 1, 1]), weights=torch.ones(5),
...             features=torch.tensor([[1.0], [1.1], [0.9], [-1.0], [-1.2]]))
>>> Bilevel()(pool, budget=2, draws=torch.zeros(5)).rows.tolist()
[1, 4]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool
from gcr.settings import Settings, setting

# The projection keeps weights at or above this (a row enters with 1), so that every chosen row is replayed.
SMALLEST_WEIGHT = 1e-3
# Derivatives this close, relatively, are a tie: equal rows differ in the last bits of a matrix product.
TIE = 1e-9


@dataclass(frozen=True)
class Bilevel(Settings):
    """Rows and weights by greedy bilevel optimisation; the weights are scaled to the total of the pool's weights.

    A pool that fits into the budget is kept with the weights it has. Memory is O(n^2) for n rows: the kernel. A step
    with k rows chosen costs O(n^2) for the new row and O(n k c + k^3) for c classes.
    """

    name: ClassVar[str] = "bilevel"
    summary: ClassVar[str] = "rows and weights on which a kernel proxy, once fitted, has least error over the pool"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    ridge: float = setting(
        0.01, "penalty of the proxy's fit, against rows of weight 1 and mean kernel value 1", low=1e-8
    )
    kernel: str = setting(
        "linear", "the proxy: linear last layer with bias, or rbf with median bandwidth", choices=("linear", "rbf")
    )
    weight_steps: int = setting(2, "outer gradient steps on the weights after each added row", low=0)
    step: float = setting(0.3, "largest change of a weight in one outer gradient step", low=0.0)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        assert pool.features is not None
        old_weights = pool.weights.double()
        if not bool((old_weights > 0).any()):  # a pool that stands for nothing is as good as uniform
            old_weights = torch.ones_like(old_weights)
        if budget >= len(pool):
            rows = torch.arange(len(pool), device=pool.labels.device)
            return Coreset(rows, _positive(old_weights, pool.weights))
        labels = torch.unique(pool.labels, return_inverse=True)[1]
        problem = Problem(
            proxy_kernel(pool.features.double(), self.kernel),
            torch.nn.functional.one_hot(labels).double(),
            old_weights / old_weights.sum(),
            self.ridge,
            budget,
        )
        weights = old_weights.new_ones(0)
        here, step, refused = problem.evaluate(weights), self.step, 0
        for _ in range(budget):
            problem.add(here.gradient)
            weights = torch.cat([weights, weights.new_ones(1)])
            here = problem.evaluate(weights)
            for _ in range(self.weight_steps):
                moved, there = descend(problem, weights, here, step)
                # A step that raises the loss is refused and halves the next; one that lowers it lengthens the next.
                if there.loss < here.loss:
                    weights, here, step = moved, there, min(2.0 * step, self.step)
                else:
                    refused, step = refused + 1, 0.5 * step
        rows = torch.tensor(problem.rows, device=pool.labels.device)
        order = rows.argsort()
        scaled = weights * (old_weights.sum() / weights.sum())
        note = f"{refused} of {budget * self.weight_steps} weight steps refused" if refused else ""
        return Coreset(rows[order], _positive(scaled[order], pool.weights), note)


class Outer(NamedTuple):
    """The outer loss at given weights, and its implicit gradient."""

    loss: float
    gradient: Tensor  # [n]: by the weight of every row of the pool; at weight 0 for rows not chosen


class Problem:
    """The bilevel problem over one pool, for a growing set of chosen rows.

    Next to the columns ``K_S`` it keeps ``K P K_S``, so that the loss and the gradient need no product with all of K.
    """

    def __init__(self, kernel: Tensor, targets: Tensor, pool_weights: Tensor, ridge: float, capacity: int) -> None:
        self.kernel, self.targets, self.pool_weights, self.ridge = kernel, targets, pool_weights, ridge
        self.rows: list[int] = []
        # One chosen row's column of K (and of K P K) is one row here: growing by a row leaves slices contiguous.
        self._columns = kernel.new_zeros(capacity, len(kernel))
        self._outer_columns = kernel.new_zeros(capacity, len(kernel))
        self._outer_targets = kernel @ (pool_weights[:, None] * targets)  # K P y

    def add(self, gradient: Tensor) -> None:
        """Choose the row whose weight lowers the loss fastest, the lowest of those that tie."""
        open_gradient = gradient.clone()
        open_gradient[self.rows] = torch.inf
        best = open_gradient.min()
        row = int(torch.nonzero(open_gradient <= best + TIE * best.abs())[0])
        k = len(self.rows)
        self.rows.append(row)
        self._columns[k] = self.kernel[row]
        self._outer_columns[k] = self.kernel @ (self.pool_weights * self.kernel[row])

    def evaluate(self, weights: Tensor) -> Outer:
        """Solve the inner problem for the ``weights`` of the chosen rows; give the outer loss and its gradient."""
        k = len(self.rows)
        columns, outer_columns = self._columns[:k], self._outer_columns[:k]  # [k, n] each
        # (ridge / w + K_SS)^-1 = R (ridge + R K_SS R)^-1 R with R = diag(sqrt(w)): no division by a small weight.
        root = weights.sqrt()[:, None]
        system = root * columns[:, self.rows] * root.T
        system.diagonal().add_(self.ridge)
        factor = torch.linalg.cholesky(system)
        solution = root * torch.cholesky_solve(root * self.targets[self.rows], factor)  # a_S: [k, classes]
        residuals = columns.T @ solution - self.targets  # r
        pulled = outer_columns.T @ solution - self._outer_targets  # K P r
        explained = columns.T @ (root * torch.cholesky_solve(root * pulled[self.rows], factor))
        gradient = (-2.0 / self.ridge) * ((pulled - explained) * residuals).sum(1)
        loss = (self.pool_weights[:, None] * residuals.square()).sum()
        return Outer(float(loss), gradient)


def descend(problem: Problem, weights: Tensor, here: Outer, step: float) -> tuple[Tensor, Outer]:
    """One projected gradient step on the outer loss: the new weights and the loss there.

    ``step`` is how far the weight of steepest derivative moves: derivatives are of the order 1 / ridge at first and
    vanish as the fit improves, so a rate would suit no stage.
    """
    slope = here.gradient[problem.rows]
    steepest = slope.abs().max().clamp_min(torch.finfo(slope.dtype).tiny)
    moved = (weights - step * slope / steepest).clamp_min(SMALLEST_WEIGHT)
    return moved, problem.evaluate(moved)


def proxy_kernel(features: Tensor, kind: str) -> Tensor:
    """The kernel [n, n] of float64 ``features``, mean diagonal 1: ``<x, x'> + 1``, or a Gaussian of median bandwidth.

    >>> proxy_kernel(torch.tensor([[0.0], [2.0]]), "linear")
    tensor([[0.3333, 0.3333],
            [0.3333, 1.6667]])
    """
    if kind == "linear":
        products = features @ features.T + 1.0
        return products / products.diagonal().mean()
    squares = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = squares[squares > 0]
    return torch.exp(-squares / apart.median()) if len(apart) else torch.ones_like(squares)


def _positive(weights: Tensor, like: Tensor) -> Tensor:
    """``weights`` in the type of ``like``, none below ``SMALLEST_WEIGHT`` of their mean."""
    return weights.clamp_min(SMALLEST_WEIGHT * float(weights.mean())).to(like)
