"""Batch normalisation of several minibatches in one pass, with the ReLU and the shortcut's sum that follow it.

The minibatches of a training step (new examples, each replay term) have batch statistics of their own in the paper's
code. Here they may lie one behind another in one tensor, ``sizes`` long each: the mathematics of separate passes, in
fewer and larger kernels. On a GPU with Triton all of it is a few kernels (``fused_norm.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gcr.models import fused_norm, shares

Sizes = tuple[int, ...]


class BatchNorm(nn.BatchNorm2d):
    shares: shares.Shares | None = None  # where it does not normalise whole minibatches by itself

    def __init__(self, channels: int, relu: bool = True) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None  # only a cumulative average would need it, and it costs a kernel per layer
        self.relu = relu

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        """Torch would ask a plain dict for the counter that is not kept here."""
        super()._load_from_state_dict(state_dict, prefix, {**local_metadata, "version": 2}, *rest)

    def forward(self, x: Tensor, sizes: Sizes | None = None, add: Tensor | None = None) -> Tensor:
        """``relu(norm(x) + add)``. In training, each of the ``sizes`` examples in turn is normalised by itself."""
        sizes = sizes or (len(x),)
        if self.training and self.shares is not None and self.shares.changes_norm:
            return self._finished(shares.norm(x, self, sizes, self.shares), add)
        if self.training and fused_norm.serves(x):
            return fused_norm.norm(x, self, sizes, add)
        if self.training and len(sizes) > 1:
            out = torch.cat([super(BatchNorm, self).forward(part) for part in x.split(sizes)])
        else:
            out = super().forward(x)
        return self._finished(out, add)

    def _finished(self, out: Tensor, add: Tensor | None) -> Tensor:
        if add is not None:
            out = out.add_(add)
        return out.relu_() if self.relu else out


class Trunk(nn.Sequential):
    """Layers in turn; those with batch statistics receive the minibatch sizes."""

    def forward(self, x: Tensor, sizes: Sizes | None = None) -> Tensor:
        for layer in self:
            x = layer(x, sizes) if getattr(layer, "takes_sizes", isinstance(layer, BatchNorm)) else layer(x)
        return x


PER_EXAMPLE = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def keeps_minibatches_apart(net: nn.Module) -> bool:
    """Whether minibatches that go through ``net`` in one pass cannot touch each other.

    True only where every normalisation layer is known: it normalises each example alone, or it is our ``BatchNorm`` in
    a place where it is given the sizes.

    >>> keeps_minibatches_apart(Trunk(nn.Conv2d(3, 8, 3), BatchNorm(8)))
    True
    >>> keeps_minibatches_apart(Trunk(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))))
    False
    """
    if isinstance(net, BatchNorm):
        return True
    if isinstance(net, Trunk):
        return all(keeps_minibatches_apart(layer) for layer in net)
    given_sizes = getattr(net, "takes_sizes", False)
    return all(not _normalises(m) or (given_sizes and isinstance(m, BatchNorm)) for m in net.modules())


def _normalises(module: nn.Module) -> bool:
    """Whether it may normalise over several examples. A name with "norm" in it is enough for suspicion."""
    return "norm" in type(module).__name__.lower() and not isinstance(module, PER_EXAMPLE)
