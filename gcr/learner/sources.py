"""What ``Learner.fit`` accepts, as batches of rows and class numbers on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gcr.learner import hugging_face
from gcr.learner.core import Core
from gcr.learner.labels import plain_labels
from gcr.memory.randomness import generator
from gcr.settings import BadInput

Batches = Iterator[tuple[Tensor, Tensor]]


class Source(Protocol):
    @property
    def steps(self) -> int | None:
        """Of an epoch; None where it is not known."""

    def epoch(self, number: int) -> Batches:
        """The batches of an epoch."""


class Arrays:
    """All examples at once. They stay where they are, and batches go to the device."""

    def __init__(self, rows: Tensor, labels: Tensor, batch: int, device: torch.device, seed: int, fits: int) -> None:
        self.rows, self.labels, self.batch, self.device = rows, labels, batch, device
        self.key = (seed, fits)
        self.steps = -(-len(labels) // batch)

    def epoch(self, number: int) -> Batches:
        order = generator((*self.key, number), "order").permutation(len(self.labels))
        for place in torch.from_numpy(order).split(self.batch):
            yield self._at(place)

    def _at(self, place: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows[place.to(self.rows.device)].to(self.device), self.labels[place].to(self.device)


class Loader:
    """A DataLoader, or anything else that can be iterated over again and gives (x, y) or a dict."""

    def __init__(self, learner: Core, batches: Any, image: Any, label: str | None) -> None:
        self.learner, self.batches, self.image, self.label = learner, batches, image, label
        try:
            self.steps: int | None = len(batches)
        except TypeError:  # what is iterated over may have no length
            self.steps = None

    def epoch(self, number: int) -> Batches:
        empty = True
        for batch in self.batches:
            empty = False
            yield self.learner.take(*pair(batch, self.image, self.label))
        if empty:
            raise BadInput("x gave no batches; it must be possible to iterate over it once per epoch")

    def once(self) -> Batches:
        return self.epoch(0)


class Items:
    """A map-style Dataset: shuffled by the learner's seed, collated by torch."""

    def __init__(self, learner: Core, items: Any, batch: int, image: Any, label: str | None) -> None:
        self.learner, self.items, self.batch, self.image, self.label = learner, items, batch, image, label
        self.steps = -(-len(items) // batch)
        self.fits = learner.fits

    def epoch(self, number: int) -> Batches:
        seed = int(generator((self.learner.seed, self.fits, number), "order").integers(2**31))
        order = torch.Generator().manual_seed(seed)
        for batch in DataLoader(self.items, self.batch, shuffle=True, generator=order):
            yield self.learner.take(*pair(batch, self.image, self.label))

    def once(self) -> Batches:
        for batch in DataLoader(self.items, self.batch):
            yield self.learner.take(*pair(batch, self.image, self.label))


def make_source(learner: Core, x: Any, y: Any, batch: int, image: Any, label: str | None) -> Source:
    if y is None and hugging_face.is_dataset(x):
        x, y = hugging_face.columns(x, image, label)
    elif y is None and isinstance(x, tuple) and len(x) == 2:
        x, y = x
    if y is not None:
        y = plain_labels(y)
        learner.refuse_alone(min(batch, len(y)))
        rows, labels = learner.take_all(x, y)
        return Arrays(rows, labels, batch, learner.device, learner.seed, learner.fits)
    if isinstance(x, Tensor | np.ndarray | str) or hasattr(x, "to_numpy"):
        raise BadInput("y must be given with x; x alone must be a Dataset, a DataLoader or a Hugging Face dataset")
    if isinstance(x, DataLoader | IterableDataset):
        loader = DataLoader(x, batch) if isinstance(x, IterableDataset) else x
        learner.refuse_alone(loader.batch_size or 0)  # None: the user's own sampler makes batches
        return _cached(learner, Loader(learner, loader, image, label), batch)
    by_number = _has_numbers(x)
    if by_number and not len(x):
        raise BadInput("x must have at least one example, got an empty dataset")
    if by_number and _holds_examples("x", x):
        learner.refuse_alone(min(batch, len(x)))
        return _cached(learner, Items(learner, x, batch, image, label), batch)
    if hasattr(x, "__iter__") and not isinstance(x, Tensor):
        return _cached(learner, Loader(learner, x, image, label), batch)
    raise BadInput("y must be given with x; x alone must be a Dataset, a DataLoader or a Hugging Face dataset")


def batches_of(name: str, data: Any, image: Any, label: str | None) -> Iterator[tuple[Any, Any]]:
    """Pairs (x, y) of a Dataset, a DataLoader or a Hugging Face dataset, to look at once."""
    if hugging_face.is_dataset(data):
        yield hugging_face.columns(data, image, label)
        return
    if isinstance(data, IterableDataset) or (_has_numbers(data) and len(data) and _holds_examples(name, data)):
        data = DataLoader(data, 256)
    for batch in () if isinstance(data, Tensor) or not hasattr(data, "__iter__") else data:
        yield pair(batch, image, label)


def _has_numbers(data: Any) -> bool:
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "to_numpy")
    return by_number and not isinstance(data, Tensor | Mapping | IterableDataset)


