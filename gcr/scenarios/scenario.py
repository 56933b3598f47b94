"""A scenario: images, on the device where they fit there, and the order in which their classes arrive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gcr.augment import Views


@dataclass(frozen=True)
class Images:
    """A data set: uint8 pixels and labels. Pixels that do not fit the device stay on disk, as a map of the file."""

    pixels: Tensor  # [n, c, h, w] uint8
    labels: Tensor  # [n] int64
    resident: bool = True  # whether the pixels move to the device with the labels
    rows: Tensor | None = None  # where each label's pixels lie, on the host; None: in the same order

    def to(self, device: torch.device | str) -> Images:
        pixels = self.pixels.to(device) if self.resident else self.pixels
        return replace(self, pixels=pixels, labels=self.labels.to(device))

    def part(self, rows: Tensor) -> Images:
        """Some of the examples. Resident pixels are copied, others stay where they are and are found by ``rows``."""
        if self.resident:
            return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])
        return replace(self, labels=self.labels[rows], rows=rows if self.rows is None else self.rows[rows])

    def pixels_of(self, rows: Tensor | slice) -> Tensor:
        """The pixels of some examples, wherever they lie."""
        return self.pixels[rows if self.rows is None else self.rows[rows]]


@dataclass(frozen=True)
class Scenario:
    """Tasks of disjoint classes under one head. Class-IL asks for the class among all, task-IL among the task's own."""

    name: str
    train: Images
    test: Images
    tasks: tuple[tuple[int, ...], ...]  # classes of each task
    views: Views
    class_names: tuple[str, ...]
    stream_length: int = 0  # examples of each stream in the online setting; 0: offline, task after task

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    @cached_property  # a training step looks it up
    def task_of_class(self) -> Tensor:
        """[classes] -> the task that brings each class."""
        tasks = torch.zeros(self.n_classes, dtype=torch.int64, device=self.train.labels.device)
        for task, classes in enumerate(self.tasks):
            tasks[list(classes)] = task
        return tasks

    def to(self, device: torch.device | str) -> Scenario:
        return replace(self, train=self.train.to(device), test=self.test.to(device))
