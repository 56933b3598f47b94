"""iCaRL: incremental classifier and representation learning (Rebuffi et al. 2017).

With q the outputs of the network as it was at the end of the previous task, for every new example and exemplar (x, y)

``loss(x, y) = sum_c BCE(sigmoid(h_c(x)), t_c)``,  ``t_c = sigmoid(q_c(x))`` for classes c of earlier tasks,
``t_c = [c = y]`` for all others

(Algorithm 3), as the mean over the new batch and the exemplars replayed with it, which are normalised together. A
class is predicted by the nearest mean of exemplars (Algorithm 1): ``argmin_c |phi(x) - mu_c|`` with features phi and
means mu of length 1. Under a selector that gives weights, exemplars count by their weights in both places.

A new class is herded from a reservoir of candidates, by default as many in all as the buffer holds, and its exemplars
follow their mean. Algorithm 4 herds from all images of the class. With ``pool=selector`` the candidates are herded
from all images of the task first. The authors' code also mixes exemplars into the images of an epoch, where replay
minibatches are drawn here, and takes means over mirrored exemplars, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gcr.methods.ema import logits_of_copy, saved_tensors
from gcr.methods.losses import weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import BadInput, setting

if TYPE_CHECKING:
    from gcr.augment import Views
    from gcr.memory import Buffer

TINY = 1e-12  # for the mean of a class without exemplars, which is never looked at
TEACHER = "teacher."  # in extras: the parameters and statistics of the network at the end of the previous task


@dataclass(frozen=True)
class Icarl(Method):
    name: ClassVar[str] = "icarl"
    summary: ClassVar[str] = "distils the network of the task before, predicts by the nearest mean of exemplars"
    default_selector: ClassVar[str] = "herding"
    stages = "tasks"

    over_classes: str = setting(
        "sum",
        "an example's loss is the sum over classes (paper), or their mean (authors' code, with lr 2)",
        choices=("sum", "mean"),
    )
    means: str = setting(
        "weighted",
        "exemplars count in their class's mean by the selector's weights, or all alike",
        choices=("weighted", "equal"),
    )
    lengths: str = setting(
        "unit", "features and means are compared at length 1 (paper), or as they are", choices=("unit", "own")
    )

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        head = net.head.weight
        classes = torch.zeros(len(head), dtype=torch.bool, device=head.device)
        return {
            "seen": classes,  # classes met so far
            "earlier": classes.clone(),  # classes of earlier tasks: what the teacher knows
            "means": torch.zeros_like(head, memory_format=torch.contiguous_format),  # [classes, f]
            "has_mean": classes.clone(),
        } | {TEACHER + name: tensor.detach().clone() for name, tensor in saved_tensors(net).items()}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        extras["seen"].index_fill_(0, new.labels, True)
        images = torch.cat([new.images, *(old.images for old in replay)])
        labels = torch.cat([new.labels, *(old.labels for old in replay)])
        b = len(new.labels)
        logits = net(images)
        values = self._values(logits, targets(net, images, labels, extras))
        value = values[:b].mean()
        if replay:
            (old,) = replay
            # Those of this task are not exemplars yet (they are candidates), and the new batches hold them already.
            exemplar = extras["earlier"][old.labels].to(values.dtype)
            share = exemplar.sum() / (b + exemplar.sum())
            value = (1 - share) * value + share * weighted_mean(values[b:], exemplar * old.weights)
        return Loss(value, logits[:b].detach())

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of an example while its class is new: with its label as the target."""
        by_class = logits.sigmoid() - F.one_hot(batch.labels, logits.shape[1])
        return by_class / logits.shape[1] if self.over_classes == "mean" else by_class

    @torch.no_grad()
    def end_stage(
        self, net: Network, memory: Buffer | None, views: Views, extras: Extras, key: tuple[int, int]
    ) -> None:
        """The network becomes the teacher, and exemplars give the means."""
        for name, tensor in saved_tensors(net).items():
            extras[TEACHER + name].copy_(tensor)
        extras["earlier"].copy_(extras["seen"])
        assert memory is not None
        stored = memory.read(memory.filled_rows())
        weights = stored["weight"] if self.means == "weighted" else torch.ones_like(stored["weight"])
        totals = torch.zeros_like(extras["means"], dtype=torch.float64)
        shares = totals.new_zeros(len(totals), 1)
        net.eval()
        for start in range(0, len(weights), 1000):
            part = slice(start, start + 1000)
            features = self._compared(net.features(views.plain(stored["image"][part])).float())
            members = weights[part, None] * F.one_hot(stored["label"][part], len(totals))
            totals += members.T.double() @ features.double()
            shares += members.sum(0).double().unsqueeze(1)
        extras["means"].copy_(F.normalize(totals, dim=1) if self.lengths == "unit" else totals / shares.clamp_min(TINY))
        extras["has_mean"].zero_().index_fill_(0, stored["label"], True)

    def predicts_unseen(self) -> bool:
        return False

    def predictor_state(self, extras: Extras) -> Extras:
        return {name: extras[name] for name in ("means", "has_mean")}

    def predict(self, net: Network, images: Tensor, extras: Extras) -> Tensor:
        """Minus the distance to every class's mean; -inf where a class has no exemplar."""
        if not bool(extras["has_mean"].any()):
            raise BadInput("iCaRL predicts by exemplars, and there are none yet; call end_stage after the first task")
        features = self._compared(net.features(images).float())
        distances = torch.cdist(features, extras["means"], compute_mode="donot_use_mm_for_euclid_dist")
        return (-distances).masked_fill(~extras["has_mean"], -torch.inf)

    def _compared(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) if self.lengths == "unit" else features

    def _values(self, logits: Tensor, goals: Tensor) -> Tensor:
        by_class = F.binary_cross_entropy_with_logits(logits, goals, reduction="none")
        return by_class.mean(1) if self.over_classes == "mean" else by_class.sum(1)


@torch.no_grad()
def targets(net: Network, images: Tensor, labels: Tensor, extras: Extras) -> Tensor:
    """What each output should be: the teacher's for earlier classes, else whether it is the label. [b, classes]"""
    training = net.training
    net.eval()  # the teacher answers with the statistics it has gathered
    said = logits_of_copy(TEACHER, net, images, extras)
    net.train(training)
    return torch.where(extras["earlier"], said.sigmoid(), F.one_hot(labels, said.shape[1]).to(said.dtype))
