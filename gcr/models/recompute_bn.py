"""Recompute BatchNorm statistics before a network predicts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gcr.models.network import evaluating, frozen_norm
from gcr.settings import BadInput


def statistics_layers(net: nn.Module, frozen: bool = True) -> list[_BatchNorm]:
    """The layers of batch normalisation that keep running statistics; without ``frozen``, those whose weights learn."""
    layers = [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]
    return layers if frozen else [layer for layer in layers if not frozen_norm(layer)]


def statistics(net: nn.Module, frozen: bool = True) -> list[Tensor]:
    """Running mean and variance of each such layer, by reference."""
    return [kept for layer in statistics_layers(net, frozen) for kept in (layer.running_mean, layer.running_var)]  # type: ignore[misc]


def refuse_without_statistics(net: nn.Module) -> None:
    """Where statistics of memory are asked for, some must be there that change."""
    if not statistics(net, frozen=False):
        raise BadInput("statistics=memory recomputes BatchNorm statistics, but net has none that learn; leave it out")


@torch.no_grad()
def recompute_bn(net: nn.Module, batches: Iterable[Tensor], frozen: bool = True) -> None:
    """Replace the running statistics of batch normalisation by their means over ``batches``, weighted by their sizes.

    Training leaves a mean over its last few minibatches: of the new task and of augmented images more than of what the
    network is to predict, and from before its last steps. Give it plain images of all classes, in batches that mix
    them, such as what memory holds. ``frozen=False`` leaves layers as they are whose weights are frozen. Nothing else
    changes, and nothing at all without batches or after an error.

    >>> net = nn.BatchNorm1d(1)
    >>> recompute_bn(net, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> net.running_mean, net.running_var
    (tensor([4.]), tensor([2.]))
    """
    layers, running = statistics_layers(net, frozen), statistics(net, frozen)
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    totals, n = [torch.zeros_like(of) for of in running], 0
    try:
        with evaluating(net):
            for layer in layers:
                layer.train()
                layer.momentum = 1.0  # what is there is replaced by each batch
            for batch in batches:
                torch._foreach_zero_(running)
                net(batch)
                torch._foreach_add_(totals, running, alpha=len(batch))
                n += len(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for buffer, kept in before:
            buffer.copy_(kept)
    if n:
        for of, total in zip(running, totals, strict=True):
            of.copy_(total / n)
