"""A head that grows with the classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gcr.memory.randomness import generator
from gcr.methods import Extras, Method
from gcr.models import Network
from gcr.training.optimizer import AnyOptimizer


@torch.no_grad()
def grow_head(head: nn.Linear, n_classes: int, seed: int, optimizer: AnyOptimizer | None = None) -> None:
    """Give the head ``n_classes`` outputs, in place: parameters stay the same objects, the optimizer goes on.

    New rows are drawn as ``nn.Linear`` draws them; what the optimizer remembers of them is 0.

    >>> head = nn.Linear(4, 2)
    >>> grow_head(head, 5, seed=0)
    >>> head.out_features, tuple(head.weight.shape), tuple(head.bias.shape)
    (5, (5, 4), (5,))
    """
    old, bound = head.out_features, head.in_features**-0.5
    draws = generator((seed, n_classes), "head").random((n_classes - old, head.in_features + 1))
    rows = torch.from_numpy(2 * bound * draws - bound)
    for parameter, new in ((head.weight, rows[:, 1:]), (head.bias, rows[:, 0])):
        if parameter is None:
            continue
        parameter.data = torch.cat([parameter.data, new.to(parameter)])
        parameter.grad = None
        if isinstance(optimizer, Optimizer):
            remembered = optimizer.state.get(parameter, {})
            for name, value in remembered.items():
                if isinstance(value, Tensor) and value.dim() and len(value) == old:
                    remembered[name] = padded(value, parameter.shape)
    head.out_features = n_classes


def cut_or_grow(head: nn.Linear, n_outputs: int, seed: int) -> None:
    """Make the head as wide as a saved one; its weights are about to be loaded."""
    for parameter in (head.weight, head.bias):
        if parameter is not None and head.out_features > n_outputs:
            parameter.data = parameter.data[:n_outputs].clone()
    if head.out_features > n_outputs:
        head.out_features = n_outputs
    elif head.out_features < n_outputs:
        grow_head(head, n_outputs, seed)


def grown_extras(method: Method, net: Network, extras: Extras) -> Extras:
    """The method's own tensors for a grown head: old values in front, new ones as at the beginning."""
    return {
        name: extras[name] if extras[name].shape == new.shape else padded(extras[name], new.shape, new)
        for name, new in method.extras(net, 1).items()
    }


def padded(old: Tensor, shape: torch.Size, new: Tensor | None = None) -> Tensor:
    """``old`` in front of zeros, or of what ``new`` has there."""
    whole = old.new_zeros(shape) if new is None else new.clone()
    whole[: len(old)] = old
    return whole
