"""Density-aware coresets (PDAC; Gao et al. 2025, arXiv 2511.09487): the rows where the data are densest.

The paper splits the error of a model trained on the buffer into regions and finds that samples of high probability
density do most to reduce it. So it estimates the joint density p(x, y) of every sample with a projected Gaussian
mixture (features projected to few dimensions, Gaussians there) and gives the densest samples to the buffer.

Only the paper's abstract and summaries of it were at hand here. What they leave open is read like this:

- the projection is onto the leading principal axes of the pool's features, pool weights counted;
- each class has a mixture of its own, fitted by EM, so ``p(x, y) = p(y) sum_k share_k N(z; mean_k, covariance_k)``;
- every class gets the same budget. p(y) is one factor for a whole class, so it never decides and is left out;
- the densest rows are taken, none drawn at random; they have weight 1, as the paper's buffer is not weighted.

The streaming variant (SPDAC) keeps its mixture from batch to batch. A selector has no state, so this one
fits again each time.

>>> pool = Pool(labels=torch.zeros(5).long(), weights=torch.ones(5),
...             features=torch.tensor([[-9.0], [-0.2], [0.0], [0.1], [8.0]]))
>>> Density(components=1)(pool, budget=3, draws=torch.zeros(5)).rows.tolist()
[1, 2, 3]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings, setting

# Least variance in any direction, as a share of the pool's mean variance; and where the pool has none at all.
RELATIVE_FLOOR = 1e-6
ABSOLUTE_FLOOR = 1e-12


@dataclass(frozen=True)
class Density(Settings):
    """The rows of highest estimated density in every class, as many from each; the lowest row on ties."""

    name: ClassVar[str] = "density"
    summary: ClassVar[str] = "PDAC: the densest rows of every class under a projected Gaussian mixture, unit weights"
    needs: ClassVar[frozenset[str]] = frozenset({"features"})

    dimensions: int = setting(10, "principal axes that features are projected to", low=1)
    components: int = setting(2, "Gaussians in the mixture of a class", low=1)
    iterations: int = setting(20, "rounds of EM", low=0)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        assert pool.features is not None
        points = project(pool.features.double(), pool.weights.double(), self.dimensions)
        floor = RELATIVE_FLOOR * float(points.var(0, correction=0).mean()) + ABSOLUTE_FLOOR

        def choose(rows: Tensor, share: int) -> Tensor:
            own = points[rows]
            mixture = fit(own, _shares(pool.weights[rows].double()), self.components, self.iterations, floor)
            return log_density(own, mixture).argsort(descending=True, stable=True)[:share]

        return choose_per_class(pool, budget, choose)


class Mixture(NamedTuple):
    """Gaussians and the share that each has of the whole."""

    log_shares: Tensor  # [m], -inf for a component that nothing belongs to
    means: Tensor  # [m, d]
    factors: Tensor  # [m, d, d]: lower Cholesky factors of the covariances


def project(features: Tensor, weights: Tensor, dimensions: int) -> Tensor:
    """``features`` [n, f] about their weighted mean, on the leading ``dimensions`` principal axes (or f, if fewer).

    >>> project(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.ones(2), 1).abs()
    tensor([[1.],
            [1.]])
    """
    shares = _shares(weights)
    centred = features - shares @ features
    if dimensions >= features.shape[1]:
        return centred
    axes: Tensor = torch.linalg.eigh(centred.T @ (shares[:, None] * centred)).eigenvectors  # ascending variance
    return centred @ axes[:, -dimensions:]


def fit(points: Tensor, shares: Tensor, components: int, iterations: int, floor: float) -> Mixture:
    """EM for a mixture over ``points`` [n, d], each of which counts as its share (they sum to 1).

    It starts from equal slices of the points along their first principal axis. Farthest points would be as
    deterministic a start, but would give outliers components of their own.
    """
    n = len(points)
    along = project(points, shares, 1)[:, 0]
    order = along.argsort(stable=True)
    before = shares[order].cumsum(0) - 0.5 * shares[order]  # the share of points below, up to a point's own middle
    slices = (before * components).long().clamp(0, components - 1)
    belongs = torch.zeros(n, components, dtype=points.dtype, device=points.device)
    belongs[order, slices] = 1.0
    mixture = maximise(points, shares, belongs, floor)
    for _ in range(iterations):
        belongs = _log_joint(points, mixture).softmax(1)
        mixture = maximise(points, shares, belongs, floor)
    return mixture


def maximise(points: Tensor, shares: Tensor, belongs: Tensor, floor: float) -> Mixture:
    """The M step, given how much every point belongs to every component [n, m] (rows sum to 1).

    Covariances are posterior modes under the inverse-Wishart prior of Fraley and Raftery (2007): d + 2 points' worth
    of the class's own covariance, scaled to m parts of its volume. Without it a component on a single point would
    have no width and endless density, and the outliers would be the "densest" rows.
    """
    n, d = points.shape
    m = belongs.shape[1]
    counts = n * shares[:, None] * belongs  # [n, m], in points
    totals = counts.sum(0)
    means = (counts.T @ points) / totals.clamp_min(torch.finfo(points.dtype).tiny)[:, None]
    away = points[:, None] - means  # [n, m, d]
    scatter = torch.einsum("nm,nmd,nme->mde", counts, away, away)
    centred = points - shares @ points
    prior = centred.T @ (shares[:, None] * centred) / m ** (2.0 / d)
    strength = d + 2.0
    covariances = (scatter + strength * prior) / (totals + strength)[:, None, None]
    covariances = covariances + floor * torch.eye(d, dtype=points.dtype, device=points.device)
    return Mixture((totals / totals.sum()).log(), means, torch.linalg.cholesky(covariances))


def log_density(points: Tensor, mixture: Mixture) -> Tensor:
    """The log density of ``points`` [n, d] under the mixture: [n].

    >>> normal = Mixture(torch.zeros(1), torch.zeros(1, 1), torch.ones(1, 1, 1))
    >>> log_density(torch.zeros(1, 1), normal)
    tensor([-0.9189])
    """
    return _log_joint(points, mixture).logsumexp(1)


def _log_joint(points: Tensor, mixture: Mixture) -> Tensor:
    """``log(share_k N(z_i; mean_k, covariance_k))``: [n, m]."""
    away = (points[:, None] - mixture.means).permute(1, 2, 0)  # [m, d, n]
    scaled: Tensor = torch.linalg.solve_triangular(mixture.factors, away, upper=False)
    distances = scaled.square().sum(1).T  # [n, m], Mahalanobis, squared
    log_volumes = mixture.factors.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = 0.5 * points.shape[1] * math.log(2.0 * math.pi)
    return mixture.log_shares - constant - log_volumes - 0.5 * distances


def _shares(weights: Tensor) -> Tensor:
    """``weights`` scaled to sum 1; equal where all are 0."""
    total = weights.sum()
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), 1.0 / len(weights))
