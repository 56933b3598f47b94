"""CLS-ER: two averages of the network teach it, a plastic and a stable one (Arani, Sarfraz and Zonooz 2022).

``loss = CE(new and replay) + reg_weight * mean |h(x') - z'|^2``, with h the network, ``|.|^2`` the mean over classes
and z' the logits of whichever average gives the true class of x' the higher probability. An average moves to ``a
theta_average + (1 - a) theta`` in a share of the steps, the plastic one often, the stable one seldom; in its m-th move
``a = min(1 - 1 / m, decay)``: it begins as a plain mean. The stable one predicts.

Which steps is drawn at random in the paper; here they are spread evenly, from the first step on: step t is one if
``ceil(t rate) > ceil((t - 1) rate)``. The authors' code has ``t + 1`` for m, so that an average that moves seldom keeps
much of the network's random beginning for thousands of steps; on digits it learned nothing. As in their code only
parameters are averaged. Each average keeps batch statistics of its own, from its passes over replay minibatches in
training mode; the network sees the replay minibatch twice, alone for the consistency term and together with the new
batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gcr.methods.losses import distillation, label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class ClsEr(Method):
    """The defaults are the authors' for split CIFAR-10 with 500 remembered examples."""

    name: ClassVar[str] = "cls-er"
    summary: ClassVar[str] = "experience replay taught by a plastic and a stable average of the network"
    unused: ClassVar[frozenset[str]] = frozenset({"statistics"})  # the stable average predicts, with its own

    reg_weight: float = setting(0.15, "weight of the consistency term", low=0.0, remedy="0 leaves it out")
    plastic_rate: float = setting(0.9, "share of the steps that move the plastic average", low=0.0, high=1.0)
    stable_rate: float = setting(0.1, "share of the steps that move the stable average", low=0.001, high=1.0)
    plastic_decay: float = setting(0.999, "what the plastic average keeps of itself in a move", low=0.0, high=1.0)
    stable_decay: float = setting(0.999, "what the stable average keeps of itself in a move", low=0.0, high=1.0)

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        averages = {
            f"{average}.{name}": tensor.detach().clone()
            for average in ("plastic", "stable")
            for name, tensor in net.state_dict().items()
        }
        return averages | {"steps": torch.zeros((), dtype=torch.float64, device=net.head.weight.device)}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        if not replay:
            logits = net(new.images)
            return Loss(F.cross_entropy(logits, new.labels), logits.detach())
        (old,) = replay
        alone, both = net.each(old.images, torch.cat([new.images, old.images]))
        b, r = len(new.labels), len(old.labels)
        logits, old_logits = both.logits.split([b, r])
        value = b / (b + r) * F.cross_entropy(logits, new.labels)
        value = value + r / (b + r) * weighted_mean(label_loss(old_logits, old.labels), old.weights)
        consistency = distillation(alone.logits, self._teacher(net, old, extras))
        return Loss(value + self.reg_weight * weighted_mean(consistency, old.weights), logits.detach())

    @torch.no_grad()
    def after_step(self, net: Network, extras: Extras) -> None:
        steps = extras["steps"].add_(1)
        for average, rate, decay in (
            ("plastic", self.plastic_rate, self.plastic_decay),
            ("stable", self.stable_rate, self.stable_decay),
        ):
            moves = (steps * rate).ceil()
            due = moves > ((steps - 1) * rate).ceil()
            share = torch.where(due, (1 / moves).clamp_min(1 - decay), 0.0).float()  # 1 - a, or no move
            averaged = [extras[f"{average}.{name}"] for name, _ in net.named_parameters()]
            torch._foreach_mul_(averaged, 1 - share)
            torch._foreach_add_(averaged, torch._foreach_mul(list(net.parameters()), share))

    def predictor_state(self, extras: Extras) -> Extras:
        return {name: tensor for name, tensor in extras.items() if name.startswith("stable.")}

    def predict(self, net: Network, images: Tensor, extras: Extras) -> Tensor:
        return _logits("stable", net, images, extras)

    @torch.no_grad()
    def _teacher(self, net: Network, old: Batch, extras: Extras) -> Tensor:
        """For each example the logits of the average that is surer of its label; the plastic one's where they tie."""
        plastic, stable = (_logits(average, net, old.images, extras) for average in ("plastic", "stable"))
        stable_is_surer = label_loss(stable, old.labels) < label_loss(plastic, old.labels)
        return torch.where(stable_is_surer.unsqueeze(1), stable, plastic)


def _logits(average: str, net: Network, images: Tensor, extras: Extras) -> Tensor:
    """What the network says with the parameters and batch statistics of an average; training updates the latter."""
    tensors = {name: extras[f"{average}.{name}"] for name in net.state_dict()}
    logits: Tensor = functional_call(net, tensors, (images,))
    return logits
