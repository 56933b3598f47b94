"""A scenario: images, on the device where they fit there, and the order in which their classes arrive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gcr.augment import Views
from gcr.data.blocks import BlockCheck
from gcr.settings import BadInput


@dataclass(frozen=True)
class Images:
    """A data set: pixels and labels. Pixels that do not fit the device stay on disk, as a map of the file.

    uint8 pixels are scaled to [0, 1] by the views; float pixels stay as they are.
    """

    pixels: Tensor  # [n, c, h, w] uint8 or float
    labels: Tensor  # [n] int64
    resident: bool = True  # whether the pixels move to the device with the labels
    rows: Tensor | None = None  # where each label's pixels lie, on the host; None: in the same order
    check: BlockCheck | None = None  # of the file: in the background where pixels are resident, else as they are read

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise BadInput(f"pixels must be uint8 or float, got {pixels.dtype}; gcr.from_arrays converts arrays")
        if pixels.dim() != 4 or not pixels.numel():
            raise BadInput(f"pixels must be [n, c, h, w] and not empty, got shape {tuple(pixels.shape)}")
        if labels.dtype != torch.int64 or labels.dim() != 1:
            raise BadInput(f"labels must be int64, one per image, got {labels.dtype} {tuple(labels.shape)}")
        n = len(pixels) if self.rows is None else len(self.rows)
        if len(labels) != n:
            raise BadInput(f"pixels and labels must be equally many, got {n} and {len(labels)}")

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
        rows = rows if self.rows is None else self.rows[rows]
        if self.check is not None and not self.resident:
            self.check.check_rows(rows.numpy() if isinstance(rows, Tensor) else rows)
        return self.pixels[rows]

    def wait_checked(self) -> None:
        """Until resident pixels are proved to be those of the file; an error if they are not."""
        if self.check is not None and self.resident:
            self.check.wait()


@dataclass(frozen=True)
class Scenario:
    """Tasks of disjoint classes under one head. Class-IL asks for the class among all, task-IL among the task's own."""

    name: str
    train: Images
    test: Images
    tasks: tuple[tuple[int, ...], ...]  # classes of each task
    views: Views
    class_names: tuple[str, ...]
    stream_length: int = 0  # examples of each stream in online runs; 0: offline, task after task
    labels: tuple[int | str, ...] = ()  # the user's own label of each class; empty: 0..C-1

    def __post_init__(self) -> None:
        train, test = self.train.pixels, self.test.pixels
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            kinds = [f"{pixels.dtype} {tuple(pixels.shape[1:])}" for pixels in (train, test)]
            raise BadInput(f"test images must be {kinds[0]}, as the training images, got {kinds[1]}")
        if not len(self.views.mean) == len(self.views.std) == train.shape[1]:
            given = f"{len(self.views.mean)} and {len(self.views.std)}"
            raise BadInput(f"views must have a mean and a std for each of {train.shape[1]} channels, got {given}")
        order = [label for classes in self.tasks for label in classes]
        if not all(self.tasks) or sorted(order) != list(range(self.n_classes)):
            raise BadInput(f"tasks must share classes 0..{self.n_classes - 1}, each in one task, got {self.tasks}")
        for part, images in (("training", self.train), ("test", self.test)):
            if images.labels.device.type == "cpu":
                low, high = (int(value) for value in images.labels.aminmax())
                if low < 0 or high >= self.n_classes:
                    rule = f"{part} labels must be in 0..{self.n_classes - 1}, got {low}..{high}"
                    raise BadInput(f"{rule}; gcr.from_arrays numbers them")
            if self.views.colours and images.pixels.is_floating_point() and not in_unit(images.pixels):
                raise BadInput(
                    f"{part} images must be in [0, 1] for strong views with colour jitter; scale them, or use "
                    "Views(..., jitter_share=0, grey_share=0)"
                )

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


def equal_tasks(n_classes: int, n_tasks: int, class_order: int = 0) -> tuple[tuple[int, ...], ...]:
    """The same number of classes in every task, or, where they do not divide, one more in the first ones.

    ``class_order`` 0 is the order of labels; any other number is the seed of a permutation.

    >>> equal_tasks(6, 3)
    ((0, 1), (2, 3), (4, 5))
    >>> equal_tasks(5, 2)
    ((0, 1, 2), (3, 4))
    >>> sorted(sum(equal_tasks(6, 2, class_order=1), ()))
    [0, 1, 2, 3, 4, 5]
    """
    order = np.arange(n_classes)
    if class_order:
        order = np.random.default_rng(class_order).permutation(n_classes)
    return tuple(tuple(int(label) for label in classes) for classes in np.array_split(order, n_tasks))


def in_unit(pixels: Tensor) -> bool:
    """Whether all values are in [0, 1]; on another device than the CPU they count as checked."""
    if pixels.device.type != "cpu":
        return True
    low, high = (float(value) for value in pixels.aminmax())
    return low >= 0 and high <= 1
