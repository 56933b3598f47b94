"""A user's labels, any hashable values, as numbers in the order in which they arrive.

>>> labels = Labels()
>>> labels.learn(labels.checked(["cat", "dog", "cat"])).tolist(), labels.known
([0, 1, 0], ['cat', 'dog'])
>>> labels.checked([3])
Traceback (most recent call last):
    ...
gcr.settings.BadInput: labels must be of one type, str as the first, got 3 (int); convert them
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.settings import BadInput


class Labels:
    def __init__(self, known: Iterable[Hashable] = ()) -> None:
        self.known: list[Hashable] = []
        self._number: dict[Hashable, int] = {}
        self.learn(plain_labels(list(known)))

    def __len__(self) -> int:
        return len(self.known)

    def unknown(self, values: list[Hashable]) -> list[Hashable]:
        """Those that would be new."""
        return [value for value in dict.fromkeys(values) if value not in self._number]

    def look_up(self, labels: Any, n: int | None = None) -> Tensor:
        """[n]; -1 for unknown labels. None of them is learned."""
        return torch.tensor([self._number.get(value, -1) for value in self.checked(labels, n)], dtype=torch.int64)

    def learn(self, values: list[Hashable]) -> Tensor:
        """The numbers of checked labels; new ones get the next."""
        for value in values:
            if value not in self._number:
                self._number[value] = len(self.known)
                self.known.append(value)
        return torch.tensor([self._number[value] for value in values], dtype=torch.int64)

    def of(self, numbers: Tensor) -> np.ndarray:
        """The labels of some numbers. An array of objects where labels are tuples or the like."""
        table = np.empty(len(self.known), dtype=object)
        table[:] = self.known
        if all(isinstance(label, str | int | float) for label in self.known):
            plain = np.array(self.known)
            if plain.tolist() == self.known:  # not so for numbers beyond 64 bits
                table = plain
        chosen: np.ndarray = table[numbers.cpu().numpy()]
        return chosen

    def checked(self, labels: Any, n: int | None = None) -> list[Hashable]:
        """As Python's own values, of one type, ``n`` of them."""
        values = plain_labels(labels)
        if n is not None and len(values) != n:
            raise BadInput(f"y must have a label per example ({n}), got {len(values)}")
        first = self.known[0] if self.known else values[0] if values else None
        for value in values:
            if type(value) is not type(first):
                kind, got = type(first).__name__, f"{value!r} ({type(value).__name__})"
                raise BadInput(f"labels must be of one type, {kind} as the first, got {got}; convert them")
        return values


def plain_labels(labels: Any) -> list[Hashable]:
    """Labels as Python's own values: tensors and arrays of one dimension, lists, tuples, anything iterable."""
    if isinstance(labels, str | bytes):
        raise BadInput(f"y must be a sequence of labels, got the text {labels!r}; a single label is [{labels!r}]")
    if isinstance(labels, Tensor | np.ndarray):
        if labels.ndim != 1:
            hint = "; one-hot labels become numbers with argmax(1)" if labels.ndim == 2 else ""
            raise BadInput(f"y must have one dimension, got shape {tuple(labels.shape)}{hint}")
        values = labels.tolist()
    else:
        try:
            values = [value.item() if isinstance(value, np.generic | Tensor) else value for value in labels]
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"y must be a sequence of labels ({error})") from None
    for value in values:
        if not isinstance(value, Hashable):
            raise BadInput(f"labels must be hashable, got {value!r}; text, numbers and tuples of them are")
        if isinstance(value, float) and value != value:
            raise BadInput("labels must not be NaN; give every example a label")
    return values


def to_json(label: Hashable) -> Any:
    """Text, whole numbers, numbers, true and false as they are; a tuple as a list."""
    if isinstance(label, tuple):
        return [to_json(part) for part in label]
    if isinstance(label, str | int | float | bool) or label is None:
        return label
    raise BadInput(
        f"labels must be text, numbers or tuples of them to be saved, got {label!r} ({type(label).__name__})"
    )


def from_json(value: Any) -> Hashable:
    return tuple(from_json(part) for part in value) if isinstance(value, list) else value
