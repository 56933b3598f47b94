"""Finetune: plain training on each task in turn, without memory. The lower bound.

``loss = CE(new)``
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
