"""What a ``Learner`` is made of, checked before anything is learned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gcr.memory import BalancedReservoir, Policy
from gcr.memory.examples import as_count
from gcr.methods import METHODS, ErAce, Method
from gcr.settings import BadInput, nearest
from gcr.training.numerics import PRECISIONS, resolved, usable_device
from gcr.training.optimizer import AnyOptimizer

LR = 1e-3  # of AdamW, where no optimizer is given

MakeOptimizer = Callable[[Iterable[nn.Parameter]], AnyOptimizer]


def adamw(parameters: Iterable[nn.Parameter], lr: float = LR) -> AnyOptimizer:
    """On a CPU in one pass over the parameters: several times faster than torch's default, same formula."""
    held = list(parameters)
    return torch.optim.AdamW(held, lr=lr, fused=all(p.device.type == "cpu" for p in held) or None)


def checked_optimizer(given: Any) -> AnyOptimizer | MakeOptimizer:
    if given is None:
        return adamw
    if isinstance(given, AnyOptimizer) or callable(given):
        return given  # type: ignore[no-any-return]
    raise BadInput(
        f"optimizer must be one of torch.optim, gcr.Sgd or a function of parameters, got {type(given).__name__}"
    )


def checked_policy(memory: int | Policy, method: Method) -> Policy | None:
    """How memory is kept; None for a method without memory."""
    if not isinstance(method, Method):
        kinds = {kind.name: kind for kind in METHODS}
        named = kinds.get(nearest(str(getattr(method, "name", method)), kinds), ErAce).__name__
        raise BadInput(f"method must be a Method, as gcr.methods.{named}(), got {method!r}")
    if type(method).end_stage is not Method.end_stage or method.stages != "streams":
        raise BadInput(f"method must work batch by batch, got {method.name}, which works task by task; use gcr.train")
    if not method.replays:
        return None
    if isinstance(memory, Policy):
        if memory.pool == "selector":
            raise BadInput("pool=selector looks at all examples of a task again; use pool=reservoir")
        memory.check_predictor(method.name, method.predicts_by_copy)
        return replace(memory, admit="all")  # an example is offered once, at first, when few are classified correctly
    return Policy(buffer=as_count("memory", memory, 1), selector=BalancedReservoir())


def checked_net(net: Any) -> nn.Module:
    if not isinstance(net, nn.Module):
        raise BadInput(f"net must be a torch.nn.Module, got {type(net).__name__}")
    if next(net.parameters(), None) is None:
        raise BadInput("net must have parameters to train, got none")
    return net


def checked_device(device: torch.device | str | None, net: nn.Module) -> torch.device:
    """That of the network's parameters if not given."""
    return next(net.parameters()).device if device is None else usable_device(device)


def checked_precision(precision: str, device: torch.device) -> str:
    if precision not in PRECISIONS:
        raise BadInput(f'precision must be one of {", ".join(PRECISIONS)}, got "{precision}"')
    return resolved(precision, device)


def checked_clip(clip: float | None) -> float:
    """0: no clipping."""
    if clip is None:
        return 0.0
    if isinstance(clip, int | float) and not isinstance(clip, bool) and clip > 0:
        return float(clip)
    raise BadInput(f"clip must be a number > 0, or None, got {clip!r}")


def refuse_without_gradients() -> None:
    if not torch.is_grad_enabled():
        raise BadInput("learning needs gradients, which are off; call it outside of torch.no_grad()")


def refuse_inference_mode() -> None:
    if torch.is_inference_mode_enabled():
        raise BadInput("torch.inference_mode() makes tensors that cannot be trained later; use torch.no_grad()")


def network_state(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``state_dict`` as a file can hold it: tensors, and what JSON gives back as it was."""
    tensors, values = {}, {}
    for name, value in net.state_dict().items():
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.dtype == torch.complex128:
                raise BadInput(
                    f'net must have tensors that can be saved, got "{name}" ({value.layout}, {value.dtype}); register '
                    "it as a buffer with persistent=False, or in another form"
                )
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
