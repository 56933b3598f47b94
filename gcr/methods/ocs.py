"""OCS: online coreset selection (Yoon et al. 2022).

From every new batch the ``keep`` share of highest ``S + V + tau A`` (equation 5) is trained on and offered to memory:
similarity to the batch's mean gradient, diversity within the batch, affinity with the replayed gradient, all cosines
of last-layer gradients in evaluation mode (``gcr/select/ocs.py`` has the definitions). With M the replayed examples of
earlier tasks, the coreset so far,

``loss = CE(chosen) + replay_weight * mean_w CE(M)``  (equation 7)

and A is the cosine with the weighted mean gradient of M, 0 in the first task. At a task's end the buffer is chosen by
the selector ``ocs`` with the same criteria.

The authors' code passes over a task's batches, which stay the same, as often as a chosen part goes into a batch: 2
times for CIFAR-100 and the mixture of data sets, 10 for rotated MNIST. The last pass is what memory is offered. Here
each batch has one step, as with every method; ``Training(repeats=2)`` takes two in turn, each with its own choice.
Their gradients are those of nearly the whole network, A is with all of memory, and the choice is random in the first
100 batches of a task. At a task's end its rows are drawn at random from each class of what was chosen, and those of
earlier tasks are cut by S + V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gcr.methods.losses import label_loss, label_residual, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.select.ocs import criteria_of, total
from gcr.settings import setting

if TYPE_CHECKING:
    from gcr.augment import Views
    from gcr.memory import Buffer


@dataclass(frozen=True)
class Ocs(Method):
    name: ClassVar[str] = "ocs"
    summary: ClassVar[str] = "online coreset selection: trains on the best part of every batch, and keeps it"
    default_selector: ClassVar[str] = "ocs"
    stages = "tasks"

    # The authors' released settings for Split CIFAR-100: 10 examples out of every 20.
    keep: float = setting(0.5, "share of a new batch that is trained on and offered to memory", low=0.01, high=1.0)
    replay_weight: float = setting(0.5, "weight of the replay term (lambda in the paper)", low=0.0)
    batch_similarity: float = setting(1.0, "multiplier of the cosine with the batch's mean gradient", low=0.0)
    batch_diversity: float = setting(1.0, "multiplier of minus the mean cosine within the batch", low=0.0)
    batch_affinity: float = setting(1000.0, "tau: multiplier of the cosine with the replayed gradient", low=0.0)

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        return {"ended": torch.zeros((), dtype=torch.int64, device=net.head.weight.device)}  # tasks

    @torch.no_grad()
    def choose(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Tensor:
        net.eval()  # as the authors do; and looking at a batch must not count in the running statistics
        outputs = net.each(new.images, *(old.images for old in replay))
        net.train()
        features, residuals = zip(
            *((o.features, label_residual(o.logits, b.labels)) for o, b in zip(outputs, (new, *replay), strict=True)),
            strict=True,
        )
        remembered = total(features[1], residuals[1], _earlier(replay[0], extras)) if replay else None
        similarity, diversity, affinity = criteria_of(features[0], residuals[0], remembered)
        score = self.batch_similarity * similarity + self.batch_diversity * diversity + self.batch_affinity * affinity
        return score.argsort(descending=True, stable=True)[: self.number(len(score))].sort().values

    def number(self, batch: int) -> int:
        """How many of a batch are chosen: at least two, for batch statistics.

        >>> Ocs(keep=0.5).number(32), Ocs(keep=0.1).number(5), Ocs().number(1)
        (16, 2, 1)
        """
        return min(batch, max(2, math.ceil(self.keep * batch)))

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        outputs = net.each(new.images, *(old.images for old in replay))
        logits = outputs[0].logits
        value = new.cross_entropy(logits)
        if replay:
            (old,) = replay
            remembered = weighted_mean(label_loss(outputs[1].logits, old.labels), _earlier(old, extras))
            value = value + self.replay_weight * remembered
        return Loss(value, logits.detach())

    def end_stage(
        self, net: Network, memory: Buffer | None, views: Views, extras: Extras, key: tuple[int, int]
    ) -> None:
        extras["ended"] += 1


def _earlier(old: Batch, extras: Extras) -> Tensor:
    """The weights of examples of earlier tasks; 0 for those of this task, which are candidates."""
    assert old.tasks is not None
    return torch.where(old.tasks < extras["ended"], old.weights, 0.0)
