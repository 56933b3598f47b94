"""The asymmetric softmax of ER-ACE: new examples compete among some of the classes only (Caccia et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcr.methods.method import Batch


def note_classes(seen: Tensor, new: Batch, replay: Sequence[Batch]) -> Tensor:
    """The classes of the new batch, as a mask [c]. ``seen`` [c] takes them and those of the replay minibatches."""
    present = torch.zeros_like(seen).index_fill_(0, new.labels, True)
    seen.logical_or_(present)
    for old in replay:
        seen.index_fill_(0, old.labels, True)  # of a network that was trained before, with memory given to it
    return present


def among(logits: Tensor, classes: Tensor) -> Tensor:
    """The logits [b, c] with those outside ``classes`` [c] out of the race.

    >>> among(torch.zeros(1, 3), torch.tensor([True, False, True]))
    tensor([[0., -inf, 0.]])
    """
    return logits.masked_fill(~classes, -torch.inf)
