"""A class-balanced reservoir: memory shared equally between classes, whatever their order and numbers.

Every example draws a priority when it comes. Within a class the lowest priorities stay, so that each example of a
class has the same chance. When memory is full, the largest class gives way. No candidate pool and no boundaries are
needed. (Chrysakis and Moens 2020 reach the same shares with a draw per replacement.)

With ``evict="loss"`` priorities decide how many rows of a class stay and whether a new one takes part, with the same
chance as before. Of old rows and new ones that take part, those of lowest loss go, and the priorities that stay are
dealt out among the rows that stay. The idea is the loss-aware reservoir of Buzzega et al. (2020, "Rethinking experience
replay"), who draw what goes by balance and loss together. A loss is the cross-entropy over all classes in training mode
when the example came, and whenever a step has replayed it since (``Loss.replayed``).

With ``evict="herding"`` the priorities of a class are dealt out again at the end of every task or stream, in the order
in which herding picks its rows: what it picks last goes first. How many rows of a class stay, and the chance of new
ones, are as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.memory.buffer import Buffer
from gcr.settings import Settings, setting

BELOW_ONE = 1 - 2**-24  # the largest float32: priorities are stored as such


@dataclass(frozen=True)
class BalancedReservoir(Settings):
    """Every example of a class has the same chance to be kept, and classes have equal shares."""

    name: ClassVar[str] = "balanced-reservoir"
    summary: ClassVar[str] = "no selection: a random sample of every class, equal shares, batch by batch"

    evict: str = setting(
        "random",
        "what goes when memory is full, of the largest class: a random example, that of lowest loss, or that which"
        " herding picked last at the end of the task or stream before",
        choices=("random", "loss", "herding"),
        advanced=True,
    )


def offer_balanced(
    memory: Buffer,
    batch: dict[str, Tensor],
    draws: Tensor,
    admitted: Tensor | None = None,
    losses: Tensor | None = None,
) -> None:
    """Let memory take what it keeps of a batch; ``draws`` [b] are priorities in [0, 1). Fixed shapes, no host reads.

    Of remembered and new rows those with the lowest (rank in their class, priority) stay. With ``losses`` [b] of the
    batch, as many of a class stay, but those of highest loss.
    """
    size, labels = memory.capacity, batch["label"]
    admitted = torch.ones_like(labels, dtype=torch.bool) if admitted is None else admitted
    in_use = torch.cat([torch.arange(size, device=labels.device) < memory.kept, admitted])
    new = draws.to(memory.columns["score"]).clamp_max(BELOW_ONE)
    priority = torch.cat([memory.columns["score"][:size], new]).double()
    classes = torch.cat([memory.columns["label"][:size], labels])
    rank = ranks_in_class(classes, priority, in_use)
    order = torch.where(in_use, rank + priority, torch.inf).argsort(stable=True)
    stays = in_use & torch.zeros_like(in_use).index_fill_(0, order[:size], True)
    if losses is not None:
        took_part = torch.cat([in_use[:size], stays[size:]])
        loss = torch.cat([memory.columns["loss"][:size], losses.to(memory.columns["loss"])])
        stays, priority = keep_high_losses(classes, priority, stays, took_part, loss)
        memory.columns["score"][:size] = priority[:size].to(new)
        batch, new = batch | {"loss": loss[size:]}, priority[size:]
    enters = stays[size:]
    free = (~stays[:size]).cumsum(0)  # slots that nothing stays in, counted
    slot = torch.searchsorted(free, enters.cumsum(0)).clamp_max(size)
    memory.put(batch | {"score": new}, torch.where(enters, slot, size), admitted, distinct=True)


def keep_high_losses(
    labels: Tensor, priority: Tensor, stays: Tensor, took_part: Tensor, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the rows of a class that ``took_part``, those of highest loss, as many as ``stays`` has; and new priorities,
    which are for these rows what they were for those that ``stays``: [n] each."""
    sure = loss.double().neg().exp().clamp_max(BELOW_ONE)  # in [0, 1), and lower where the loss is higher
    of_class = torch.where(stays, labels, torch.iinfo(labels.dtype).max).sort().values
    share = torch.searchsorted(of_class, labels, right=True) - torch.searchsorted(of_class, labels)
    kept = took_part & (ranks_in_class(labels, sure, took_part) < share)
    before, after = (
        torch.where(mask, labels + key, torch.inf).argsort(stable=True)  # class by class: places correspond
        for mask, key in ((stays, priority), (kept, sure))
    )
    return kept, torch.empty_like(priority).index_copy_(0, after, priority[before])


def deal_priorities(memory: Buffer, order: Tensor) -> None:
    """Give the lowest priority of each class to its first row in ``order``, a permutation of the rows in use."""
    labels, score = memory.columns["label"][: len(order)], memory.columns["score"]
    by_priority = (labels + score[: len(order)].double()).argsort(stable=True)
    by_class = order[labels[order].argsort(stable=True)]
    score[by_class] = score[by_priority]


def update_losses(memory: Buffer, rows: Tensor, losses: Tensor) -> None:
    """New losses [n] of some rows [n]; the highest where a row occurs twice, as a GPU writes in any order."""
    column = memory.columns["loss"]
    latest = torch.full_like(column, -torch.inf).scatter_reduce_(0, rows, losses.to(column), "amax")
    column.copy_(torch.where(latest > -torch.inf, latest, column))


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
