"""DER and DER++: dark experience replay (Buzzega et al. 2020).

DER: ``loss = CE(new) + alpha * mean |h(x') - z'|^2``, with z' the logits stored with x' and ``|.|^2`` the mean over
classes. DER++ adds ``beta * CE(x'', y'')`` on a second, independent draw. What the GCR paper's tables call DER is
DER++.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcr.methods.losses import distillation, distillation_residual, label_loss, label_residual, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class Der(Method):
    name: ClassVar[str] = "der"
    summary: ClassVar[str] = "dark experience replay: distil the logits stored with remembered examples"

    alpha: float = setting(0.3, "weight of the distillation term", low=0.0, remedy="0 leaves it out")

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        outputs = net.each(new.images, *(old.images for old in replay))
        logits = outputs[0].logits
        value = new.cross_entropy(logits)
        if replay:
            value = value + self.alpha * _distil(outputs[1].logits, replay[0])
        return Loss(value, logits.detach(), outputs[1].logits.detach() if replay else None)

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        return self.alpha * distillation_residual(logits, batch.logits)


@dataclass(frozen=True)
class DerPlusPlus(Der):
    name: ClassVar[str] = "der++"
    summary: ClassVar[str] = "DER and cross-entropy on a second draw of remembered examples"

    alpha: float = setting(0.1, "weight of the distillation term", low=0.0, remedy="0 leaves it out")
    beta: float = setting(1.0, "weight of the label term", low=0.0, remedy="0 leaves it out")

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(), Replay())

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        outputs = net.each(new.images, *(old.images for old in replay))
        logits = outputs[0].logits
        value = new.cross_entropy(logits)
        if replay:
            distil, label = replay
            value = value + self.alpha * _distil(outputs[1].logits, distil)
            value = value + self.beta * weighted_mean(label_loss(outputs[2].logits, label.labels), label.weights)
        return Loss(value, logits.detach(), outputs[1].logits.detach() if replay else None)

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().residual(logits, batch) + self.beta * label_residual(logits, batch.labels)


def _distil(logits: Tensor, old: Batch) -> Tensor:
    return weighted_mean(distillation(logits, old.logits), old.weights)
