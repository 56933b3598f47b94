"""What a method is: a frozen dataclass of hyper-parameters with a loss, and what it needs for it.

A training step hands ``loss`` the new batch and the replay minibatches that the method asked for, already augmented,
on the device. Everything else (drawing them, the optimizer, memory) is the same for every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from gcr.models import Network


@dataclass(frozen=True)
class Batch:
    """Examples of one minibatch. New examples have weight 1 and no stored logits."""

    views: tuple[Tensor, ...]  # each [b, c, h, w]: as many as the method asked for
    labels: Tensor  # [b]
    logits: Tensor  # [b, classes]: what the network said when the example was stored
    weights: Tensor  # [b]

    @property
    def images(self) -> Tensor:
        return self.views[0]


class Loss(NamedTuple):
    value: Tensor  # ()
    logits: Tensor  # [b, classes] of the new batch, detached: what memory stores


class Method(Protocol):
    name: ClassVar[str]
    summary: ClassVar[str]
    default_selector: ClassVar[str]  # "reservoir" or the name of a selector
    sees_all_tasks: ClassVar[bool]  # trains once on the data of all tasks together

    @property
    def replays(self) -> tuple[tuple[str, ...], ...]:
        """The replay minibatches of a step, each as the kinds of view wanted of it. Empty: no memory at all."""
        ...

    def loss(self, net: Network, new: Batch, replay: tuple[Batch, ...]) -> Loss:
        """``replay`` is empty until something has been offered to memory, else as ``replays`` says."""
        ...

    def residual(self, logits: Tensor, batch: Batch) -> Tensor:
        """Derivative of each example's (unweighted) replay loss by its logits, for selection: [b, classes]."""
        ...
