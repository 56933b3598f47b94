"""Any optimizer in the step: ours, or one of ``torch.optim``, also inside a captured step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gcr.models.network import as_it_lies
from gcr.settings import LARGEST, BadInput, brief_of
from gcr.training.sgd import Sgd

AnyOptimizer = Sgd | Optimizer


def trained_parameters(optimizer: AnyOptimizer, net: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step moves: those that the optimizer holds and that want a gradient."""
    if isinstance(optimizer, torch.optim.LBFGS) or not isinstance(optimizer, AnyOptimizer):
        kind = type(optimizer).__name__
        raise BadInput(f"optimizer must be gcr.Sgd or one of torch.optim that needs no closure, got {kind}")
    held, own = held_parameters(optimizer), set(net.parameters())
    if not own.issuperset(held):
        raise BadInput("optimizer holds parameters that are not the network's; make it from net.parameters()")
    wanted = [parameter for parameter in held if parameter.requires_grad]
    if not wanted:
        raise BadInput("optimizer holds no parameter that wants a gradient; unfreeze some of the network")
    return wanted


def held_parameters(optimizer: AnyOptimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def new_parameters(optimizer: AnyOptimizer, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those that it does not hold."""
    held = set(held_parameters(optimizer))
    return [parameter for parameter in parameters if parameter not in held]


def add_parameters(optimizer: AnyOptimizer, new: Sequence[nn.Parameter]) -> None:
    """As a group of their own with its first values."""
    if new:
        optimizer.add_param_group({"params": list(new)})


def drop_parameters(optimizer: AnyOptimizer, parameters: set[nn.Parameter]) -> None:
    """From its groups and memory; what it does not hold is no matter."""
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p not in parameters]
    if isinstance(optimizer, Optimizer):
        for parameter in parameters:
            optimizer.state.pop(parameter, None)


def apply_gradients(
    optimizer: AnyOptimizer, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]
) -> None:
    if isinstance(optimizer, Sgd):
        optimizer.step(parameters, gradients)
        return
    optimizer.zero_grad(set_to_none=True)  # of others: they would move layers that are frozen
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    try:
        optimizer.step()
    finally:  # also where a capture has no memory for it: gradients would keep what they have
        optimizer.zero_grad(set_to_none=True)


def clipped(gradients: Sequence[Tensor | None], most: float) -> list[Tensor | None]:
    """Scaled so that their norm, all together, is at most ``most``. One tensor may be the gradient of several."""
    reached = [gradient for gradient in gradients if gradient is not None]
    if any(gradient.is_sparse for gradient in reached):
        raise BadInput("clip must be None with sparse gradients; leave it out, or make embeddings with sparse=False")
    norm = torch.nn.utils.get_total_norm(reached)
    scaled = iter(torch._foreach_mul(reached, (most / (norm + 1e-6)).clamp_max(1.0)))
    return [None if gradient is None else next(scaled) for gradient in gradients]


def make_capturable(optimizer: AnyOptimizer) -> str:
    """Ready it for a captured step. Why it cannot be, if it cannot."""
    if isinstance(optimizer, Sgd | torch.optim.SGD):
        return ""
    if not all("capturable" in group for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} has no capturable form"
    for group in optimizer.param_groups:
        group["capturable"] = True
    return ""


def numbers_of(optimizer: AnyOptimizer) -> list[Any]:
    """What a captured step has in it of the optimizer: its settings, and where those lie that are tensors."""
    settings = [value for group in optimizer.param_groups for name, value in group.items() if name != "params"]
    return [id(value) if isinstance(value, Tensor) else value for value in settings]


def optimizer_tensors(optimizer: AnyOptimizer) -> Iterator[tuple[str, Tensor]]:
    """What it remembers of past steps, by number of the parameter: momenta, moments, counts."""
    if isinstance(optimizer, Optimizer):
        for number, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if value is not None:
                    yield f"{number}.{name}", torch.as_tensor(value)


def restore_optimizer(optimizer: AnyOptimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave. A ``ValueError`` names what another optimizer gave."""
    if isinstance(optimizer, Sgd):
        return
    _check_remembered(optimizer, tensors)
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor.clone()  # torch would keep it
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    order_moments(optimizer)


def order_moments(optimizer: AnyOptimizer) -> None:
    """What it remembers of a parameter lies in memory as that does, which fused optimizers take for granted."""
    for parameter, values in optimizer.state.items() if isinstance(optimizer, Optimizer) else ():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = as_it_lies(value, parameter)


def group_numbers(optimizer: AnyOptimizer) -> list[dict[str, Any]]:
    """The numbers of each group, which a schedule changes: lr (a tensor's too), betas, initial_lr. No flags or
    functions."""
    plain = [{name: _plain(value) for name, value in group.items()} for group in optimizer.param_groups]
    return [{name: value for name, value in group.items() if _are_numbers(value)} for group in plain]


HOW = {"foreach", "fused", "capturable", "differentiable"}  # flags that change numbers by rounding at most


def group_flags(optimizer: AnyOptimizer, net: nn.Module) -> list[dict[str, Any]]:
    """The other settings of each group that change its steps, as nesterov, with the names of its parameters."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    return [
        {name: value for name, value in group.items() if isinstance(value, bool | str) and name not in HOW}
        | {"params": [names.get(parameter, "") for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]


def check_group_numbers(optimizer: AnyOptimizer, saved: Any) -> None:
    """Refuse, as a ``ValueError``, what ``group_numbers`` gives of no such optimizer."""
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise ValueError(f"it has {len(saved)} groups there, {len(groups)} here")
    for group, numbers in zip(groups, saved, strict=True):
        for name, value in numbers.items():
            now = _plain(group[name] if isinstance(optimizer, Sgd) else group.get(name, value))  # a schedule adds some
            alike = _are_numbers(value) and _are_numbers(now) and np.shape(value) == np.shape(now)
            if not (alike and _in_bounds(np.asarray(value), np.asarray(now))):
                raise ValueError(f"{name} must be a number as {now!r:.40}, got {value!r:.40}")


def restore_group_numbers(optimizer: AnyOptimizer, saved: Sequence[Mapping[str, Any]]) -> None:
    for group, numbers in zip(optimizer.param_groups, saved, strict=True):
        for name, value in numbers.items():
            if isinstance(group.get(name), Tensor):
                group[name].fill_(value)  # where a captured step reads it
            else:
                group[name] = tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _in_bounds(value: np.ndarray, now: np.ndarray) -> bool:
    """No rate falls below 0, and of several, as betas, none reaches 1, unless one does now."""
    beyond = (value < 0) & (now >= 0) | (value >= 1) & (now < 1) & (now.ndim > 0)
    return not beyond.any()


def _are_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(_are_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _check_remembered(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Of torch's own optimizers, each parameter has tensors of its shape, of all the names that a step would leave."""
    parameters: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = type(optimizer) is getattr(torch.optim, type(optimizer).__name__, None)
    names: dict[int, set[str]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        if not number.isdecimal() or int(number) >= len(parameters) or not name:
            raise ValueError(f"{key} is of no parameter")
        shape = parameters[int(number)].shape
        numbers = [n for n in range(len(parameters)) if f"{n}.{name}" in tensors]
        single = all(tensors[f"{n}.{name}"].numel() == 1 for n in numbers)  # as a count of steps
        if known and not (tensor.is_floating_point() and (not single or 0 <= float(tensor) < math.inf)):
            raise ValueError(f"{key} must be {'a number >= 0' if single else 'floats'}")
        factored = name in ("row_var", "col_var")  # of Adafactor
        if known and not single and not factored and tensor.shape != shape:
            raise ValueError(f"{key} is of shape {tuple(tensor.shape)}, its parameter of {tuple(shape)}")
        names.setdefault(int(number), set()).add(name)
    left = _left_by_a_step(optimizer) if known and names else []
    for place, held in names.items() if left else ():
        if lacking := left[place] - held:
            raise ValueError(f"{place}.{min(lacking)} is missing")


def _left_by_a_step(optimizer: Optimizer) -> list[set[str]]:
    """The names of what it remembers of each parameter, from a step of its like with parameters of one number each."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        ones = [nn.Parameter(torch.ones([1] * parameter.dim())) for parameter in group["params"]]
        groups.append(group | {"params": ones} | {key: False for key in ("capturable", "fused") if key in group})
    like: Optimizer = cast(Any, type(optimizer))(groups)
    held = [parameter for group in groups for parameter in group["params"]]
    for parameter in held:
        parameter.grad = torch.ones_like(parameter)
    try:
        like.step()
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{type(optimizer).__name__} makes no step: {brief_of(error)}") from None
    return [set(like.state[parameter]) for parameter in held]
