"""GradApprox (GCR paper, Algorithm 2): the weighted rows whose gradient comes nearest to that of the whole pool.

For each class alone, with budget K / classes, ``L_sub = |sum_pool w g - sum_chosen w' g'|^2 + ridge * |w'|^2`` is
minimised greedily by non-negative matching pursuit over last-layer gradients. The pool's weights scale the target
only; a chosen row's new weight stands alone.

>>> pool = Pool(labels=torch.zeros(3).long(), weights=torch.ones(3),
...             features=torch.zeros(3, 1), residuals=torch.tensor([[1., 0.], [0., 1.], [1., 0.]]))
>>> chosen = GradApprox(ridge=0.0)(pool, budget=2, draws=torch.zeros(3))
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])

Two options go beyond the paper. ``replace`` lowers ``L_sub`` by exchanging rows after the greedy choice
(``refine.py``). ``clip`` keeps outliers from deciding: a gradient longer than ``clip`` times the median of its class
counts with that length only, in the target and as an atom. Matching pursuit otherwise goes for the longest gradients
first, since they both make up the target and promise the largest correlation, and these are often examples that the
network has got wrong, or that are labelled wrong. The weight handed back is that of the unclipped example: with share
s of its length left, a clipped atom of weight w is the example with weight s w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool, rows_by_class
from gcr.select.gradients import LastLayerGradients
from gcr.select.match import match
from gcr.settings import Settings, setting


@dataclass(frozen=True)
class GradApprox(Settings):
    name: ClassVar[str] = "grad-approx"
    summary: ClassVar[str] = "GCR: rows and weights whose gradient matches that of the whole pool, class by class"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "residuals"})

    ridge: float = setting(0.5, "penalty on the squared weights (lambda in the paper)", low=0.0)
    tolerance: float = setting(0.0, "stop a class when its objective falls to this (epsilon in the paper)", low=0.0)
    replace: int = setting(0, "passes of exchanging rows after the greedy choice; 0 is the paper's algorithm", low=0)
    clip: float = setting(0.0, "cut gradients to this many times their class's median length; 0 leaves them", low=0.0)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        assert pool.features is not None
        assert pool.residuals is not None
        gradients = LastLayerGradients(pool.features, pool.residuals)
        if not self.clip:
            return match(gradients, pool.labels, pool.weights, budget, self.ridge, self.tolerance, self.replace)
        share = length_left(gradients, pool.labels, self.clip)
        clipped = LastLayerGradients(pool.features, pool.residuals * share.unsqueeze(1))
        coreset = match(clipped, pool.labels, pool.weights, budget, self.ridge, self.tolerance, self.replace)
        weights = (coreset.weights * share[coreset.rows]).to(pool.weights.dtype)
        return Coreset(coreset.rows, weights, coreset.note)


def length_left(gradients: LastLayerGradients, labels: Tensor, clip: float) -> Tensor:
    """The share of its length that each gradient keeps: ``min(1, clip * median of its class / length)``."""
    lengths = gradients.squared_norms().sqrt()
    share = torch.ones_like(lengths)
    for rows in rows_by_class(labels):
        share[rows] = (clip * lengths[rows].median() / lengths[rows].clamp_min(1e-300)).clamp_max(1)
    # A class whose median is zero keeps its lengths: there is no scale to cut to.
    return torch.where(share > 0, share, 1.0)
