"""Columns of a Hugging Face data set as tensors. ``datasets`` itself is not imported: what looks like one will do.

A data set has ``column_names`` and gives a column as ``dataset[name]``; one that streams gives rows as dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.memory.examples import as_tensor
from gcr.settings import BadInput, unknown

CHANNELS = (1, 3, 4)
GREY_MODES, COLOUR_MODES = ("1", "L", "LA"), ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
LABEL_NAMES = ("label", "labels")

Inputs = Tensor | dict[str, Tensor]


def is_dataset(values: object) -> bool:
    """Whether it has columns, as a ``datasets.Dataset`` or a dict of its splits does."""
    return hasattr(values, "column_names")


def columns(
    dataset: Any, image: str | Sequence[str] | None = None, label: str | None = None
) -> tuple[Inputs, list[Any]]:
    """Inputs [n, …] and labels of all rows.

    ``image`` names the column of inputs; several names give a dict of tensors. PIL images become uint8 [n, c, h, w],
    numbers become tensors. Names that are not given are found by the data set's features: its only image column, its
    only class label.
    """
    if isinstance(getattr(dataset, "column_names", None), dict):
        splits = ", ".join(f'"{name}"' for name in dataset.column_names)
        raise BadInput(f'dataset must be one split, got several ({splits}); give dataset["train"] or so')
    image = _found(dataset, "image", "Image", ("image", "img")) if image is None else image
    label = _found(dataset, "label", "ClassLabel", LABEL_NAMES) if label is None else label
    names = [image] if isinstance(image, str) else list(image)
    if not names:
        raise BadInput("image must name a column, or several, got none")
    table = _read(dataset, [*names, label])
    features = getattr(dataset, "features", None) or {}
    inputs = {name: _as_inputs(name, table[name], _is_kind(features, name, "Image")) for name in names}
    return inputs[image] if isinstance(image, str) else inputs, _as_labels(label, table[label])


def _found(dataset: Any, what: str, kind: str, usual: tuple[str, ...]) -> str:
    """The only column of this kind of feature, or the only one with a usual name."""
    features = getattr(dataset, "features", None) or {}
    known = list(features) or _names(dataset)
    for found in (
        [name for name in known if _is_kind(features, name, kind)],
        [name for name in known if name in usual],
    ):
        if len(found) == 1:
            return found[0]
    raise BadInput(f'{what} must name a column; give {what}="NAME", one of {", ".join(map(str, known)) or "none"}')


def _is_kind(features: Any, name: str, kind: str) -> bool:
    return type(features.get(name)).__name__ == kind


def _names(dataset: Any) -> list[str]:
    return list(getattr(dataset, "column_names", None) or [])


def _read(dataset: Any, names: list[str]) -> dict[str, Any]:
    """These columns: as they come where there are columns, from all rows where they stream."""
    known = _names(dataset)
    for name in names:
        if known and name not in known:
            raise unknown("column", name, known)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and known:
        if not len(dataset):
            raise BadInput("dataset must have rows, got none")
        return {name: dataset[name] for name in names}
    rows = list(dataset.select_columns(list(dict.fromkeys(names))) if hasattr(dataset, "select_columns") else dataset)
    if not rows:
        raise BadInput("dataset must have rows, got none")
    for name in names:
        if name not in rows[0]:
            raise unknown("column", name, list(rows[0]))
    return {name: [row[name] for row in rows] for name in names}


def _as_inputs(name: str, values: Any, of_images: bool) -> Tensor:
    if not isinstance(values, Tensor | np.ndarray) or getattr(values, "dtype", None) is np.dtype(object):
        values = list(values)
        _refuse_missing(name, values)
        if is_picture(values[0]):
            return _pictures(name, values)
        _refuse_unequal(name, values)
        if isinstance(values[0], np.ndarray):
            values = np.stack(values)
        elif isinstance(values[0], Tensor):
            values = torch.stack(values)
    from_numpy = isinstance(values, np.ndarray)
    tensor = as_tensor(name, values)
    if from_numpy and tensor.dtype == torch.uint8:
        tensor = _channels_first(tensor, of_images)
    return tensor.float() if tensor.is_floating_point() else tensor


def _channels_first(pixels: Tensor, certain: bool) -> Tensor:
    """Pictures in NumPy format are [h, w, c], or [h, w] where they are grey. Not ``certain``: by their shapes."""
    if pixels.dim() == 3:
        return pixels.unsqueeze(1)
    last = pixels.dim() == 4 and pixels.shape[3] in CHANNELS and (certain or pixels.shape[1] not in CHANNELS)
    return pixels.permute(0, 3, 1, 2).contiguous() if last else pixels


def is_picture(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "mode") and hasattr(value, "size")


def _pictures(name: str, pictures: list[Any]) -> Tensor:
    """PIL images, all grey as [n, 1, h, w], else all in colour as [n, 3, h, w]."""
    for row, picture in enumerate(pictures):
        if not is_picture(picture):
            raise BadInput(f"{name} must be images in every row, got {type(picture).__name__} in row {row}")
        if picture.mode not in (*GREY_MODES, *COLOUR_MODES):
            raise BadInput(f"{name} must be images of 8 bits, got mode {picture.mode} in row {row}; convert them first")
        if picture.size != pictures[0].size:
            raise _unequal(name, row, picture.size, pictures[0].size, "resize them first, with dataset.map")
    mode = "L" if all(picture.mode in GREY_MODES for picture in pictures) else "RGB"
    arrays = np.stack([np.asarray(picture.convert(mode), dtype=np.uint8) for picture in pictures])
    return _channels_first(torch.from_numpy(arrays), certain=True)


def _refuse_missing(name: str, values: list[Any]) -> None:
    missing = [row for row, value in enumerate(values) if value is None]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise BadInput(f"{name} must have a value in every row, got none in {len(missing)}: {shown}")


def _refuse_unequal(name: str, values: list[Any]) -> None:
    """Numbers have equal shapes, as far as their first axis tells."""
    first = _shape(values[0])
    for row, value in enumerate(values):
        if _shape(value) != first:
            raise _unequal(name, row, _shape(value), first, "pad or resize them to one shape first, with dataset.map")


def _shape(value: Any) -> tuple[int, ...]:
    if hasattr(value, "shape"):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, list | tuple) else ()


def _unequal(name: str, row: int, got: tuple[int, ...], first: tuple[int, ...], remedy: str) -> BadInput:
    return BadInput(f"{name} must have equal shapes, got {got} in row {row} and {first} in row 0; {remedy}")


def _as_labels(name: str, values: Iterable[Any]) -> list[Any]:
    """Python's own kinds: numbers or strings."""
    labels = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    labels = [value.item() if isinstance(value, Tensor | np.generic) else value for value in labels]
    _refuse_missing(name, labels)
    if any(isinstance(value, list | dict | np.ndarray) for value in labels):
        raise BadInput(f"{name} must be one label a row, got {type(labels[0]).__name__}")
    return labels
