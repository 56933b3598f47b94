"""MIR: maximally interfered retrieval (Aljundi et al. 2019).

Of ``search * replay_batch`` different examples of memory (of all, if there are fewer), those are replayed that the
coming step would hurt most. With the virtual step ``v = theta - virtual_lr * grad CE(new)``, an example scores ``l(v)
- l(theta)``, the rise of its cross-entropy (the paper's s_MI-1), or ``|h_v(x) - h(x)|^2``, how far its logits move.
The highest scores are retrieved, and ``loss = CE(new) + CE(retrieved)``.

The authors' code replays from the second task on and draws from examples of earlier tasks alone. Here the present
task's examples are among those drawn, from the second step on: a stream does not say where tasks begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class Mir(Method):
    name: ClassVar[str] = "mir"
    summary: ClassVar[str] = "maximally interfered retrieval: replay what the coming step would hurt most"
    unused: ClassVar[frozenset[str]] = frozenset({"sampling"})

    search: int = setting(5, "examples drawn from memory for every one retrieved, replay_batch of them", low=1)
    criterion: str = setting(
        "loss", "what the virtual step must raise: the loss, or the distance of logits", choices=("loss", "logits")
    )
    virtual_lr: float = setting(
        0.05, "learning rate of the virtual step; on the command line that of training if not given", low=0.0
    )

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(kind="distinct"),)

    def replay_size(self, asked: int) -> int:
        return self.search * asked

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        logits = net(new.images)
        value = new.cross_entropy(logits)
        if replay:
            (drawn,) = replay
            gradients = net.gradients(value, list(_trained(net).values()), retain_graph=True)
            scores = self.interference(net, gradients, drawn).masked_fill(drawn.weights == 0, -torch.inf)
            rows = scores.argsort(descending=True, stable=True)[: len(scores) // self.search]
            old = label_loss(net(drawn.images[rows]), drawn.labels[rows])
            value = value + weighted_mean(old, drawn.weights[rows])
        return Loss(value, logits.detach())

    @torch.no_grad()
    def interference(self, net: Network, gradients: Sequence[Tensor | None], drawn: Batch) -> Tensor:
        """The score of each example: [b]. Weights and running statistics of ``net`` stay as they are."""
        weights = _trained(net)
        moved = {
            name: weight if gradient is None else weight - self.virtual_lr * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        statistics = {name: buffer.clone() for name, buffer in net.named_buffers()}
        before, after = (functional_call(net, at | statistics, (drawn.images,)) for at in (weights, moved))
        if self.criterion == "logits":
            distance: Tensor = (after - before).square().sum(1)
            return distance
        return label_loss(after, drawn.labels) - label_loss(before, drawn.labels)


def _trained(net: Network) -> dict[str, Tensor]:
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
