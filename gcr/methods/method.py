"""What a method is: a frozen dataclass of hyper-parameters with a loss, and what it needs for it.

A training step hands ``loss`` the new batch and the replay minibatches that the method asked for, already augmented,
on the device. Everything else (drawing them, the optimizer, memory) is the same for every method. A few methods need
more: each such need is one function below that does nothing unless a method has its own. ``loss``, ``choose``,
``project`` and ``after_step`` are part of the step, which a GPU captures: fixed shapes, no reads on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcr.methods.ema import logits_of_copy
from gcr.methods.losses import label_residual
from gcr.models import Network
from gcr.settings import Settings

if TYPE_CHECKING:
    from gcr.augment import Views
    from gcr.memory import Buffer

Extras = dict[str, Tensor]  # tensors of the method itself, as EMA weights; saved with every checkpoint


@dataclass(frozen=True)
class Batch:
    """Examples of one minibatch. New examples have weight 1 and no stored logits."""

    views: tuple[Tensor, ...]  # each [b, c, h, w]: as many as the method asked for
    labels: Tensor  # [b]
    logits: Tensor  # [b, classes]: what the network said when the example was stored
    weights: Tensor  # [b]
    tasks: Tensor | None = None  # [b]: of replayed examples; streams, where selections follow these
    class_weights: Tensor | None = None  # [classes]: of new examples; None: all classes count alike

    @property
    def images(self) -> Tensor:
        return self.views[0]

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """The mean over the batch, that of new examples: (). 0 where all of them have weight 0."""
        if self.class_weights is None:
            return F.cross_entropy(logits, self.labels)
        counts = self.class_weights[self.labels].any()
        return F.cross_entropy(logits, self.labels, torch.where(counts, self.class_weights, 1.0)) * counts


@dataclass(frozen=True)
class Replay:
    """A replay minibatch that a step asks for."""

    views: tuple[str, ...] = ("weak",)  # kinds of view wanted of each example
    kind: Literal["sampled", "distinct", "whole"] = "sampled"
    # sampled: drawn as memory's setting ``sampling`` says; distinct: no example twice, weight 0 where memory has too
    # few; whole: the kept buffer, empty rows with weight 0


class Loss(NamedTuple):
    value: Tensor  # ()
    logits: Tensor  # [b, classes] of the new batch, detached: what memory stores
    replayed: Tensor | None = None  # [r, classes] of the first replay minibatch, detached, where it has them at hand


@dataclass(frozen=True)
class Method(Settings):
    default_selector: ClassVar[str] = "reservoir"  # or the name of a selector
    stages: ClassVar[Literal["streams", "tasks", "all at once"]] = "streams"  # online; offline a stage is a task
    predictor: ClassVar[str] = ""  # prefix in ``Extras`` of the EMA copy that predicts; "": the trained network does
    unused: ClassVar[frozenset[str]] = frozenset()  # settings that it ignores; "optimizer": all of its

    @property
    def predicts_by_copy(self) -> bool:
        """Whether the copy of ``predictor`` is kept, and predicts."""
        return bool(self.predictor)

    @property
    def replays(self) -> tuple[Replay, ...]:
        """The replay minibatches of a step, all of one kind. Empty: no memory at all."""
        return ()

    def replay_size(self, asked: int) -> int:
        """Examples in each replay minibatch, where ``asked`` is the setting ``replay_batch``."""
        return asked

    def check_memory(self, buffer: int, n_tasks: int) -> None:
        """Refuse, as BadInput, a buffer that it cannot work with."""

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Loss:
        """``replay`` is empty until something has been offered to memory, else as ``replays`` says."""
        raise NotImplementedError

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        """Derivative of each example's (unweighted) replay loss by its logits, for selection: [b, classes].

        That of the cross-entropy, unless a method has its own.
        """
        return label_residual(logits, batch.labels)

    def extras(self, net: Network, n_tasks: int) -> Extras:
        """The tensors it keeps, as they are before the first step."""
        return {}

    def choose(self, net: Network, new: Batch, replay: tuple[Batch, ...], extras: Extras) -> Tensor | None:
        """Which examples of the new batch, a fixed number, are trained on and offered to memory: [k]. None: all."""
        return None

    def project(
        self,
        gradients: list[Tensor | None],
        parameters: Sequence[nn.Parameter],
        net: Network,
        replay: tuple[Batch, ...],
        extras: Extras,
        stage: int,
    ) -> list[Tensor | None]:
        """The gradients to step along, given those of the loss."""
        return gradients

    def after_step(self, net: Network, extras: Extras) -> None:
        """After the optimizer's step."""

    def note_remembered(self, labels: Tensor, extras: Extras) -> None:
        """Examples of these classes have entered memory without a step: those that the network was trained on before.
        Outside the step."""

    def end_stage(
        self, net: Network, memory: Buffer | None, views: Views, extras: Extras, key: tuple[int, int]
    ) -> None:
        """After the stage's last step and selection, before it is evaluated; ``key`` is (seed, stage)."""

    def shapes_of_stage(self, stage: int) -> int:
        """Stages of equal number share a captured step: shapes in it are the same."""
        return 0

    def predicts_unseen(self) -> bool:
        """Whether it predicts classes that it has not met, if only by chance."""
        return True

    def predictor_state(self, extras: Extras) -> Extras:
        """Those of its tensors that ``predict`` reads; a finished run keeps them with its network."""
        return {name: tensor for name, tensor in extras.items() if name.startswith(self.predictor)}

    def predict(self, net: Network, images: Tensor, extras: Extras) -> Tensor:
        """Scores of the classes for normalised images, in evaluation mode: [b, classes]."""
        logits: Tensor = logits_of_copy(self.predictor, net, images, extras) if self.predictor else net(images)
        return logits
