"""A-GEM: averaged gradient episodic memory (Chaudhry et al. 2019).

``loss = CE(new)``, with gradient g, and one constraint instead of GEM's many: the gradient r of the mean CE over a
replay minibatch. Where ``g . r < 0`` the step goes along ``g~ = g - (g . r) / (r . r) r``, so that ``g~ . r = 0``.

Memory is a reservoir (known as A-GEM-R), so that the minibatch may hold examples of the present task; the paper's holds
earlier tasks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gcr.methods.finetune import Finetune
from gcr.methods.flat_gradients import Direction, parts, vectors
from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Replay
from gcr.models import Network


@dataclass(frozen=True)
class AGem(Finetune):  # its loss; memory only corrects the direction
    name: ClassVar[str] = "a-gem"
    summary: ClassVar[str] = "averaged GEM: no step that raises the loss on a minibatch of remembered examples"

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)

    def project(
        self,
        gradients: list[Tensor | None],
        parameters: Sequence[nn.Parameter],
        net: Network,
        replay: tuple[Batch, ...],
        extras: Extras,
        stage: int,
    ) -> list[Tensor | None]:
        if not replay:
            return gradients
        (old,) = replay
        remembered = weighted_mean(label_loss(net(old.images), old.labels), old.weights)
        reference = net.gradients(remembered, parameters)
        return project_on(gradients, reference)


def project_on(gradients: Direction, reference: Direction) -> list[Tensor | None]:
    """``gradients`` without what goes against ``reference``."""
    both = (gradients, reference)
    g, r = vectors(both)
    slope = g @ r
    against = torch.where(slope < 0, -slope / (r @ r), 0.0)
    return parts(torch.addcmul(g, r, against), both)
