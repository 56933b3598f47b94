"""ER: experience replay (Ratcliff 1990; Riemer et al. 2019 in its present form), and with other choices of memory
GSS-Greedy and bilevel coresets.

One forward pass over new batch and replay minibatch together, ``loss = (b CE(new) + r CE(replay)) / (b + r)``, or two
passes (``forward="separate"``), ``loss = CE(new) + CE(replay)``. The replay term is a weighted mean, so that the
setting ``selector=grad-approx`` gives ER + GCR of the paper's supplement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network
from gcr.settings import setting


@dataclass(frozen=True)
class Er(Method):
    name: ClassVar[str] = "er"
    summary: ClassVar[str] = "experience replay: cross-entropy on new and remembered examples"

    forward: str = setting(
        "together", "new and replayed examples in one forward pass, or separate ones", choices=("together", "separate")
    )

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        if not replay:
            logits = net(new.images)
            return Loss(new.cross_entropy(logits), logits.detach())
        (old,) = replay
        b, r = len(new.labels), len(old.labels)
        if self.forward == "together":
            logits, old_logits = net(torch.cat([new.images, old.images])).split([b, r])
            new_share, old_share = b / (b + r), r / (b + r)
        else:
            logits, old_logits = (output.logits for output in net.each(new.images, old.images))
            new_share, old_share = 1.0, 1.0
        new_term = new_share * new.cross_entropy(logits)
        old_term = old_share * weighted_mean(label_loss(old_logits, old.labels), old.weights)
        return Loss(new_term + old_term, logits.detach(), old_logits.detach())


@dataclass(frozen=True)
class Gss(Er):
    """GSS-Greedy: replay from memory of diverse gradients (Aljundi, Lin, Goujaud and Bengio 2019).

    What is remembered is decided batch by batch by the policy ``gss-greedy``: an example enters the more likely the
    less its gradient looks like those of remembered ones, ``c = 1 + max_j cos(g, g_j)``. One step a batch, on new and
    replayed examples together, as in Mammoth. The authors' scripts go over a batch 3 times on MNIST and 10 times on
    CIFAR-10 (``repeats``), each time with a step on the batch and, once memory holds something, one on replayed
    examples.
    """

    name: ClassVar[str] = "gss"
    summary: ClassVar[str] = "experience replay of examples admitted for gradients that look like no other"
    default_selector: ClassVar[str] = "gss-greedy"


@dataclass(frozen=True)
class Bilevel(Er):
    """Replay from a bilevel coreset (Borsos, Mutny and Krause 2020), weighted as the coreset says.

    At every boundary the selector ``bilevel`` chooses rows and weights by ``min_w L(theta*(w))``: those on which a
    kernel proxy, once fitted, has least error over old buffer and candidates.

    The authors' code for continual learning gives every task an equal share of memory: it chooses from all examples of
    the task, and cuts the rows of earlier tasks to their first ones. Replay has no weights, but a tuned factor, and
    takes all of memory in every step. That for streams merges coresets slot by slot. Here one problem over the old
    buffer and a reservoir of candidates knows no shares of tasks.
    """

    name: ClassVar[str] = "bilevel"
    summary: ClassVar[str] = "experience replay from a weighted buffer chosen by bilevel optimisation"
    default_selector: ClassVar[str] = "bilevel"