def _holds_examples(name: str, items: Any) -> bool:
    """Whether a list holds examples, as every Dataset does, and not batches, whose labels are several."""
    first = items[0]
    if not isinstance(first, Mapping | list | tuple):  # before torch collates them: it does not say what to give
        raise BadInput(
            f"{name} must hold pairs (inputs, label), got {type(first).__name__}; all inputs and all labels are a "
            "tuple, as (inputs, labels)"
        )
    if any(map(hugging_face.is_picture, first.values() if isinstance(first, Mapping) else first)):
        raise BadInput(
            f"{name} must hold tensors or arrays, got pictures; give the data set a transform that makes tensors of "
            "one size"
        )
    labels = first[1] if isinstance(first, list | tuple) and len(first) == 2 else None
    if isinstance(items, Dataset) or not isinstance(labels, Tensor | np.ndarray | list):
        return True
    if isinstance(labels, Tensor | np.ndarray) and labels.shape == (1,):
        raise BadInput(
            f"{name} must hold labels that are plain numbers, got {labels!r}: such pairs may be examples or batches "
            "of one; convert the labels, or give a DataLoader"
        )
    return isinstance(labels, Tensor | np.ndarray) and labels.ndim == 0


def _cached(learner: Core, source: Loader | Items, batch: int) -> Source:
    """Features of a frozen network are computed once."""
    if not learner.frozen:
        return source
    rows, labels = zip(*source.once(), strict=True)
    return Arrays(torch.cat(rows), torch.cat(labels).cpu(), batch, learner.device, learner.seed, learner.fits)


def pair(batch: Any, image: Any, label: str | None) -> tuple[Any, Any]:
    """(x, y) of what a loader gave: a pair, or a dict in which ``label`` names y and ``image`` x (or all else is)."""
    if isinstance(batch, Mapping):
        if label is None or label not in batch:
            raise BadInput(
                f'label must name the labels in the batch, as label="labels", got {label!r}; it has {list(batch)}'
            )
        rest = {name: value for name, value in batch.items() if name != label}
        if isinstance(image, str):
            if image not in rest:
                raise BadInput(f"image must name an entry of the batch, got {image!r}; it has {list(batch)}")
            return rest[image], batch[label]
        return {name: rest[name] for name in image} if image else rest, batch[label]
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0] if not isinstance(batch[0], list) else tuple(batch[0]), batch[1]
    several = isinstance(batch, list | tuple) and len(batch) > 2
    got = f"{len(batch)} parts; put inputs together, as ((x1, x2), y)" if several else type(batch).__name__
    raise BadInput(f"x must give batches (inputs, labels), got {got}")
