"""The terms that replay losses are made of. Each gives one value per example; ``weighted_mean`` puts them together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each example: [b, classes], [b] -> [b]."""
    return F.cross_entropy(logits, labels, reduction="none")


def reducible_loss(stored: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """``label_loss`` by the stored logits less that by these: [b, classes] twice, [b] -> [b].

    Stored logits are NaN for classes that came later; these had no part in it.
    """
    return label_loss(stored.masked_fill(stored.isnan(), -torch.inf), labels) - label_loss(logits, labels)


def label_residual(logits: Tensor, labels: Tensor) -> Tensor:
    """Derivative of ``label_loss`` by the logits."""
    return logits.softmax(1) - F.one_hot(labels, logits.shape[1])


def distillation(logits: Tensor, stored: Tensor) -> Tensor:
    """Squared distance to the stored logits, as the mean over classes: [b, classes] twice -> [b].

    Stored logits are NaN for classes that came later; these do not count.
    """
    difference, known = _difference(logits, stored)
    return difference.square().sum(1) / known


def squared_distance(logits: Tensor, stored: Tensor) -> Tensor:
    """The same, as the sum over classes."""
    return _difference(logits, stored)[0].square().sum(1)


def distillation_residual(logits: Tensor, stored: Tensor) -> Tensor:
    """Derivative of ``distillation`` by the logits."""
    difference, known = _difference(logits, stored)
    return 2 * difference / known.unsqueeze(1)


def _difference(logits: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """``logits - stored``, 0 where nothing was stored, and how many were: [b]."""
    known = ~stored.isnan()
    return torch.where(known, logits - stored, 0.0), known.sum(1)


def supervised_contrast(first: Tensor, second: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) of two views of each example: [b, d] twice -> [b].

    All 2b views are anchors. For anchor i, with positives P(i) the other views of its class and A(i) all other views,
    ``-1/|P(i)| * sum_p log(exp(z_i.z_p / t) / sum_a exp(z_i.z_a / t))`` on L2-normalised embeddings. An example's
    value is the sum over its two views.
    """
    embeddings = F.normalize(torch.cat([first, second]), dim=1)
    similarity = embeddings @ embeddings.T / temperature
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    log_share = similarity - torch.logsumexp(similarity.masked_fill(itself, -torch.inf), 1, keepdim=True)
    both = labels.repeat(2)
    positive = (both.unsqueeze(0) == both.unsqueeze(1)) & ~itself  # never empty: the other view is there
    anchors = -(log_share * positive).sum(1) / positive.sum(1)
    return anchors[: len(labels)] + anchors[len(labels) :]


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """``sum(w v) / sum(w)``; zero, with zero gradient, when all weights are zero.

    >>> weighted_mean(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0]))
    tensor(2.)
    >>> weighted_mean(torch.tensor([1.0, 5.0]), torch.zeros(2))
    tensor(0.)
    """
    return (weights * values).sum() / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
