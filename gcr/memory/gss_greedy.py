"""Admission by gradients: GSS-Greedy (Aljundi, Lin, Goujaud and Bengio 2019, Algorithm 2).

A remembered example i carries a score ``s_i``: how much its gradient looked like others when it came. The score of a
new example is ``c = 1 + max_j cos(g, g_j)`` over a few remembered examples j drawn at random, and that of its batch the
same for the mean gradient. While there is room every example enters. When memory is full and the batch's score is
below 1 (its gradient points away from all those drawn), every example of it draws a slot i with probability
proportional to the scores and takes it with probability ``s_i / (s_i + c)``.

Gradients are those of cross-entropy by the last layer, ``g = residual (x) [features; 1]``, whose inner products follow
from the two factors; the authors take the whole network (``gradients="whole"``). As in their code the network is in
evaluation mode and has already been trained on the batch. All examples of a batch decide at once, by the scores from
before it; where two take one slot, the later has it. Examples to compare with are drawn with replacement.

The examples of the first batch, which have nothing to be compared with, get the score 0.1, that of Mammoth. The
authors' 0.1 is a cosine, 1.1 on this scale. So these examples look rare here and tend to stay: their slots are drawn
with an eleventh of the weight that 1.1 would give, and once drawn they give way to an example of score 0.5 with
probability 0.17 instead of 0.69.
Single examples are compared with in Mammoth, too; the authors compare with mean gradients of up to 10 minibatches.
They also scale scores to 0 to 1, lowest to highest, before slots are drawn, and draw each slot once a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcr.memory.buffer import Buffer
from gcr.select import LastLayerGradients
from gcr.settings import Settings, setting

FIRST_SCORE = 0.1  # of examples that came when there was nothing to compare them with; Mammoth's (the authors': 1.1)
FINE = 2**32  # steps of a score, for drawing by scores
TINY = 1e-12  # the length of a gradient that counts as none


@dataclass(frozen=True)
class GssGreedy(Settings):
    """An example enters the more likely the less its gradient looks like those of remembered ones."""

    name: ClassVar[str] = "gss-greedy"
    summary: ClassVar[str] = (
        "no selection: examples enter batch by batch, likelier if their gradients look like no other"
    )

    compared: int = setting(32, "remembered examples that a new batch's gradients are compared with", low=1)
    gradients: str = setting(
        "last-layer",
        "those of the last layer, or of the whole network (authors; slow, and large)",
        choices=("last-layer", "whole"),
    )


class Scores(NamedTuple):
    batch: Tensor  # (): of the batch's mean gradient
    each: Tensor  # [b]


def scores(new: LastLayerGradients, old: LastLayerGradients) -> Scores:
    """``1 + `` the highest cosine to a gradient among ``old``.

    >>> old = LastLayerGradients.of_matrix(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> scores(LastLayerGradients.of_matrix(torch.tensor([[0.0, 3.0], [-1.0, 0.0]])), old).each.tolist()
    [2.0, 1.0]
    """
    lengths = old.squared_norms().sqrt().clamp_min(TINY)
    products = _products(new, old) / lengths
    each = products / new.squared_norms().sqrt().clamp_min(TINY).unsqueeze(1)
    mean_length = _products(new, new).mean().clamp_min(0).sqrt().clamp_min(TINY)
    return Scores(1 + products.mean(0).max() / mean_length, 1 + each.max(1).values)


def rows_to_compare(memory: Buffer, draws: Tensor) -> Tensor:
    """[m] uniforms -> [m] rows of the kept buffer, which must hold something."""
    return (draws * memory.kept).long().minimum(memory.kept - 1)


def offer_by_scores(
    memory: Buffer, batch: dict[str, Tensor], scored: Scores | None, draws: Tensor | None, admitted: Tensor | None
) -> None:
    """Let memory take what it wants of a batch. ``draws`` [b, 2] are a slot and a coin for each example.

    Without scores there was nothing to compare with: examples enter while there is room.
    """
    labels, size = batch["label"], memory.capacity
    admitted = torch.ones_like(labels, dtype=torch.bool) if admitted is None else admitted
    score, replaced = torch.full_like(labels, FIRST_SCORE, dtype=torch.float64), torch.full_like(labels, size)
    if scored is not None and draws is not None:
        score = scored.each
        slot, coin = draws.double().unbind(1)
        remembered = memory.columns["score"][:size].double()
        below = (remembered * FINE).long().cumsum(0)  # whole numbers: a GPU adds fractions in any order
        drawn = torch.searchsorted(below, (slot * below[-1]).long(), right=True).clamp_max(size - 1)
        theirs = remembered[drawn]
        enters = (scored.batch < 1) & (coin * (theirs + score) < theirs)
        replaced = torch.where(enters, drawn, size)
    memory.put(batch | {"score": score}, memory.free_slots(admitted, replaced), admitted)


def _products(some: LastLayerGradients, others: LastLayerGradients) -> Tensor:
    """[n, m] inner products of two sets of gradients, in float64."""
    residuals = some.residuals.double() @ others.residuals.double().T
    return residuals * (some.features.double() @ others.features.double().T + some.bias)
