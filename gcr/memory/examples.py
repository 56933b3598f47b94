"""Examples as users pass them: arrays in, tensors that can be stored without loss out, or an error.

>>> as_images("images", [[[0, 255]]]).dtype
torch.uint8
>>> as_images("images", [[[0.0, float("nan")]]])
Traceback (most recent call last):
    ...
gcr.settings.BadInput: images must be finite, got NaN or infinity in 1 of 1 rows: 0
"""

from __future__ import annotations

import hashlib
import operator
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcr.select.checks import check_mapped, check_masked
from gcr.settings import BadInput

SCALES = 20  # times the range of other images that is taken for another scale


class Examples(NamedTuple):
    """Columns of some examples, row by row."""

    images: Tensor  # [n, ...] uint8 or float32
    labels: Tensor  # [n] int64
    logits: Tensor | None  # [n, classes] float32; None where none were added
    weights: Tensor  # [n] float32
    tasks: Tensor  # [n] int64


def as_tensor(name: str, values: Any, device: torch.device | str | None = None) -> Tensor:
    """Tensors, NumPy arrays and nested lists of numbers."""
    try:
        if isinstance(values, Tensor):
            return values.detach().to(device)
        if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
            return torch.stack([value.detach() for value in values]).to(device)
        check_masked(name, values)
        check_mapped(name, values)
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise BadInput(f"{name} must be real numbers, got {array.dtype}")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise BadInput(f"{name} must be an array of numbers whose rows have equal shapes ({error})") from None


def warn_of_scale(name: str, images: Tensor, like: str, others: Tensor) -> None:
    """Floats of another range than those they are to be like were most likely normalised in another way."""
    here, there = (max(abs(float(end)) for end in values.aminmax()) for values in (images, others))
    if min(here, there) > 0 and max(here, there) > SCALES * min(here, there):
        remark = f"{name} has values of up to {here:.3g}, {like} of up to {there:.3g}; scale both alike"
        warnings.warn(remark, stacklevel=2)


def as_batch(
    images: Any, labels: Any, logits: Any, weights: Any, tasks: Any, device: torch.device
) -> dict[str, Tensor]:
    """The columns that are given, by their names in memory."""
    images = as_images("images", images, device)
    n = len(images)
    batch = {"image": images, "label": as_whole_numbers("labels", labels, n, device)}
    if logits is not None:
        batch["logits"] = as_floats("logits", logits, n, 2, device).float()
        highest, width = int(batch["label"].max()), batch["logits"].shape[1]
        if highest >= width:
            raise BadInput(f"labels must be < {width}, the width of logits, got {highest}")
    if weights is not None:
        batch["weight"] = as_floats("weights", weights, n, 1, device).float()
        if bool((batch["weight"] < 0).any()):
            raise BadInput(f"weights must be >= 0, got {float(batch['weight'].min())}")
    if tasks is not None:
        batch["task"] = as_whole_numbers("tasks", tasks, n, device)
    return batch


def check_fits(batch: dict[str, Tensor], columns: dict[str, Tensor]) -> None:
    """An error unless the batch has the shapes and dtypes that are stored already."""
    if ("logits" in batch) != ("logits" in columns):
        rule = "in every batch" if "logits" in columns else "in no batch"
        raise BadInput(f"logits must be given {rule}, as in the first one")
    for column, name in (("image", "images"), ("logits", "logits")):
        if column in batch and batch[column].shape[1:] != columns[column].shape[1:]:
            stored, got = (tuple(tensor.shape[1:]) for tensor in (columns[column], batch[column]))
            raise BadInput(f"{name} must have shape {stored} each, as stored, got {got}")
    check_dtype(batch["image"], columns)


def check_dtype(images: Tensor, columns: dict[str, Tensor]) -> None:
    stored = columns["image"].dtype
    if images.dtype != stored:
        raise BadInput(f"images must be {stored}, as stored, got {images.dtype}; convert all batches alike")


def as_images(name: str, values: Any, device: torch.device | str | None = None) -> Tensor:
    """[n, ...] as uint8 or float32. Whole numbers from 0 to 255 become uint8; floats keep their values."""
    images = as_tensor(name, values, device)
    if images.dim() < 2 or not images.numel():
        raise BadInput(f"{name} must have a row per image and must not be empty, got shape {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images
    if images.dtype == torch.bool or images.is_complex():
        raise BadInput(f"{name} must be uint8 or float, got {images.dtype}; convert them to uint8 or float")
    if images.is_floating_point():
        images = images.float()
        refuse_not_finite(name, images)
        return images
    low, high = (int(value) for value in images.long().aminmax())
    if low < 0 or high > 255:
        raise BadInput(
            f"{name} of whole numbers must be in 0..255, got {low}..{high} as {images.dtype}; scale them to floats in "
            "[0, 1]"
        )
    return images.to(torch.uint8)


def as_whole_numbers(name: str, values: Any, n: int, device: torch.device | str | None = None) -> Tensor:
    """[n] int64, all >= 0."""
    numbers = as_tensor(name, values, device)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise BadInput(f"{name} must be whole numbers, got {numbers.dtype}; convert them to int64")
    if numbers.shape != (n,):
        hint = "; one-hot labels become numbers with argmax(1)" if numbers.dim() == 2 else ""
        raise BadInput(f"{name} must be one per image ({n}), got shape {tuple(numbers.shape)}{hint}")
    numbers = numbers.long()
    if bool((numbers < 0).any()):
        raise BadInput(f"{name} must be >= 0, got {int(numbers.min())}; number classes from 0")
    return numbers


def as_floats(name: str, values: Any, n: int, dim: int, device: torch.device | str | None = None) -> Tensor:
    """[n] (``dim`` 1) or [n, d] (``dim`` 2) finite floats. float64 stays, all else becomes float32."""
    floats = as_tensor(name, values, device)
    if floats.is_complex() or floats.dtype == torch.bool:
        raise BadInput(f"{name} must be real numbers, got {floats.dtype}")
    if floats.dim() != dim or len(floats) != n or not floats.numel():
        wanted = f"({n},)" if dim == 1 else f"({n}, numbers of a row)"
        raise BadInput(f"{name} must have shape {wanted}, got {tuple(floats.shape)}")
    floats = floats if floats.dtype == torch.float64 else floats.float()
    refuse_not_finite(name, floats)
    return floats


def refuse_not_finite(name: str, values: Tensor) -> None:
    wrong = torch.nonzero(~torch.isfinite(values).flatten(1).all(1) if values.dim() > 1 else ~torch.isfinite(values))
    if len(wrong):
        shown = ", ".join(map(str, wrong[:5, 0].tolist())) + (", …" if len(wrong) > 5 else "")
        raise BadInput(f"{name} must be finite, got NaN or infinity in {len(wrong)} of {len(values)} rows: {shown}")


def as_count(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number, of Python's or NumPy's kinds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low or (high is not None and number > high):
        bound = f">= {low}" if high is None else f"from {low} to {high}"
        raise BadInput(f"{name} must be a whole number {bound}, got {value!r}")
    return number


def digests(examples: Tensor | None) -> list[bytes]:
    """Equal where examples are."""
    if examples is None:
        return []
    return [hashlib.sha256(row.contiguous().numpy().tobytes()).digest() for row in examples.cpu()]
