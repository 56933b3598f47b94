"""A user's own labels, whole numbers or text, as classes 0..C-1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcr.settings import BadInput

Values = NDArray[np.int64] | NDArray[np.str_]


def label_values(name: str, values: Any, n: int) -> Values:
    """[n] whole numbers or text.

    >>> label_values("labels", ["b", "a"], 2).tolist()
    ['b', 'a']
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()
    elif isinstance(values, list | tuple):
        values = [value.item() if isinstance(value, Tensor) and value.numel() == 1 else value for value in values]
        values = np.array(values, dtype=object)  # so that a number in a list of text stays one
    array = np.asarray(values)
    if array.shape != (n,):
        hint = "; one-hot labels become numbers with argmax(1)" if array.ndim == 2 and len(array) == n else ""
        raise BadInput(f"{name} must be one per image ({n}), got shape {array.shape}{hint}")
    if array.dtype.kind == "O":
        array = _of_one_kind(name, array)
    if array.dtype.kind == "U":
        return array.astype(np.str_)
    if array.dtype.kind not in "iu":
        raise BadInput(f"{name} must be whole numbers or text, got {array.dtype}; convert them to int64 or str")
    return array.astype(np.int64)


def _of_one_kind(name: str, array: NDArray[np.object_]) -> Values:
    text = isinstance(array[0], str)
    for row, value in enumerate(array):
        fits = isinstance(value, str) if text else isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not fits:
            rule = "text, as the first" if text else "whole numbers or text"
            raise BadInput(f"{name} must be {rule}, got {value!r} in row {row}; convert them to int64 or str")
    return array.astype(np.str_) if text else array.astype(np.int64)


def numbered(values: Values, classes: tuple[int | str, ...] = ()) -> tuple[Tensor, tuple[int | str, ...]]:
    """Class numbers, and the label of each class: those that occur, sorted, or the known ``classes``.

    >>> numbers, classes = numbered(np.array([7, 3, 7]))
    >>> numbers.tolist(), classes
    ([1, 0, 1], (3, 7))
    """
    if not classes:
        classes = tuple(np.unique(values).tolist())
        if len(classes) < 2:
            raise BadInput(f"train labels must have two classes or more, got {classes[0]!r} alone")
    known = np.array(classes)
    if known.dtype.kind != values.dtype.kind:
        kinds = ["text" if array.dtype.kind == "U" else "whole numbers" for array in (known, values)]
        raise BadInput(f"test labels must be {kinds[0]}, as the train labels, got {kinds[1]}")
    unknown = np.flatnonzero(~np.isin(values, known))
    if len(unknown):
        first = int(unknown[0])
        raise BadInput(
            f"test labels must occur among the train labels, got {values[first].item()!r} in row {first} "
            f"({len(unknown)} rows in all); leave these images out"
        )
    return torch.from_numpy(np.searchsorted(known, values)), classes
