"""Joint: one training on the data of all tasks together. The upper bound.

``loss = CE(new)``, where every batch is drawn from all tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.methods.finetune import Finetune


@dataclass(frozen=True)
class Joint(Finetune):
    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "all tasks at once: the upper bound"
    stages = "all at once"
