"""GEM: gradient episodic memory (Lopez-Paz and Ranzato 2017).

``loss = CE(new)``, with gradient g, and for every past task k the gradient g_k of the mean CE over what memory keeps
of it. If ``g . g_k < 0`` for any k, the step goes along ``g~ = G^T v + g`` instead (G has the rows g_k), where v solves
the paper's dual with the margin of its code, ``min_v 1/2 v^T G G^T v + (G g)^T v`` subject to ``v >= margin``. With
``v = margin + z`` this is the point nearest to ``g + margin * sum_k g_k`` that has ``g~ . g_k >= 0`` for all k, up to a
small ridge (``RIDGE`` of ``gem_qp``).

The authors' code adds 1e-3 to the diagonal of ``G G^T``, whatever the lengths in it. So it also lowers v, and lets
``g~ . g_k`` fall to ``-1e-3 v_k``, which counts where gradients are short. It keeps the last examples of a task, and
on CIFAR compares outputs of a task alone; here memory is drawn at random from each class, and all outputs count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcr.methods.finetune import Finetune
from gcr.methods.flat_gradients import Direction, parts, vectors
from gcr.methods.gem_qp import gem_multipliers
from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Replay
from gcr.models import Network
from gcr.settings import BadInput, setting

BLOCKS = 1024


@dataclass(frozen=True)
class Gem(Finetune):  # its loss; memory only corrects the direction
    name: ClassVar[str] = "gem"
    summary: ClassVar[str] = "gradient episodic memory: no step that raises the loss on what a past task left in memory"
    default_selector: ClassVar[str] = "class-balanced"
    stages = "tasks"
    unused: ClassVar[frozenset[str]] = frozenset({"replay_batch", "sampling", "kept_weights"})

    margin: float = setting(0.5, "least weight of every past task's gradient in a projected step", low=0.0)

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(kind="whole"),)

    def check_memory(self, buffer: int, n_tasks: int) -> None:
        if buffer < n_tasks:
            raise BadInput(
                f"buffer must be >= {n_tasks} for gem, the number of tasks, got {buffer}; "
                "it keeps at least one example per task"
            )

    def shapes_of_stage(self, stage: int) -> int:
        return stage  # as many gradients as past tasks

    def project(
        self,
        gradients: list[Tensor | None],
        parameters: Sequence[nn.Parameter],
        net: Network,
        replay: tuple[Batch, ...],
        extras: Extras,
        stage: int,
    ) -> list[Tensor | None]:
        if not replay or stage == 0:
            return gradients
        past = []
        for images, labels, weights in _by_task(replay[0], stage):
            value = weighted_mean(label_loss(net(images), labels), weights)
            past.append(net.gradients(value, parameters))
        return project_on_past(gradients, past, self.margin)


def project_on_past(gradients: Direction, past: Sequence[Direction], margin: float) -> list[Tensor | None]:
    """g~, given g and the gradients of past tasks."""
    directions = [gradients, *past]
    g, *lines = vectors(directions)
    products = inner_products(torch.stack([g, *lines]))
    slopes, products = products[0, 1:], products[1:, 1:]
    multipliers = margin + gem_multipliers(products, slopes + margin * products.sum(1))
    multipliers = torch.where((slopes < 0).any(), multipliers, 0.0).to(g.dtype)
    for line, multiplier in zip(lines, multipliers, strict=True):
        g = torch.addcmul(g, line, multiplier)
    return parts(g, directions)


def inner_products(lines: Tensor) -> Tensor:
    """Of each with each, in float64, by blocks that a GPU does side by side: [n, p] -> [n, n]."""
    lines = F.pad(lines, (0, -lines.shape[1] % BLOCKS))
    blocks = lines.reshape(len(lines), BLOCKS, -1).transpose(0, 1).double()
    return (blocks @ blocks.mT).sum(0)


def _by_task(kept: Batch, n_past: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Images, labels and weights of every past task, an equal share of the buffer each, so that shapes are fixed.

    A task with more rows than its share gives the first ones. One with fewer gives them again and again, with their
    weights divided by the times they occur; one without any gives weights of zero.
    """
    assert kept.tasks is not None
    capacity = len(kept.labels)
    share = -(-capacity // n_past)
    task = torch.where(kept.weights > 0, kept.tasks, n_past).clamp_max(n_past)
    order = task.argsort(stable=True)
    place = torch.arange(share, device=order.device)
    parts = []
    for past in range(n_past):
        count = (task == past).sum()
        nth = place % count.clamp_min(1)
        rows = order[((task < past).sum() + nth).clamp_max(capacity - 1)]
        times = torch.div(share - 1 - nth, count.clamp_min(1), rounding_mode="floor") + 1
        weights = torch.where(count > 0, kept.weights[rows] / times, 0.0)
        parts.append((kept.images[rows], kept.labels[rows], weights))
    return parts
