"""Arrays of a caller as tensors, and what is wrong with them in words."""

from __future__ import annotations

import numbers
import operator
import os
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcr.select.coreset import Coreset, Pool
from gcr.select.gradients import LastLayerGradients
from gcr.settings import BadInput

BLOCK = 2**22  # numbers that are looked at together
CONTAINER_LIMITS = tuple(  # bytes, where a container has a limit: control groups 2 and 1
    map(Path, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"))
)


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, of Python's or NumPy's kinds."""
    try:
        return not isinstance(value, bool) and operator.index(value) == value
    except TypeError:
        return False


def is_number(value: Any) -> bool:
    """Whether this is a real number, of Python's or NumPy's kinds."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_budget(budget: Any, n: int) -> None:
    if not is_whole(budget) or not 1 <= budget <= n:
        raise BadInput(f"budget must be a whole number from 1 to {n}, the number of rows, got {budget!r}")


def check_masked(name: str, values: Any) -> None:
    """What NumPy's masked arrays hide would be read as any other number."""
    mask: Any = getattr(values, "_mask", None)
    if hasattr(mask, "any") and mask.any():
        raise BadInput(f"{name} must not have masked entries; fill them in by filled(…), or leave these rows out")


def check_mapped(name: str, values: Any) -> None:
    """A mapped file must still have all the bytes that were mapped: reading others ends the process."""
    mapped = None
    if isinstance(values, Tensor):
        mapped = _file_of(values)
    while values is not None and not isinstance(values, Tensor):  # a view's base has the whole map
        if getattr(values, "filename", None) is not None and hasattr(values, "offset"):
            mapped = str(values.filename), values.offset + values.nbytes
        values = getattr(values, "base", None)
    if mapped is not None and os.path.exists(mapped[0]):
        size, (file, needed) = os.stat(mapped[0]).st_size, mapped
        if size < needed:
            cut = f"file {file} has {size:,} bytes, and {needed:,} were mapped"
            raise BadInput(f"{name} must be a whole file, but {cut}; write it again")


def _file_of(values: Tensor) -> tuple[str, int] | None:
    """The file that a tensor in main memory is mapped from, and how many of its bytes; Linux alone says so."""
    if values.device.type != "cpu" or values.layout != torch.strided or values.numel() == 0:
        return None
    storage = values.untyped_storage()
    begin = storage.data_ptr()
    with suppress(OSError, ValueError), open("/proc/self/maps") as maps:
        for line in maps:
            limits, _, offset, _, _, *file = line.split(maxsplit=5)
            first, last = (int(number, 16) for number in limits.split("-"))
            if first <= begin < last:
                held = int(offset, 16) + begin - first + storage.nbytes()
                return (file[0].rstrip("\n"), held) if file and file[0].startswith("/") else None
    return None


def as_tensor(name: str, values: Any, device: torch.device) -> Tensor:
    if isinstance(values, Pool):
        remedy = "gcr.LastLayerGradients(pool.features, pool.residuals) has its gradients"
        raise BadInput(f"{name} must be an array, got a Pool; {remedy}")
    check_masked(name, values)
    check_mapped(name, values)
    if isinstance(values, Tensor) and values.layout != torch.strided:
        raise BadInput(f"{name} must be a dense array, got a tensor with {values.layout}; to_dense() makes one")
    if not isinstance(values, Tensor) and hasattr(values, "to_numpy"):  # of pandas, which torch reads by its index
        values = values.to_numpy()
    if not getattr(getattr(values, "dtype", None), "isnative", True):  # another byte order
        values = values.astype(values.dtype.newbyteorder("="))
    if any(step < 0 or step % values.itemsize for step in getattr(values, "strides", ())):  # torch knows no such view
        values = values.copy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # a file mapped for reading
            return torch.as_tensor(values, device=device).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} must be an array of numbers ({error})") from None


def as_matrix(name: str, values: Any, device: torch.device, finite: bool = True) -> Tensor:
    """``finite``: refuse rows that are not; this reads all of them."""
    matrix = as_tensor(name, values, device)
    if matrix.is_complex():
        raise BadInput(f"{name} must be real numbers, got {matrix.dtype}")
    if matrix.dim() != 2 or matrix.numel() == 0:
        raise BadInput(f"{name} must be a matrix with at least one row and column, got shape {tuple(matrix.shape)}")
    if finite:
        check_finite(name, matrix)
    return matrix


