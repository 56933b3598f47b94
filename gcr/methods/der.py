"""DER and DER++: dark experience replay (Buzzega et al. 2020).

DER: ``loss = CE(new) + alpha * mean |h(x') - z'|^2``, with z' the logits stored with x'. DER++ adds ``beta * CE(x'',
y'')`` on a second, independent draw. What the GCR paper's tables call DER is DER++.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from gcr.methods.losses import distillation, distillation_residual, label_loss, label_residual, weighted_mean
from gcr.methods.method import Batch, Loss
from gcr.models import Network
from gcr.settings import Settings, setting


@dataclass(frozen=True)
class Der(Settings):
    name: ClassVar[str] = "der"
    summary: ClassVar[str] = "dark experience replay: distil the logits stored with remembered examples"
    default_selector: ClassVar[str] = "reservoir"
    sees_all_tasks: ClassVar[bool] = False

    alpha: float = setting(0.1, "weight of the distillation term", low=0.0, remedy="0 leaves it out")

    @property
    def replays(self) -> tuple[tuple[str, ...], ...]:
        return (("weak",),)

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...]) -> Loss:
        logits = net(new.images)
        value = F.cross_entropy(logits, new.labels)
        if replay:
            old = replay[0]
            value = value + self.alpha * weighted_mean(distillation(net(old.images), old.logits), old.weights)
        return Loss(value, logits.detach())

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        return self.alpha * distillation_residual(logits, batch.logits)


@dataclass(frozen=True)
class DerPlusPlus(Der):
    name: ClassVar[str] = "der++"
    summary: ClassVar[str] = "DER and cross-entropy on a second draw of remembered examples"

    beta: float = setting(0.5, "weight of the label term", low=0.0, remedy="0 leaves it out")

    @property
    def replays(self) -> tuple[tuple[str, ...], ...]:
        return (("weak",), ("weak",))

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...]) -> Loss:
        value, logits = super().loss(net, new, replay)
        if replay:
            old = replay[1]
            value = value + self.beta * weighted_mean(label_loss(net(old.images), old.labels), old.weights)
        return Loss(value, logits)

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().residual(logits, batch) + self.beta * label_residual(logits, batch.labels)
