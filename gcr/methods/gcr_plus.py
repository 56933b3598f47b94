"""GCR+: GCR's loss, an asymmetric softmax on new examples, and an EMA of the weights that predicts.

``loss = CE(new; C) + alpha * mean_w |h(x') - z'|^2 + beta * mean_w CE(x'', y'') + gamma * mean_w SupCon(x''', y''')``

C are the classes of the new batch and those not seen yet, as in ``er_ace.py``; the other terms are those of ``gcr.py``,
SupCon on features. After each step the network enters the EMA with share ``max(1 / (window m), 1 - decay)``, at most 1,
in the m-th step since a class was last new. So the EMA spans the last steps of a task however few these are, and
forgets the network that did not know its classes. ``window=1, restart=never`` is the usual warm start.

The EMA covers BatchNorm's running statistics too. They move by the same minibatches as the weights, so that both
averages are over the same steps, and no further pass is needed. CLS-ER's copies take theirs from passes over replay
minibatches instead: a forward pass a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.methods.asymmetric import among, note_classes
from gcr.methods.ema import learned_tensors, logits_of_copy, update_ema
from gcr.methods.gcr import Gcr
from gcr.methods.losses import distillation
from gcr.methods.method import Batch, Extras, Loss, Replay
from gcr.models import Network
from gcr.settings import setting

EMA = "ema."


@dataclass(frozen=True)
class GcrPlus(Gcr):
    """The defaults are start values that have not been tuned."""

    name: ClassVar[str] = "gcr+"
    summary: ClassVar[str] = "GCR's loss, asymmetric softmax on new examples, an EMA of the weights predicts"
    default_selector: ClassVar[str] = "balanced-reservoir"
    predictor: ClassVar[str] = EMA
    unused: ClassVar[frozenset[str]] = frozenset({"statistics"})  # the EMA predicts, with its own

    decay: float = setting(0.999, "EMA decay of the weights", low=0.0, high=1.0, remedy="0 leaves the EMA out")
    window: float = setting(
        0.2, "most of the steps since a class was last new that the EMA spans", low=0.001, high=1.0, advanced=True
    )
    restart: str = setting(
        "new classes", "when the EMA's steps are counted anew", choices=("new classes", "never"), advanced=True
    )
    contrast: str = setting(
        "features", "contrast L2-normalised features or logits", choices=("features", "logits"), advanced=True
    )
    softmax: str = setting(
        "own",
        "of new examples: among their batch's own classes and those not seen yet, or all",
        choices=("own", "all"),
        advanced=True,
    )
    teacher: float = setting(
        0.0, "weight of the distance to the EMA's logits, next to the stored ones", low=0.0, advanced=True
    )
    label_view: str = setting("weak", "views in the label term", choices=("weak", "strong"), advanced=True)

    @property
    def replays(self) -> tuple[Replay, ...]:
        distil, _, *contrast = super().replays
        return (distil, Replay(views=(self.label_view,)), *contrast)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        device = net.head.weight.device
        copy = {EMA + name: tensor.detach().clone() for name, tensor in learned_tensors(net).items()}
        seen = torch.zeros(len(net.head.weight), dtype=torch.bool, device=device)
        return copy | {"seen": seen, "steps": torch.zeros((), dtype=torch.int64, device=device)}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        output, *old = self.outputs(net, new, replay)
        seen, n_seen = extras["seen"], extras["seen"].sum()
        present = note_classes(seen, new, replay)
        if self.restart == "new classes":
            extras["steps"].masked_fill_(seen.sum() > n_seen, 0)
        logits = among(output.logits, present | ~seen) if self.softmax == "own" else output.logits
        value = self.add_replay(new.cross_entropy(logits), old, replay)
        if replay and self.teacher > 0:
            by_ema = distillation(old[0].logits, self._teach(net, replay[0].images, extras))
            value = value + self.teacher * self.mean(by_ema, replay[0])
        return Loss(value, output.logits.detach(), old[0].logits.detach() if old else None)

    def after_step(self, net: Network, extras: Extras) -> None:
        share = (1 / (self.window * extras["steps"].add_(1))).clamp(1 - self.decay, 1.0)
        current = learned_tensors(net)
        update_ema([extras[EMA + name] for name in current], list(current.values()), share)

    def predictor_state(self, extras: Extras) -> Extras:
        return {name: tensor for name, tensor in extras.items() if name.startswith(EMA)}

    def predict(self, net: Network, images: Tensor, extras: Extras) -> Tensor:
        return logits_of_copy(EMA, net, images, extras)

    @torch.no_grad()
    def _teach(self, net: Network, images: Tensor, extras: Extras) -> Tensor:
        """In evaluation mode: in training mode the EMA's running statistics would be those of replay alone."""
        logits = logits_of_copy(EMA, net.eval(), images, extras)
        net.train()
        return logits