def check_finite(name: str, matrix: Tensor, first: int = 0) -> None:
    """Names rows that are not finite; they are counted from ``first`` on."""
    finite = torch.cat([torch.isfinite(rows).all(1) for rows in matrix.split(max(BLOCK // max(matrix.shape[1], 1), 1))])
    broken = torch.nonzero(~finite).flatten() + first
    if len(broken):
        shown = ", ".join(map(str, broken[:5].tolist())) + (", …" if len(broken) > 5 else "")
        raise BadInput(f"{name} must be finite, got NaN or infinity in {len(broken)} of {len(matrix)} rows: {shown}")


def as_gradients(name: str, gradients: Any, device: torch.device, finite: bool = True) -> LastLayerGradients:
    """A matrix [n, d], or factors, in tensors."""
    if not isinstance(gradients, LastLayerGradients):
        return LastLayerGradients.of_matrix(as_matrix(name, gradients, device, finite))
    left = as_matrix("features", gradients.features, device, finite)
    right = as_matrix("residuals", gradients.residuals, device, finite)
    if len(left) != len(right):
        raise BadInput(f"features and residuals must have equally many rows, got {len(left)} and {len(right)}")
    return LastLayerGradients(left, right, gradients.bias)


def as_targets(target: Any, like: LastLayerGradients) -> list[Tensor]:
    """Gradients to match as [c, f (+ 1)] matrices: one, or as many as a list or tuple has."""
    several = isinstance(target, list | tuple) and bool(target)
    several = several and not is_number(target[0]) and getattr(target[0], "shape", None) != ()
    return [_target(one, like) for one in (target if several else [target])]


def _target(target: Any, like: LastLayerGradients) -> Tensor:
    """A vector [d] as it is; the sum of a set's rows, [m, d] or factors."""
    device, shape = like.features.device, (like.residuals.shape[1], like.features.shape[1] + like.bias)
    if isinstance(target, LastLayerGradients):
        rows = as_gradients("target", target, device)
        if like.is_matrix or rows.features.shape[1] + rows.bias != shape[1] or rows.residuals.shape[1] != shape[0]:
            got = f"{rows.features.shape[1]} features and {rows.residuals.shape[1]} residuals, bias={rows.bias}"
            raise BadInput(f"target must have gradients of the width of those to choose from, {shape}, got {got}")
        return rows.weighted_sum(torch.ones(len(rows), dtype=torch.float64, device=device))
    values = as_tensor("target", target, device)
    if values.dim() > 2:
        raise BadInput(f"target must be a vector, a matrix, or several in a list, got shape {tuple(values.shape)}")
    rows = as_gradients("target", values if values.dim() == 2 else values.reshape(1, -1), device)
    width = rows.features.shape[1]
    if width != shape[0] * shape[1]:
        raise BadInput(f"target must have {shape[0] * shape[1]} numbers a row, as the gradients have, got {width}")
    return rows.features.sum(0, dtype=torch.float64).reshape(shape)


def as_labels(name: str, values: Any, n: int, device: torch.device) -> Tensor:
    first = values[0] if isinstance(values, list | tuple) and values else None
    if isinstance(first, str) or getattr(getattr(values, "dtype", None), "kind", None) in ("U", "S", "O"):
        numbered = f"np.unique({name}, return_inverse=True)[1] numbers them"
        raise BadInput(f"{name} must be an array of numbers, got text or objects; {numbered}")
    labels = as_tensor(name, values, device)
    if labels.shape != (n,):
        raise BadInput(f"{name} must be one per row ({n}), got shape {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise BadInput(f"{name} must be whole numbers, got {labels.dtype}")
    return labels.long()


def as_division(labels: Any, groups: Any, n: int, device: torch.device) -> Tensor | None:
    """The class or group of each row [n], if there are any."""
    if labels is not None and groups is not None:
        raise BadInput("labels and groups both divide the rows; give one of them")
    if labels is None and groups is None:
        return None
    return as_labels("labels", labels, n, device) if groups is None else as_labels("groups", groups, n, device)


def as_weights(name: str, values: Any, n: int, device: torch.device) -> Tensor:
    weights = as_tensor(name, values, device).double()
    if weights.shape != (n,):
        raise BadInput(f"{name} must be one per row ({n}), got shape {tuple(weights.shape)}")
    wrong = torch.nonzero(~((weights >= 0) & torch.isfinite(weights))).flatten()
    if len(wrong):
        raise BadInput(f"{name} must be >= 0 and finite, got {weights[wrong[0]].item()} in row {int(wrong[0])}")
    return weights


def as_pool_weights(weights: Any, n: int, device: torch.device, target: Any) -> tuple[Tensor, bool]:
    """What each row counts for in the pool's sum [n], and whether chosen rows have weight 1."""
    ones = torch.ones(n, dtype=torch.float64, device=device)
    if weights is None or isinstance(weights, str):
        if weights not in (None, "fitted", "unit"):
            raise BadInput(f"weights must be 'fitted', 'unit' or one number per row, got {weights!r}")
        return ones, weights == "unit"
    if target is not None:
        raise BadInput("weights per row say what counts in the pool's sum, which a target replaces; leave out one")
    return as_weights("weights", weights, n, device), False


def as_rows(name: str, values: Any, n: int, device: torch.device) -> Tensor:
    """Numbers of different rows: [m] int64; a mask [n] stands for the rows where it is true."""
    rows = as_tensor(name, values, device)
    if rows.dtype == torch.bool and rows.shape == (n,):
        return torch.nonzero(rows).flatten()
    if rows.dim() != 1 or (len(rows) and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)):
        raise BadInput(f"{name} must be a list of row numbers, got shape {tuple(rows.shape)} of {rows.dtype}")
    rows = rows.long()
    wrong = rows[(rows < 0) | (rows >= n)]
    if len(wrong):
        raise BadInput(f"{name} must have row numbers from 0 to {n - 1}, got {int(wrong[0])}")
    if len(rows.unique()) < len(rows):
        raise BadInput(f"{name} must name each row once, got {len(rows)} numbers of {len(rows.unique())} rows")
    return rows


def check_memory(name: str, needed: int, device: torch.device, remedy: str) -> None:
    """Whether this machine, or the container on it, has the bytes that a computation on a CPU will hold."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(file.read_text()))
    if device.type == "cpu" and limits and needed > min(limits):
        size, room = needed / 2**30, min(limits) / 2**30
        raise BadInput(f"{name} must fit in memory ({room:.1f} GiB), got {size:.1f} GiB to hold; {remedy}")


def like_input(values: Any, chosen: Coreset) -> Coreset:
    """The coreset in tensors if ``values`` are, else in NumPy arrays."""
    if isinstance(values, Tensor):
        return chosen
    serves = None if chosen.serves is None else chosen.serves.numpy()
    return replace(chosen, rows=chosen.rows.numpy(), weights=chosen.weights.numpy(), serves=serves)  # type: ignore[arg-type]
