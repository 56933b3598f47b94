"""OCS: rows that stand for the pool, differ from each other and agree with the buffer. Chosen rows have weight 1.

Yoon et al., "Online Coreset Selection for Rehearsal-based Continual Learning" (ICLR 2022), Definitions 1 to 3. With
last-layer gradients g over the N rows of the pool, a row b is ranked by the sum of three criteria:

- similarity ``S(b) = cos(g_b, mean of all g)``;
- diversity ``V(b) = -1 / (N - 1) * sum over p != b of cos(g_b, g_p)``;
- affinity ``A(b) = cos(g_b, mean g of the kept rows)``, times tau; 0 when the buffer is empty.

The criteria look at the whole pool; the best rows are then taken class by class, as many of each. The authors' code
takes as many of each class, too, but those of the latest task at random, and those of earlier ones by S + V among
themselves. The cosine with a gradient of length zero is 0. Every sum over rows is one product of the two factors of
the gradients, so no matrix of pairs is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from gcr.select.coreset import Coreset, Pool, choose_per_class
from gcr.settings import Settings, setting


@dataclass(frozen=True)
class Ocs(Settings):
    """The best rows of every class by similarity + diversity + tau * affinity.

    >>> pool = Pool(
    ...     labels=torch.zeros(3).long(),
    ...     weights=torch.ones(3),
    ...     features=torch.zeros(3, 1),
    ...     residuals=torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.5]]),
    ...     kept=torch.tensor([False, False, True]),
    ... )
    >>> Ocs(diversity=0, affinity=0)(pool, 1, torch.zeros(3)).rows.tolist()
    [1]
    >>> Ocs()(pool, 1, torch.zeros(3)).rows.tolist()
    [2]
    """

    name: ClassVar[str] = "ocs"
    summary: ClassVar[str] = "rows of each class that are representative, diverse and agree with the buffer"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "residuals", "kept"})

    similarity: float = setting(1.0, "multiplier of the cosine with the pool's mean gradient", low=0.0)
    diversity: float = setting(1.0, "multiplier of minus the mean cosine with the other gradients", low=0.0)
    # the authors' released settings for Split CIFAR-100; they take 10 for its imbalanced form
    affinity: float = setting(1000.0, "tau: multiplier of the cosine with the kept rows' mean gradient", low=0.0)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        similarity, diversity, affinity = criteria(pool)
        score = self.similarity * similarity + self.diversity * diversity + self.affinity * affinity
        return choose_per_class(pool, budget, lambda rows, k: score[rows].argsort(descending=True, stable=True)[:k])


def criteria(pool: Pool) -> tuple[Tensor, Tensor, Tensor]:
    """Similarity, diversity and affinity of every row: three times [n], float64."""
    assert pool.features is not None
    assert pool.residuals is not None
    kept = None if pool.kept is None else total(pool.features, pool.residuals, pool.kept)
    return criteria_of(pool.features, pool.residuals, kept)


def criteria_of(features: Tensor, residuals: Tensor, remembered: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The three criteria among some gradients, given as factors; affinity is with the gradient ``remembered``."""
    residuals, inputs = residuals.double(), with_bias(features)
    # g_i = residuals[i] (x) inputs[i], hence g_i / |g_i| = the product of both scaled to length 1; zero stays zero
    units = normalize(residuals, dim=1, eps=1e-300), normalize(inputs, dim=1, eps=1e-300)
    similarity = along(units, direction(residuals.T @ inputs))
    to_others = along(units, units[0].T @ units[1]) - units[0].square().sum(1)
    diversity = -to_others / max(len(residuals) - 1, 1)
    affinity = torch.zeros_like(similarity) if remembered is None else along(units, direction(remembered))
    return similarity, diversity, affinity


def total(features: Tensor, residuals: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of gradients given as factors, a [classes, f + 1] matrix."""
    return (weights.double()[:, None] * residuals.double()).T @ with_bias(features)


def with_bias(features: Tensor) -> Tensor:
    return pad(features.double(), (0, 1), value=1.0)


def along(units: tuple[Tensor, Tensor], gradient: Tensor) -> Tensor:
    """Inner products of all unit gradients with one gradient, a [classes, f + 1] matrix: -> [n]."""
    return ((units[1] @ gradient.T) * units[0]).sum(1)


def direction(gradient: Tensor) -> Tensor:
    """Scaled to length 1; zero stays zero."""
    return normalize(gradient.flatten(), dim=0, eps=1e-300).view_as(gradient)
