"""What a saved buffer must have: names, shapes, dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from gcr.settings import BadInput

if TYPE_CHECKING:
    from gcr.memory.buffer import Buffer

COUNTERS = ("kept", "pooled", "seen", "seen_since", "updates", "adds", "samples")
SIZES = ("capacity", "candidates", "seed")
NEEDED, OPTIONAL = {"image", "label", "weight", "task"}, {"logits", "score"}  # columns


def checked_columns(buffer: Buffer, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns of a state that fits ``buffer``; an error if it does not."""
    columns = {name: tensor for name, tensor in state.items() if name not in (*COUNTERS, *SIZES)}
    needed = buffer.columns.keys() or (NEEDED if columns else set())
    for name in (*COUNTERS, *SIZES, *sorted(needed)):
        if not isinstance(state.get(name), Tensor):
            raise BadInput(f"state lacks the tensor {name}; give what Buffer.state_dict() returned")
    if unknown := sorted(columns.keys() - (buffer.columns.keys() or NEEDED | OPTIONAL)):
        raise BadInput(f"state has {', '.join(unknown)}, which this buffer has not; load it into a new Buffer")
    _check_counters(buffer, {name: state[name] for name in (*COUNTERS, *SIZES)}, bool(columns))
    for name, column in columns.items():
        own = buffer.columns.get(name, column)
        shape = (buffer.rows, *own.shape[1:])
        if column.shape != shape or column.dtype != own.dtype:
            rule, got = f"{own.dtype} {shape}", f"{column.dtype} {tuple(column.shape)}"
            raise BadInput(f"{name} of state must be {rule}, got {got}; load it into a new Buffer")
    return columns


def _check_counters(buffer: Buffer, counters: dict[str, Tensor], filled: bool) -> None:
    for name, counter in counters.items():
        if counter.numel() != 1 or counter.is_floating_point() or int(counter) < 0:
            raise BadInput(f"{name} of state must be one whole number >= 0, got {counter.tolist()}")
    number = {name: int(counter) for name, counter in counters.items()}
    for name in ("capacity", "candidates"):
        if number[name] != getattr(buffer, name):
            sizes = f"Buffer({number['capacity']}, candidates={number['candidates']})"
            raise BadInput(f"{name} of state must be {getattr(buffer, name)}, got {number[name]}; use {sizes}")
    if number["kept"] > buffer.capacity or number["pooled"] > buffer.candidates:
        raise BadInput("kept and pooled of state must be <= capacity and candidates; the state is damaged")
    if not filled and number["kept"] + number["pooled"]:
        raise BadInput("state counts examples but has no columns; the state is damaged")
