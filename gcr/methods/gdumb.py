"""GDumb: greedy sampler and dumb learner (Prabhu et al. 2020).

While examples arrive nothing is trained; memory takes them by a greedy sampler, ``balanced-reservoir``: the same number
of every class, and of a smaller class all. (The paper's takes none of a class that has its share, ours draws uniformly
among all of a class.) At a stage's end a new network is trained on memory alone, ``mean_w CE(memory)``, by SGD with
momentum whose learning rate falls from ``max_lr`` to ``min_lr`` along a cosine again and again, over 1, 2, 4, ...
epochs (SGDR, Loshchilov and Hutter 2017), after one epoch at a tenth of ``max_lr``. With probability ``cutmix`` a
minibatch is mixed (CutMix, Yun et al. 2019): a box of each image, a share ``1 - m`` of it, comes from another of the
minibatch, and the loss is ``m CE(own label) + (1 - m) CE(other's label)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from gcr.augment import DRAWS
from gcr.memory.randomness import generator
from gcr.methods.losses import label_loss, weighted_mean
from gcr.methods.method import Batch, Extras, Loss, Method, Replay
from gcr.models import Network, state_tensors
from gcr.settings import setting

if TYPE_CHECKING:
    from gcr.augment import Views
    from gcr.memory import Buffer


@dataclass(frozen=True)
class Gdumb(Method):
    name: ClassVar[str] = "gdumb"
    summary: ClassVar[str] = "only fills memory, then trains a new network on memory alone after every task"
    default_selector: ClassVar[str] = "balanced-reservoir"
    unused: ClassVar[frozenset[str]] = frozenset(
        {"optimizer", "replay_batch", "sampling", "kept_weights", "statistics"}
    )

    fitting_epochs: int = setting(64, "passes over memory (256 in the paper); best a power of 2", low=1)
    max_lr: float = setting(0.05, "learning rate where a cosine begins", low=0.0)
    min_lr: float = setting(0.0005, "learning rate where a cosine ends", low=0.0)
    fitting_batch: int = setting(16, "examples of memory per step", low=2)
    fitting_momentum: float = setting(0.9, "momentum of SGD on memory", low=0.0, high=1.0)
    fitting_decay: float = setting(
        1e-6, "weight decay of the fit: adds fitting_decay/2 * |weights|^2 to the loss", low=0.0
    )
    clip: float = setting(10.0, "longest gradient; a longer one is cut to this", low=1e-6)
    cutmix: float = setting(0.5, "probability that a minibatch is mixed; 0 leaves CutMix out", low=0.0, high=1.0)

    @property
    def replays(self) -> tuple[Replay, ...]:
        return (Replay(),)  # there is a memory; no step replays it

    def replay_size(self, asked: int) -> int:
        return 1

    def extras(self, net: Network, n_tasks: int) -> Extras:
        return {f"initial.{name}": tensor.detach().clone() for name, tensor in state_tensors(net).items()}

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        """Zero, and so are its gradients. The logits are those of the network fitted last."""
        with torch.no_grad():
            logits = net.eval()(new.images)
        net.train()
        return Loss(0.0 * net.head.weight.sum(), logits)

    def end_stage(
        self, net: Network, memory: Buffer | None, views: Views, extras: Extras, key: tuple[int, int]
    ) -> None:
        assert memory is not None
        with torch.no_grad():
            for name, tensor in state_tensors(net).items():
                tensor.copy_(extras[f"initial.{name}"])
        stored = memory.read(memory.filled_rows())
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(
            parameters, self.max_lr, momentum=self.fitting_momentum, weight_decay=self.fitting_decay
        )
        draws = generator(key, "fitting")
        net.train()
        for epoch in range(self.fitting_epochs):
            optimizer.param_groups[0]["lr"] = self.lr_of(epoch)
            for rows, uniforms in minibatches(draws, len(stored["label"]), self.fitting_batch):
                at = torch.from_numpy(rows).to(stored["label"].device)
                images = views.weak(stored["image"][at], torch.from_numpy(uniforms).to(at.device))
                value = self.mixed_loss(net, images, stored["label"][at], stored["weight"][at], draws)
                optimizer.zero_grad()
                value.backward()
                torch.nn.utils.clip_grad_norm_(parameters, self.clip)
                optimizer.step()
        optimizer.zero_grad()

    def predictor_state(self, extras: Extras) -> Extras:
        return {}

    def mixed_loss(
        self, net: Network, images: Tensor, labels: Tensor, weights: Tensor, generator: np.random.Generator
    ) -> Tensor:
        if generator.random() >= self.cutmix:
            return weighted_mean(label_loss(net(images), labels), weights)
        other = torch.from_numpy(generator.permutation(len(labels))).to(labels.device)
        rows, columns = box(generator.random(3), *images.shape[2:])
        mixed = images.clone()
        mixed[:, :, rows, columns] = images[other][:, :, rows, columns]
        own: float = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / images[0, 0].numel()
        logits = net(mixed)
        terms = [
            weighted_mean(label_loss(logits, y), w) for y, w in ((labels, weights), (labels[other], weights[other]))
        ]
        return own * terms[0] + (1 - own) * terms[1]

    def lr_of(self, epoch: int) -> float:
        """
        >>> [round(Gdumb(max_lr=1.0, min_lr=0.0).lr_of(epoch), 3) for epoch in range(8)]
        [0.1, 1.0, 1.0, 0.5, 1.0, 0.854, 0.5, 0.146]
        """
        if epoch == 0:
            return 0.1 * self.max_lr
        cycle = 2 ** (epoch.bit_length() - 1)  # it begins in the epoch of its own length: 1, 2, 4, ...
        return self.min_lr + (self.max_lr - self.min_lr) / 2 * (1 + math.cos(math.pi * (epoch - cycle) / cycle))


def minibatches(generator: np.random.Generator, n: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of an epoch in random order and the uniforms of their weak views. A single last row is left out."""
    order, uniforms = generator.permutation(n), generator.random((n, DRAWS["weak"]), dtype=np.float32)
    for start in range(0, n, size):
        if n == 1 or start + 1 < n:
            yield order[start : start + size], uniforms[start : start + size]


def box(uniforms: np.ndarray, height: int, width: int) -> tuple[slice, slice]:
    """CutMix's box: a uniform share of the area (Beta(1, 1)) around a uniform pixel, cut off at the image's edges.

    >>> box(np.array([0.75, 0.5, 0.0]), 8, 8)
    (slice(2, 6, None), slice(0, 2, None))
    """
    side = math.sqrt(1 - uniforms[0])

    def along(centre: float, length: int) -> slice:
        middle, half = int(centre * length), int(length * side) // 2
        return slice(max(middle - half, 0), min(middle + half, length))

    return along(uniforms[1], height), along(uniforms[2], width)
