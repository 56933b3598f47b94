"""Batch statistics taken anew, for a network that is to predict."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def statistics_layers(net: nn.Module) -> list[_BatchNorm]:
    """The layers of batch normalisation that keep running statistics."""
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


@torch.no_grad()
def settle(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of batch normalisation by their means over ``batches``. Nothing else changes.

    Training leaves a mean over its last few minibatches: of the new task and of augmented images more than of what the
    network is to predict, and from before its last steps. Give it plain images of all classes, in batches that mix
    them, such as what memory holds. Without batches nothing happens.

    >>> net = nn.BatchNorm1d(1)
    >>> settle(net, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> net.running_mean, net.running_var
    (tensor([4.]), tensor([2.]))
    """
    layers = statistics_layers(net)
    modes = [(module, module.training) for module in net.modules()]
    momenta = [layer.momentum for layer in layers]
    net.eval()
    for layer in layers:
        layer.train()
    try:
        for number, batch in enumerate(batches, 1):
            for layer in layers:
                layer.momentum = 1 / number
            net(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, training in modes:
            module.training = training
