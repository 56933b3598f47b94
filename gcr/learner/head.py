"""A head that grows with the classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gcr.memory.randomness import generator
from gcr.methods import Extras, Method
from gcr.models import Network
from gcr.settings import BadInput
from gcr.training.optimizer import AnyOptimizer


@torch.no_grad()
def grow_head(head: nn.Linear, n_classes: int, seed: int, optimizer: AnyOptimizer | None = None) -> None:
    """Give the head ``n_classes`` outputs; the optimizer goes on with the new parameters.

    New rows are drawn as ``nn.Linear`` draws them; what the optimizer remembers of them is as before a first step.

    >>> head = nn.Linear(4, 2)
    >>> grow_head(head, 5, seed=0)
    >>> head.out_features, tuple(head.weight.shape), tuple(head.bias.shape)
    (5, (5, 4), (5,))
    """
    refuse_computed(head)
    old, bound = head.out_features, head.in_features**-0.5
    draws = generator((seed, n_classes), "head").random((n_classes - old, head.in_features + 1))
    rows = torch.from_numpy(2 * bound * draws - bound)
    for name, new in (("weight", rows[:, 1:]), ("bias", rows[:, 0])):
        parameter = getattr(head, name)
        if parameter is not None:
            grown = nn.Parameter(torch.cat([parameter, new.to(parameter)]), parameter.requires_grad)
            setattr(head, name, grown)
            if optimizer is not None:
                replace_parameter(optimizer, parameter, grown)
    head.out_features = n_classes


def refuse_computed(head: nn.Linear) -> None:
    """A new object replaces each parameter, which a computed weight would not see."""
    if "weight" not in head._parameters:
        raise BadInput(
            "the head cannot grow or be cut: its weight is computed from other tensors (weight_norm, spectral_norm); "
            "give net one output per class from the start, or a plain nn.Linear as its head"
        )


def refuse_tied(net: Network) -> None:
    """A head whose parameters another layer holds, too: that layer would keep the old ones."""
    own = {id(parameter) for parameter in net.head.parameters()}
    for name, layer in net.named_modules():
        if layer is not net.head and any(id(p) in own for p in layer._parameters.values() if p is not None):
            raise BadInput(
                f"the head cannot grow: {name.removeprefix('net.')} has the same weight; give net one output per class "
                "from the start, or a head with a weight of its own"
            )


def replace_parameter(optimizer: AnyOptimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    """In the optimizer's groups and memory. What it remembers in other shapes than the parameter's begins anew."""
    begins: dict[str, float] = {}
    for group in optimizer.param_groups:
        if any(held is old for held in group["params"]):
            begins = begins_with(group)
        group["params"] = [new if held is old else held for held in group["params"]]
    if not isinstance(optimizer, Optimizer):
        return
    remembered = optimizer.state.pop(old, None) or {}
    shapes = {value.shape for value in remembered.values() if isinstance(value, Tensor) and value.dim()}
    if remembered and shapes <= {old.shape} and len(new) >= len(old):
        optimizer.state[new] = {
            name: padded(value, value.new_full(new.shape, begins.get(name, 0.0)))
            if isinstance(value, Tensor) and value.dim()
            else value
            for name, value in remembered.items()
        }


def begins_with(group: dict[str, Any]) -> dict[str, float]:
    """What an optimizer of torch remembers of a parameter before its first step, where that is not 0: Rprop's steps,
    Adagrad's sums."""
    return {"step_size": float(group["lr"]), "sum": float(group.get("initial_accumulator_value", 0.0))}


@torch.no_grad()
def cut_or_grow(head: nn.Linear, n_outputs: int, seed: int, optimizer: AnyOptimizer | None = None) -> None:
    """Make the head as wide as a saved one; its weights are about to be loaded."""
    if head.out_features < n_outputs:
        grow_head(head, n_outputs, seed, optimizer)
    elif head.out_features > n_outputs:
        refuse_computed(head)
        for name in ("weight", "bias"):
            parameter = getattr(head, name)
            if parameter is not None:
                cut = nn.Parameter(parameter[:n_outputs].clone(), parameter.requires_grad)
                setattr(head, name, cut)
                if optimizer is not None:
                    replace_parameter(optimizer, parameter, cut)
        head.out_features = n_outputs


def grown_extras(method: Method, net: Network, extras: Extras) -> Extras:
    """The method's own tensors for a network that has grown, or has or learns in other layers: old values in front, new
    ones as at the beginning. Copies of layers that have been frozen stay, those of layers that are gone do not."""
    fresh = method.extras(net, 1)
    there = {name for name, _ in [*net.named_parameters(), *net.named_buffers()]}
    copies = {name.partition(".")[0] for name in fresh if name.partition(".")[2] in there}
    for name, old in extras.items():
        prefix, _, inner = name.partition(".")
        if prefix in copies and inner not in there:
            continue
        new = fresh.get(name, old)
        if new.shape[1:] != old.shape[1:] or new.shape[:1] < old.shape[:1]:  # another layer under its name
            continue
        fresh[name] = old if old.shape == new.shape else padded(old, new)
    return fresh


def padded(old: Tensor, new: Tensor) -> Tensor:
    """``old`` in front of what ``new`` has behind it."""
    whole = new.clone()
    whole[: len(old)] = old
    return whole
