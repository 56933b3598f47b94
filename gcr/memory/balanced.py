"""A class-balanced reservoir: memory shared equally between classes, whatever their order and numbers.

Every example draws a priority when it comes. Within a class the lowest priorities stay, so that each example of a
class has the same chance. When memory is full, the largest class gives way. No candidate pool and no boundaries are
needed. (Chrysakis and Moens 2020 reach the same shares with a draw per replacement.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.memory.buffer import Buffer
from gcr.settings import Settings

BELOW_ONE = 1 - 2**-24  # the largest float32: priorities are stored as such


@dataclass(frozen=True)
class BalancedReservoir(Settings):
    """Every example of a class has the same chance to be kept, and classes have equal shares."""

    name: ClassVar[str] = "balanced-reservoir"
    summary: ClassVar[str] = "no selection: a random sample of every class, equal shares, batch by batch"


def offer_balanced(memory: Buffer, batch: dict[str, Tensor], draws: Tensor, admitted: Tensor | None = None) -> None:
    """Let memory take what it keeps of a batch; ``draws`` [b] are priorities in [0, 1). Fixed shapes, no host reads.

    Of remembered and new rows those with the lowest (rank in their class, priority) stay.
    """
    size, labels = memory.capacity, batch["label"]
    admitted = torch.ones_like(labels, dtype=torch.bool) if admitted is None else admitted
    in_use = torch.cat([torch.arange(size, device=labels.device) < memory.kept, admitted])
    new = draws.to(memory.columns["score"]).clamp_max(BELOW_ONE)
    priority = torch.cat([memory.columns["score"][:size], new]).double()
    rank = ranks_in_class(torch.cat([memory.columns["label"][:size], labels]), priority, in_use)
    order = torch.where(in_use, rank + priority, torch.inf).argsort(stable=True)
    stays = in_use & torch.zeros_like(in_use).index_fill_(0, order[:size], True)
    enters = stays[size:]
    free = (~stays[:size]).cumsum(0)  # slots that nothing stays in, counted
    slot = torch.searchsorted(free, enters.cumsum(0)).clamp_max(size)
    memory.put(batch | {"score": new}, torch.where(enters, slot, size), admitted, distinct=True)


def ranks_in_class(labels: Tensor, priority: Tensor, in_use: Tensor) -> Tensor:
    """The place of each row among those of its class in use, by priority, which is in [0, 1): [n].

    >>> labels, priority = torch.tensor([7, 3, 7, 3]), torch.tensor([0.5, 0.4, 0.1, 0.9])
    >>> ranks_in_class(labels, priority, torch.ones(4, dtype=torch.bool)).tolist()
    [1, 0, 0, 1]
    """
    labels = torch.where(in_use, labels, -1)
    order = (labels + priority).argsort(stable=True)
    sorted_labels = labels[order]
    first = torch.searchsorted(sorted_labels, sorted_labels)
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels), device=labels.device) - first
    return rank
