"""Finetune: plain training on each task in turn, without memory. The lower bound.
Joint: one training on the data of all tasks together. The upper bound.

``loss = CE(new)``, where every batch of joint is drawn from all tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.methods.method import Batch, Extras, Loss, Method
from gcr.models import Network


@dataclass(frozen=True)
class Finetune(Method):
    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "each task in turn, no memory: the lower bound"

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        logits = net(new.images)
        return Loss(new.cross_entropy(logits), logits.detach())


@dataclass(frozen=True)
class Joint(Finetune):
    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "all tasks at once: the upper bound"
    stages = "all at once"
