"""How a data set becomes a sequence of tasks: the settings of an experiment that change what is learnt, not how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.settings import BadInput, Settings, setting


@dataclass(frozen=True)
class Stream(Settings):
    name: ClassVar[str] = "stream"

    tasks: int = setting(0, "tasks that share the classes as evenly as they go; 0: the scenario's own number", low=0)
    class_order: int = setting(
        0,
        "order in which classes come; 0: that of the labels, n: a permutation drawn with seed n",
        low=0,
        high=2**32 - 1,
    )
    validation: float = setting(
        0.0,
        "share of each class's training images that replaces the test set (0.1 for tuning); 0: test on the test set",
        low=0.0,
        high=0.5,
    )

    def check_classes(self, n_classes: int, scenario: str) -> None:
        if self.tasks > n_classes:
            raise BadInput(
                f"tasks must be <= {n_classes}, the number of classes of {scenario}, got {self.tasks}; "
                "every task needs a class"
            )
