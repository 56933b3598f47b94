"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al. 2022).

``loss = CE(new; C_new) + CE(replay; C_old)``, where ``CE(.; C)`` is cross-entropy with its softmax over the classes C
alone. C_new are the classes of the new batch: others get no gradient from it, so new classes do not push the features
of old ones away. C_old are all classes seen so far. The paper's equation leaves classes not seen yet out of both
(``unseen="absent"``). By default they take part in both, so that their logits are pushed down (``"rivals"``).

The authors' code, and Mammoth's, has no mask for replayed examples, which is the same, and for new ones goes by index:
with C_new take part all classes from the highest one seen, itself included, on. So that class is a rival even where
the batch has none of it, and an unseen class below it is none.

The head is linear as everywhere here; theirs is a cosine of features and weights, times 10. The mask is there from the
first step on and replay from the second, without regard to tasks, as in the authors' code. In Mammoth both begin with
the second task by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class ErAce(Method):
    name: ClassVar[str] = "er-ace"
    summary: ClassVar[str] = "experience replay; new examples compete among the classes of their batch alone"

    unseen: str = setting(
        "rivals",
        "classes not seen yet: rivals in every softmax (nearly the authors' code), or absent from it (paper)",
        choices=("rivals", "absent"),
    )

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        head = net.head.weight
        return {"seen": torch.zeros(len(head), dtype=torch.bool, device=head.device)}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        outputs = net.each(new.images, *(old.images for old in replay))
        logits, seen = outputs[0].logits, extras["seen"]
        present = note_classes(seen, new, replay)
        others = torch.zeros_like(seen) if self.unseen == "absent" else ~seen
        value = new.cross_entropy(among(logits, present | others))
        for old, output in zip(replay, outputs[1:], strict=True):
            value = value + weighted_mean(label_loss(among(output.logits, seen | others), old.labels), old.weights)
        return Loss(value, logits.detach(), outputs[1].logits.detach() if replay else None)

    def note_remembered(self, labels: Tensor, extras: Extras) -> None:
        extras["seen"].index_fill_(0, labels, True)


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
