"""GCR: gradient coreset replay (Tiwari et al. 2022).

``loss = CE(new) + alpha * mean_w |h(x') - z'|^2 + beta * mean_w CE(x'', y'') + gamma * mean_w SupCon(x''', y''')``

``|.|^2`` is the mean over classes. Each replay term has its own draw from candidates and kept buffer (x', x'', x'''),
and is weighted by the weights that GradApprox gave (1 for candidates). SupCon contrasts two strong views of the
minibatch. The buffer itself is chosen at every boundary by the selector ``grad-approx`` on the gradients of the
distillation and label terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.methods.losses import (
    distillation,
    distillation_residual,
    label_loss,
    label_residual,
    supervised_contrast,
    weighted_mean,
)
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class Gcr(Method):
    name: ClassVar[str] = "gcr"
    summary: ClassVar[str] = (
        "gradient coreset replay: weighted DER++ with supervised contrast, buffer chosen by GradApprox"
    )
    default_selector: ClassVar[str] = "grad-approx"

    alpha: float = setting(0.1, "weight of the distillation term", low=0.0, remedy="0 leaves it out")
    beta: float = setting(1.0, "weight of the label term", low=0.0, remedy="0 leaves it out")
    gamma: float = setting(0.1, "weight of the supervised contrastive term", low=0.0, remedy="0 leaves it out")
    temperature: float = setting(0.07, "temperature of the contrastive term", low=1e-6, advanced=True)
    normalise: str = setting(
        "weights",
        "divide a weighted term by the sum of its minibatch's weights (reference code) or by its size",
        choices=("weights", "size"),
        advanced=True,
    )
    contrast: str = setting(
        "logits",
        "contrast L2-normalised features (paper) or logits (reference code)",
        choices=("features", "logits"),
        advanced=True,
    )

    @property
    def replays(self) -> tuple[Replay, ...]:
        weak = (Replay(), Replay())
        return (*weak, Replay(views=("strong", "strong"))) if self.gamma > 0 else weak

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        weak, strong = [batch.images for batch in replay[:2]], [torch.cat(batch.views) for batch in replay[2:]]
        output, *old = net.each(new.images, *weak, *strong)
        value = new.cross_entropy(output.logits)
        if replay:
            distil, label, *contrast = replay
            value = value + self.alpha * self.mean(distillation(old[0].logits, distil.logits), distil)
            value = value + self.beta * self.mean(label_loss(old[1].logits, label.labels), label)
            for batch, both in zip(contrast, old[2:], strict=True):  # its two views lie one behind the other
                first, second = (both.features.float() if self.contrast == "features" else both.logits).chunk(2)
                contrasted = supervised_contrast(first, second, batch.labels, self.temperature)
                value = value + self.gamma * self.mean(contrasted, batch)
        return Loss(value, output.logits.detach(), old[0].logits.detach() if old else None)

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        by_distillation = distillation_residual(logits, batch.logits)
        return self.alpha * by_distillation + self.beta * label_residual(logits, batch.labels)

    def mean(self, values: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(values, batch.weights) if self.normalise == "weights" else (batch.weights * values).mean()
