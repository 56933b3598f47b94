"""How a data set becomes a sequence of tasks: the settings of an experiment that change what is learnt, not how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.settings import BadInput, Settings, setting


@dataclass(frozen=True)
class Stream(Settings):
    name: ClassVar[str] = "stream"

    online: bool = setting(
        False, "true: one pass over streams that do not end where tasks do; false: each task in turn, epochs times"
    )
    stream: int = setting(6250, "examples of each stream, online", low=2)
    tasks: int = setting(0, "tasks that share the classes as evenly as they go; 0: the scenario's own number", low=0)
    class_order: int = setting(
        0,
        "order in which classes come; 0: that of the labels, n: a permutation drawn with seed n",
        low=0,
        high=2**32 - 1,
        advanced=True,
    )
    validation: float = setting(
        0.0,
        "share of each class's training images that replaces the test set (0.1 for tuning); 0: test on the test set",
        low=0.0,
        high=0.5,
        advanced=True,
    )
    label_noise: float = setting(
        0.0,
        "share of each class's training images that get the label of another class of their task",
        low=0.0,
        high=0.9,
        advanced=True,
    )
    imbalance: float = setting(
        1.0,
        "training images of the last class relative to the first; sizes fall evenly in proportion in between",
        low=0.001,
        high=1.0,
        advanced=True,
    )
    last_task: float = setting(
        1.0, "share of the last task's training images that are there", low=0.001, high=1.0, advanced=True
    )

    @property
    def regime(self) -> str:
        return "online" if self.online else "offline"

    def check_classes(self, n_classes: int, scenario: str) -> None:
        if self.tasks > n_classes:
            raise BadInput(
                f"tasks must be <= {n_classes}, the number of classes of {scenario}, got {self.tasks}; "
                "every task needs a class"
            )

    def check_noise(self, n_classes: int, n_tasks: int) -> None:
        if self.label_noise and n_classes < 2 * n_tasks:
            raise BadInput(
                f"label_noise gives wrong labels inside a task, but of {n_tasks} tasks of {n_classes} classes some "
                "have one class only; use fewer tasks"
            )
