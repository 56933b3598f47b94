"""When memory changes, and by which rule.

``reservoir``, ``balanced-reservoir`` and ``gss-greedy`` update the kept buffer with every batch. Any selector instead
collects candidates by reservoir and chooses a new kept buffer from old buffer and candidates at every boundary. Method
and policy combine freely: GCR's selection under ER's loss, or GCR's loss on a reservoir, are settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from gcr.memory.balanced import BalancedReservoir
from gcr.memory.buffer import Buffer
from gcr.memory.gss_greedy import GssGreedy
from gcr.memory.sampling import SAMPLERS
from gcr.select import SELECTORS, Selector
from gcr.settings import BadInput, Settings, from_mapping, setting, to_mapping


@dataclass(frozen=True)
class Reservoir(Settings):
    """Every example seen so far is in the buffer with the same probability (Vitter's algorithm R)."""

    name: ClassVar[str] = "reservoir"
    summary: ClassVar[str] = "no selection: every example seen so far has the same chance to be kept, batch by batch"


POLICIES: tuple[type[Selector] | type[Reservoir] | type[BalancedReservoir] | type[GssGreedy], ...] = (
    Reservoir,
    BalancedReservoir,
    GssGreedy,
    *SELECTORS,
)


@dataclass(frozen=True)
class Policy(Settings):
    name: ClassVar[str] = "memory"

    buffer: int = setting(
        100, "examples kept (K in the paper)", low=1, remedy='use method "finetune" to train without memory'
    )
    selector: Selector | Reservoir | BalancedReservoir | GssGreedy = field(default_factory=Reservoir)
    replay_batch: int = setting(
        32, "examples in each replay minibatch (gcr+: half of them)", low=1, high=2**16, advanced=True
    )
    candidates: int = setting(
        0, "size of the candidate pool, which only a selector has; 0 means as large as the buffer", low=0, advanced=True
    )
    every: int = setting(
        0,
        "examples between selections, wherever tasks end, in whole batches; 0: at every task's or stream's end",
        low=0,
        advanced=True,
    )
    pool: str = setting(
        "reservoir",
        "candidates at a selection: a reservoir of what came since the last, or the selector's choice of all of it",
        choices=("reservoir", "selector"),
        advanced=True,
    )
    pool_view: str = setting(
        "plain",
        "what selection sees of an example: plain, or weakly augmented (reference code)",
        choices=("plain", "weak"),
        advanced=True,
    )
    pool_mode: str = setting(
        "evaluation",
        "batch statistics in selection: running ones, the pool's own as in training, or those of 32 of a class at a"
        " time (reference code)",
        choices=("evaluation", "training", "class"),
        advanced=True,
    )
    pool_views: int = setting(
        1,
        "weak views of an example that selection sees; features and residuals are each averaged over them",
        low=1,
        advanced=True,
    )
    pool_network: str = setting(
        "trained",
        "whose features and residuals selection sees: the trained network's, or the predictor's, where a method"
        " predicts with an EMA of the weights",
        choices=("trained", "predictor"),
        advanced=True,
    )
    sampling: str = setting(
        "coin",
        "how a replay minibatch is shared between candidates and buffer",
        choices=tuple(s.name for s in SAMPLERS),
        advanced=True,
    )
    kept_weights: str = setting(
        "chosen",
        "of the buffer in replay: as chosen (paper), or relative to their mean, so that buffer and candidates, whose"
        " weight is 1, count as often as they are drawn",
        choices=("chosen", "relative"),
        advanced=True,
    )
    admit: str = setting(
        "all",
        "which examples become candidates: all, or those classified correctly",
        choices=("all", "correct"),
        advanced=True,
    )
    statistics: str = setting(
        "training",
        "BatchNorm statistics for prediction: those of training, or recomputed on memory's images",
        choices=("training", "memory"),
        advanced=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.selects:
            kind = "a reservoir" if isinstance(self.selector, Reservoir) else self.selector.name
            names = ("candidates", "every", "pool", "pool_view", "pool_mode", "pool_views", "kept_weights")
            if given := self.changed(*names, *(() if self.evicts_by_herding else ("pool_network",))):
                raise BadInput(f"{given} needs a selector, but memory is {kind}; leave it out, or name a selector")
        if self.pool_views > 1 and self.pool_view != "weak":
            raise BadInput(
                f"pool_views averages weak views, got {self.pool_views} with pool_view={self.pool_view}; "
                "add --set pool_view=weak"
            )
        if self.every and getattr(self.selector, "shares", "class") == "task":
            raise BadInput(
                "every selects without knowing tasks, but shares=task shares memory between them; "
                "add --set selector.shares=class or use --variant paper"
            )
        if self.pool == "selector" and "reducible" in getattr(self.selector, "needs", ()):
            raise BadInput(
                f"{self.selector.name} compares with logits from when an example came, which pool=selector replaces; "
                "leave it out"
            )
        if self.pool == "selector" and self.every:
            raise BadInput("pool=selector chooses among all images of a task or stream; leave out every")
        if self.pool == "selector" and (given := self.changed("admit", "pool_view")):
            default = {"admit": "all", "pool_view": "plain"}[given]
            raise BadInput(
                f"pool=selector chooses among all plain images of a task or stream, got {given}="
                f"{getattr(self, given)}; add --set memory.{given}={default} or use --variant paper"
            )
        if self.pool == "selector" and getattr(self.selector, "atoms", "plain") == "weighted":
            raise BadInput(
                "pool=selector gives candidates weights, which atoms=weighted would lose; "
                "add --set selector.atoms=plain or use --variant paper"
            )

    @property
    def selects(self) -> bool:
        """Whether a selector rewrites the buffer at boundaries (and hence a candidate pool exists)."""
        return not isinstance(self.selector, Reservoir | BalancedReservoir | GssGreedy)

    @property
    def balanced(self) -> bool:
        """Whether examples enter by priorities, with equal shares for all classes."""
        return isinstance(self.selector, BalancedReservoir)

    @property
    def evicts_by_loss(self) -> bool:
        """Whether memory keeps losses, by which examples go."""
        return isinstance(self.selector, BalancedReservoir) and self.selector.evict == "loss"

    @property
    def evicts_by_herding(self) -> bool:
        """Whether herding orders the rows of a class at the ends of tasks and streams."""
        return isinstance(self.selector, BalancedReservoir) and self.selector.evict == "herding"

    @property
    def compared(self) -> int:
        """Remembered examples whose gradients decide on what enters; 0 where they do not."""
        return self.selector.compared if isinstance(self.selector, GssGreedy) else 0

    @property
    def compares_whole_gradients(self) -> bool:
        return isinstance(self.selector, GssGreedy) and self.selector.gradients == "whole"

    @property
    def pool_size(self) -> int:
        return (self.candidates or self.buffer) if self.selects else 0

    def make_buffer(
        self,
        image_shape: tuple[int, ...],
        n_classes: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.uint8,
    ) -> Buffer:
        """The empty buffer of a run."""
        also = ["score"] * (self.compared > 0 or self.balanced) + ["loss"] * self.evicts_by_loss
        sizes = (self.buffer, self.pool_size)
        return Buffer.empty(*sizes, image_shape, n_classes, device, dtype, also)

    def nbytes(self, image_shape: tuple[int, ...], n_classes: int, dtype: torch.dtype = torch.uint8) -> int:
        """Bytes of that buffer, without allocating it."""
        return self.make_buffer(image_shape, n_classes, "meta", dtype).nbytes

    def to_json(self) -> dict[str, Any]:
        return to_mapping(self) | {"selector": to_mapping(self.selector, named=True)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], known: tuple[type[Any], ...] = POLICIES) -> Self:
        return cls.from_mapping({**values, "selector": from_mapping(values["selector"], "selector", known)})

    def check_predictor(self, method: str, by_copy: bool) -> None:
        """Refuse ``pool_network=predictor`` where the method predicts with the trained network: not ``by_copy``."""
        if self.pool_network == "predictor" and not by_copy:
            raise BadInput(
                f"pool_network must be trained with {method} here, as the trained network predicts, got predictor; "
                "leave it out, or use gcr+ (decay > 0) or cls-er"
            )

    def check_classes(self, n_classes: int, scenario: str) -> None:
        if self.buffer < n_classes:
            raise BadInput(
                f"buffer must be >= {n_classes}, the number of classes of {scenario}, got {self.buffer}; "
                "keep at least one example per class"
            )
