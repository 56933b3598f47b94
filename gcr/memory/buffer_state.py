"""What a saved buffer must have: names, shapes, dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gcr.settings import BadInput, Misfit

COUNTERS = ("kept", "pooled", "seen", "seen_since", "updates", "adds", "samples")
SIZES = ("capacity", "candidates", "seed")
NEEDED, OPTIONAL = {"image", "label", "weight", "task"}, {"logits", "score", "loss"}  # columns


def checked_columns(
    capacity: int, candidates: int, own: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The columns of a state that fits a buffer of these sizes and columns (none yet: any); an error if not."""
    columns = {name: tensor for name, tensor in state.items() if name not in (*COUNTERS, *SIZES)}
    needed = own.keys() or (NEEDED if columns else set())
    for name in (*COUNTERS, *SIZES, *sorted(needed)):
        if not isinstance(state.get(name), Tensor):
            raise BadInput(f"state lacks the tensor {name}; give what Buffer.state_dict() returned")
    if unknown := sorted(columns.keys() - (own.keys() or NEEDED | OPTIONAL)):
        raise BadInput(f"state has {', '.join(unknown)}, which this buffer has not; load it into a new Buffer")
    _check_counters(capacity, candidates, {name: state[name] for name in (*COUNTERS, *SIZES)}, bool(columns))
    for name, column in columns.items():
        like = own.get(name, column)
        shape = (capacity + candidates, *like.shape[1:])
        if column.shape != shape or column.dtype != like.dtype:
            rule, got = f"{like.dtype} {shape}", f"{column.dtype} {tuple(column.shape)}"
            raise BadInput(f"{name} of state must be {rule}, got {got}; load it into a new Buffer")
    return columns


def check_held(buffer: Any, tensors: Mapping[str, Tensor], n_classes: int) -> None:
    """Refuse tensors that a buffer of this size could not have held: by name and shape, counters, labels."""
    for name, own in buffer.tensors():
        there = tensors.get(name)
        if there is None or there.shape != own.shape or there.dtype != own.dtype:
            raise Misfit(f"memory.{name} is missing or of another shape")
    counters = {name: tensors[name] for name in COUNTERS}
    sizes = {name: torch.tensor(getattr(buffer, name)) for name in SIZES}
    try:
        _check_counters(buffer.capacity, buffer.candidates, counters | sizes, True)
    except BadInput as error:
        raise Misfit(str(error)) from None
    for name, most in (("label", n_classes - 1), ("task", 2**31)):
        if not 0 <= int(tensors[name].min()) <= int(tensors[name].max()) <= most:
            raise Misfit(f"memory.{name} must be 0 to {most}")
    if "weight" in tensors and not bool(tensors["weight"].isfinite().all()):
        raise Misfit("memory.weight must be finite")


def _check_counters(capacity: int, candidates: int, counters: dict[str, Tensor], filled: bool) -> None:
    for name, counter in counters.items():
        if counter.numel() != 1 or counter.is_floating_point() or int(counter) < 0:
            raise BadInput(f"{name} of state must be one whole number >= 0, got {counter.tolist()}")
    number = {name: int(counter) for name, counter in counters.items()}
    for name, size in (("capacity", capacity), ("candidates", candidates)):
        if number[name] != size:
            sizes = f"Buffer({number['capacity']}, candidates={number['candidates']})"
            raise BadInput(f"{name} of state must be {size}, got {number[name]}; use {sizes}")
    if number["kept"] > capacity or number["pooled"] > candidates:
        raise BadInput("kept and pooled of state must be <= capacity and candidates; the state is damaged")
    if not filled and number["kept"] + number["pooled"]:
        raise BadInput("state counts examples but has no columns; the state is damaged")
