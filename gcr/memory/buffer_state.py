"""What a saved buffer must have: names, shapes, dtypes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gcr.settings import BadInput

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
