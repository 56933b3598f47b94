"""GCR: gradient coreset replay (Tiwari et al. 2022).

``loss = CE(new) + alpha * mean_w |h(x') - z'|^2 + beta * mean_w CE(x'', y'') + gamma * mean_w SupCon(x''', y''')``

``|.|^2`` is the mean over classes. Each replay term has its own draw from candidates and kept buffer (x', x'', x'''),
and is weighted by the weights that GradApprox gave (1 for candidates). SupCon contrasts two strong views of the
minibatch. The buffer itself is chosen at every boundary by the selector ``grad-approx`` on the gradients of the
distillation and label terms.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from gcr.models.network import Output
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
        output, *old = self.outputs(net, new, replay)
        value = self.add_replay(new.cross_entropy(output.logits), old, replay)
        return Loss(value, output.logits.detach(), old[0].logits.detach() if old else None)

    def outputs(self, net: Network, new: Batch, replay: tuple[Batch, ...]) -> tuple[Output, ...]:
        """Of the new batch, and of each replay minibatch; the two views of the last lie one behind the other."""
        weak, strong = [old.images for old in replay[:2]], [torch.cat(old.views) for old in replay[2:]]
        return net.each(new.images, *weak, *strong)

    def add_replay(self, value: Tensor, outputs: Sequence[Output], replay: tuple[Batch, ...]) -> Tensor:
        """The loss of new examples plus the three replay terms."""
        if not replay:
            return value
        distil, label, *contrast = replay
        value = value + self.alpha * self.mean(distillation(outputs[0].logits, distil.logits), distil)
        value = value + self.beta * self.mean(label_loss(outputs[1].logits, label.labels), label)
        for batch, output in zip(contrast, outputs[2:], strict=True):
            first, second = (output.features.float() if self.contrast == "features" else output.logits).chunk(2)
            contrasted = supervised_contrast(first, second, batch.labels, self.temperature)
            value = value + self.gamma * self.mean(contrasted, batch)
        return value

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        by_distillation = distillation_residual(logits, batch.logits)
        return self.alpha * by_distillation + self.beta * label_residual(logits, batch.labels)

    def mean(self, values: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(values, batch.weights) if self.normalise == "weights" else (batch.weights * values).mean()
