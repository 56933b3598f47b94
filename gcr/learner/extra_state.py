"""What modules keep besides parameters and buffers, by ``get_extra_state``."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor, nn

from gcr.settings import BadInput


def is_extra(name: str) -> bool:
    """Whether this name in a ``state_dict`` is that of extra state."""
    return name.rpartition(".")[2] == "_extra_state"


def network_state(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``state_dict`` as a file can hold it: tensors, and what JSON gives back as it was."""
    tensors, values = {}, {}
    for name, value in net.state_dict().items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif _json_holds(value):
            values[name] = value
        else:
            raise BadInput(
                f"net must have extra state that can be saved, got {type(value).__name__} from get_extra_state of "
                f'"{name.rpartition(".")[0]}"; return a tensor, or text, numbers, lists and dicts with text as keys'
            )
    return tensors, values


def _json_holds(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
