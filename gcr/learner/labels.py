"""A user's labels, values that a file can hold, as numbers in the order in which they arrive.

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

NAMED = 5  # labels in a message


class Labels:
    def __init__(self, known: Iterable[Hashable] = ()) -> None:
        self.known: list[Hashable] = []
        self._number: dict[Hashable, int] = {}
        self.learn(_distinct(plain_labels(known, "classes")))

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

    def keep(self, n: int) -> None:
        """The first ``n`` alone."""
        for value in self.known[n:]:
            del self._number[value]
        self.known = self.known[:n]

    def of(self, numbers: Tensor) -> np.ndarray:
        """The labels of some numbers. An array of objects where labels are tuples or the like."""
        known = list(self.known)  # as it is now: another thread may learn more
        table = np.empty(len(known), dtype=object)
        table[:] = known
        if all(isinstance(label, str | int | float) for label in known):
            plain = np.array(known)
            if plain.tolist() == known:  # not so for numbers beyond 64 bits
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


def plain_labels(labels: Any, name: str = "y") -> list[Hashable]:
    """Labels as Python's own values: tensors and arrays of one dimension, lists, tuples, anything iterable."""
    if isinstance(labels, str | bytes):
        raise BadInput(f"{name} must be a sequence of labels, got the text {labels!r}; a single label is [{labels!r}]")
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):  # a DataFrame, which gives the names of its columns
        labels = labels.to_numpy()
    if isinstance(labels, Tensor | np.ndarray):
        if labels.ndim == 2 and labels.shape[1] == 1:  # a column of labels
            labels = labels[:, 0]
        if labels.ndim != 1:
            hint = "; one-hot labels become numbers with argmax(1)" if labels.ndim == 2 else ""
            raise BadInput(f"{name} must have one dimension, got shape {tuple(labels.shape)}{hint}")
        labels = labels.tolist()
    try:
        return [plain_label(value) for value in labels]
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} must be a sequence of labels ({error})") from None


def plain_label(value: Any) -> Hashable:
    """Of exactly the type with which it comes back from a file: members of an IntEnum are numbers.

    >>> plain_label((np.int64(3), np.str_("a")))
    (3, 'a')
    """
    if isinstance(value, np.generic | Tensor):
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value:
            raise BadInput("labels must not be NaN; give every example a label")
        return float(value)
    if isinstance(value, tuple):
        return tuple(map(plain_label, value))
    raise BadInput(
        f"labels must be text, numbers or tuples of them, so that they can be saved, got {value!r} "
        f"({type(value).__name__}); convert them"
    )


def _distinct(classes: list[Hashable]) -> list[Hashable]:
    """Each is the label of one output, so that none may be left out."""
    places: dict[Hashable, list[int]] = {}
    for place, label in enumerate(classes):
        places.setdefault(label, []).append(place)
    if twice := {label: at for label, at in places.items() if len(at) > 1}:
        named = "; ".join(
            f"{label!r} at outputs {', '.join(map(str, at))}" for label, at in list(twice.items())[:NAMED]
        )
        more = f"; and {len(twice) - NAMED} more" if len(twice) > NAMED else ""
        raise BadInput(f"classes must be distinct, one per output of net, got {named}{more}; rename all but one")
    return classes


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
