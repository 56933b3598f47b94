"""GCR+: GCR's terms on one replay minibatch, an asymmetric softmax, an old network, an EMA that predicts.

``loss = CE(x; C) + keep |h(x) - h_old(x)|^2 + alpha mean_w |h(a) - z|^2 + beta mean_w (CE(a) + CE(b)) / 2
+ gamma mean_w SupCon(a, b)``

x are new examples, a and b a weak and a mild view of the replayed ones; ``|.|^2`` is the sum over classes. C are the
classes of the new batch and those not seen yet, as in ``er_ace.py``: new examples do not push old classes down. Instead
their logits for the classes of the old network are held to what it says (LwF's idea). GCR draws three minibatches for
its terms; this one is twice as large, so a step passes as many images, and the old network the new ones once more.

After each step the network enters the EMA with share ``max(1 / (window m), 1 - decay)``, at most 1, in the m-th step
since a class was last new: the EMA spans the last steps of a task however few these are, and forgets the network that
did not know its classes. Before it does, it becomes the old network. BatchNorm's running statistics are averaged too:
they move by the same minibatches as the weights, and no further pass is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcr.methods.ema import copy_in, held_by, learned_tensors, logits_of_copy, update_ema
from gcr.methods.er_ace import among, note_classes
from gcr.methods.losses import label_loss, label_residual, squared_distance, supervised_contrast, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.models.network import Output
from gcr.settings import BadInput, setting

EMA, OLD = "ema.", "old."
FEW_STEPS = 20  # classes of a task may come over so many; the old network stays what it was before the first


@dataclass(frozen=True)
class GcrPlus(Method):
    """The defaults, but for `decay`, were tuned on validation data (results/gcr-plus-registration.md)."""

    name: ClassVar[str] = "gcr+"
    summary: ClassVar[str] = "GCR's terms on one draw, asymmetric softmax, an old network, an EMA predicts"
    default_selector: ClassVar[str] = "balanced-reservoir"
    predictor: ClassVar[str] = EMA
    unused: ClassVar[frozenset[str]] = frozenset({"statistics"})  # the EMA predicts, with its own

    alpha: float = setting(0.003, "weight of the distance to stored logits", low=0.0, remedy="0 leaves it out")
    beta: float = setting(1.0, "weight of the label term", low=0.0, remedy="0 leaves it out")
    gamma: float = setting(0.1, "weight of the supervised contrastive term", low=0.0, remedy="0 leaves it out")
    keep: float = setting(
        0.02,
        "weight of the distance to the old network on new examples; acts where classes come 20 steps or more apart",
        low=0.0,
        remedy="0 leaves it out",
    )
    decay: float = setting(
        0.999, "EMA decay of the weights", low=0.0, high=1.0, remedy="0: the network itself predicts"
    )
    window: float = setting(
        0.2, "most of the steps since a class was last new that the EMA spans", low=0.001, high=1.0, advanced=True
    )
    softmax: str = setting(
        "own",
        "of new examples: among their batch's own classes and those not seen yet, or all",
        choices=("own", "all"),
        advanced=True,
    )
    temperature: float = setting(0.07, "temperature of the contrastive term", low=1e-6, advanced=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.predicts_by_copy and self.changed("window"):
            raise BadInput(f"window is of the EMA, which decay=0 leaves out, got {self.window}; leave out one of them")

    @property
    def predicts_by_copy(self) -> bool:
        return self.decay > 0

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(views=("weak", "mild")),)

    def replay_size(self, asked: int) -> int:
        return 2 * asked

    def extras(self, net: Network, n_tasks: int) -> Extras:
        copies = [copy for copy, weight in ((EMA, self.decay), (OLD, self.keep)) if weight > 0]
        tensors = {copy + name: t.detach().clone() for copy in copies for name, t in learned_tensors(net).items()}
        seen = torch.zeros(len(net.head.weight), dtype=torch.bool, device=net.head.weight.device)
        steps = torch.zeros((), dtype=torch.int64, device=seen.device)
        return tensors | {"seen": seen, "known": seen.clone(), "steps": steps}  # known: to the old network

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        before = extras["seen"].clone()
        present = note_classes(extras["seen"], new, replay)
        self._begin_classes(net, before, extras)  # before a pass moves BatchNorm's running statistics
        output, *old = net.each(new.images, *(view for batch in replay for view in batch.views))
        logits = among(output.logits, present | ~extras["seen"]) if self.softmax == "own" else output.logits
        value = new.cross_entropy(logits)
        if replay:
            value = value + self._on_replay(replay[0], *old)
            if self.keep > 0:
                value = value + self.keep * self._from_old_network(net, new.images, output.logits, extras)
        return Loss(value, output.logits.detach(), old[0].logits.detach() if old else None)

    def _on_replay(self, batch: Batch, weak: Output, mild: Output) -> Tensor:
        by_label = (label_loss(weak.logits, batch.labels) + label_loss(mild.logits, batch.labels)) / 2
        values = self.alpha * squared_distance(weak.logits, batch.logits) + self.beta * by_label
        if self.gamma > 0:
            features = weak.features.float(), mild.features.float()
            values = values + self.gamma * supervised_contrast(*features, batch.labels, self.temperature)
        return weighted_mean(values, batch.weights)

    def _begin_classes(self, net: Network, before: Tensor, extras: Extras) -> None:
        """Where a class is new, what predicts becomes the old network, and the EMA begins again."""
        came = (extras["seen"] != before).any()
        if self.keep > 0:
            turns = came & (extras["steps"] >= FEW_STEPS)
            old, ema = copy_in(OLD, extras), copy_in(EMA, extras)
            predicts = [ema[name] for name in old] if ema else held_by(net, old)
            update_ema(list(old.values()), predicts, turns.float())
            extras["known"].copy_(torch.where(turns, before, extras["known"]))
        extras["steps"].masked_fill_(came, 0)

    def _from_old_network(self, net: Network, images: Tensor, logits: Tensor, extras: Extras) -> Tensor:
        with torch.no_grad():
            old = logits_of_copy(OLD, net.eval(), images, extras)
        net.train()
        return squared_distance(logits, old.masked_fill(~extras["known"], torch.nan)).mean()

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        distance = torch.where(batch.logits.isnan(), 0.0, logits - batch.logits)
        return 2 * self.alpha * distance + self.beta * label_residual(logits, batch.labels)

    def after_step(self, net: Network, extras: Extras) -> None:
        share = (1 / (self.window * extras["steps"].add_(1))).clamp(1 - self.decay, 1.0)
        if ema := copy_in(EMA, extras):
            update_ema(list(ema.values()), held_by(net, ema), share)

    def note_remembered(self, labels: Tensor, extras: Extras) -> None:
        """They are not new when they are replayed. A network that others trained does not become the old network:
        held to its answers, new classes were learned more slowly on digits."""
        extras["seen"].index_fill_(0, labels, True)
