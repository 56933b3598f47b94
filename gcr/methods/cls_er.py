"""CLS-ER: two EMA copies of the network act as teachers, a plastic and a stable one (Arani, Sarfraz, Zonooz 2022).

``loss = CE(new and replay) + reg_weight * mean |h(x') - z'|^2``, with h the network, ``|.|^2`` the mean over classes
and z' the logits of the EMA copy that gives the true class of x' the higher probability. An update of a copy is ``a
theta_ema + (1 - a) theta``, the plastic one's frequent, the stable one's rare. Its m-th update has ``a = min(1 - 1 / m,
decay)``: it begins as a plain mean. The stable copy predicts.

The paper draws the steps with an update at random. Here they are spread evenly from the first step on: step t updates
if ``ceil(t rate) > ceil((t - 1) rate)``. The authors' code has ``t + 1`` for m: a rarely updated copy keeps much of the
initial weights for thousands of steps, and on digits it learned nothing. As in their code, only parameters are
averaged. Each copy has its own BatchNorm statistics, from passes over replay minibatches in training mode. The network
sees the replay minibatch twice: alone for the consistency term, and together with the new batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.methods.ema import logits_of_copy, saved_tensors, update_ema
from gcr.methods.losses import distillation, label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class ClsEr(Method):
    """The defaults are the authors' for split CIFAR-10 with 500 remembered examples."""

    name: ClassVar[str] = "cls-er"
    summary: ClassVar[str] = "experience replay with two EMA copies of the network as teachers"
    predictor: ClassVar[str] = "stable."
    unused: ClassVar[frozenset[str]] = frozenset({"statistics"})  # the stable copy predicts, with its own

    reg_weight: float = setting(0.15, "weight of the consistency term", low=0.0, remedy="0 leaves it out")
    plastic_rate: float = setting(0.9, "share of the steps that update the plastic EMA copy", low=0.0, high=1.0)
    stable_rate: float = setting(0.1, "share of the steps that update the stable EMA copy", low=0.001, high=1.0)
    plastic_decay: float = setting(0.999, "EMA decay of the plastic copy", low=0.0, high=1.0)
    stable_decay: float = setting(0.999, "EMA decay of the stable copy", low=0.0, high=1.0)

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        copies = {
            f"{copy}.{name}": tensor.detach().clone()
            for copy in ("plastic", "stable")
            for name, tensor in saved_tensors(net).items()
        }
        return copies | {"steps": torch.zeros((), dtype=torch.float64, device=net.head.weight.device)}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        if not replay:
            logits = net(new.images)
            return Loss(new.cross_entropy(logits), logits.detach())
        (old,) = replay
        alone, both = net.each(old.images, torch.cat([new.images, old.images]))
        b, r = len(new.labels), len(old.labels)
        logits, old_logits = both.logits.split([b, r])
        value = b / (b + r) * new.cross_entropy(logits)
        value = value + r / (b + r) * weighted_mean(label_loss(old_logits, old.labels), old.weights)
        consistency = distillation(alone.logits, self._teacher(net, old, extras))
        value = value + self.reg_weight * weighted_mean(consistency, old.weights)
        return Loss(value, logits.detach(), old_logits.detach())

    @torch.no_grad()
    def after_step(self, net: Network, extras: Extras) -> None:
        steps = extras["steps"].add_(1)
        for copy, rate, decay in (
            ("plastic", self.plastic_rate, self.plastic_decay),
            ("stable", self.stable_rate, self.stable_decay),
        ):
            updates = (steps * rate).ceil()
            due = updates > ((steps - 1) * rate).ceil()
            share = torch.where(due, (1 / updates).clamp_min(1 - decay), 0.0).float()  # 1 - a, or no update
            averaged = [extras[f"{copy}.{name}"] for name, _ in net.named_parameters()]
            update_ema(averaged, list(net.parameters()), share)

    @torch.no_grad()
    def _teacher(self, net: Network, old: Batch, extras: Extras) -> Tensor:
        """For each example the logits of the copy that is surer of its label; the plastic one's where they tie."""
        plastic, stable = (logits_of_copy(f"{copy}.", net, old.images, extras) for copy in ("plastic", "stable"))
        stable_is_surer = label_loss(stable, old.labels) < label_loss(plastic, old.labels)
        return torch.where(stable_is_surer.unsqueeze(1), stable, plastic)
