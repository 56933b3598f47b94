"""An EMA copy of a network: ``theta_ema <- (1 - share) theta_ema + share theta``, tensors under a prefix in ``Extras``.

Copies are updated by a few kernels for all tensors, and run without a second module.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call

from gcr.models import Network, state_tensors, statistics


def learned_tensors(net: Network) -> dict[str, Tensor]:
    """What training changes, by name and by reference: parameters with gradients, BatchNorm's running statistics."""
    running = {id(tensor) for tensor in statistics(net)}
    parameters = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    return {**parameters, **{name: tensor for name, tensor in net.named_buffers() if id(tensor) in running}}


def saved_tensors(net: Network) -> dict[str, Tensor]:
    """All that a state has, by name and by reference; what several layers share once, as ``functional_call`` wants."""
    once = {*dict(net.named_parameters()), *dict(net.named_buffers())}
    return {name: tensor for name, tensor in state_tensors(net).items() if name in once}


def held_by(net: Network, names: Iterable[str]) -> list[Tensor]:
    """The network's parameters and buffers of these names, by reference."""
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return [own[name] for name in names]


@torch.no_grad()
def update_ema(averages: list[Tensor], current: list[Tensor], share: Tensor) -> None:
    """In place; ``share`` () is on the device. A share of 1 gives ``current`` to the bit, 0 changes nothing.

    >>> average = torch.tensor([2.0])
    >>> update_ema([average], [torch.tensor([6.0])], torch.tensor(0.25))
    >>> average
    tensor([3.])
    """
    torch._foreach_mul_(averages, 1 - share)
    torch._foreach_add_(averages, torch._foreach_mul(current, share))


def logits_of_copy(prefix: str, net: Network, images: Tensor, extras: dict[str, Tensor]) -> Tensor:
    """Logits with the copy's tensors in place of the network's. In training mode its running statistics change."""
    logits: Tensor = functional_call(net, copy_in(prefix, extras), (images,))
    return logits


def copy_in(prefix: str, extras: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a copy under the network's own names; none without a prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in extras.items() if prefix and name.startswith(prefix)}
