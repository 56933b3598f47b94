"""How a run trains: what does not belong to method or memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.settings import Settings, setting
from gcr.training.numerics import PRECISIONS


@dataclass(frozen=True)
class Training(Settings):
    name: ClassVar[str] = "training"

    epochs: int = setting(10, "passes over each task", low=1, remedy="every task needs a pass")
    batch: int = setting(32, "new examples per step", low=1)
    repeats: int = setting(
        1, "steps on every new batch, each with replay of its own; memory takes it once", low=1, advanced=True
    )
    ghost_batches: int = setting(
        1,
        "parts of a minibatch with BatchNorm statistics of their own; 1: the whole, in any number of processes",
        low=1,
        advanced=True,
    )
    precision: str = setting(
        "auto",
        "of the network; auto: bf16 on a GPU that has it, else tf32; fp32 on a CPU",
        choices=PRECISIONS,
        advanced=True,
    )
