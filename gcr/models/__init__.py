"""Networks: ``image -> features -> logits``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from gcr.models.network import Network, attach, order_weights, state_tensors
from gcr.models.recompute_bn import recompute_bn, statistics
from gcr.models.resnet18 import resnet18
from gcr.models.small import convnet, mlp
from gcr.settings import unknown

MODELS: tuple[Callable[..., Network], ...] = (convnet, mlp, resnet18)


N = TypeVar("N", bound=nn.Module)


def build(name: str, image_shape: tuple[int, int, int], n_classes: int, seed: int) -> Network:
    """A new network, its initial weights a function of ``seed`` alone. The caller's random state is left as it was.

    >>> net = build("mlp", (1, 8, 8), 10, seed=0)
    >>> tuple(net(torch.zeros(3, 1, 8, 8)).shape), tuple(net.features(torch.zeros(3, 1, 8, 8)).shape)
    ((3, 10), (3, 100))
    """
    for make in MODELS:
        if make.__name__ == name:
            return seeded(make, image_shape, n_classes, seed)
    raise unknown("model", name, [make.__name__ for make in MODELS])


def seeded(make: Callable[..., N], image_shape: tuple[int, int, int], n_classes: int, seed: int) -> N:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(image_shape, n_classes)


__all__ = [
    "MODELS",
    "Network",
    "attach",
    "build",
    "convnet",
    "mlp",
    "order_weights",
    "recompute_bn",
    "resnet18",
    "seeded",
    "state_tensors",
    "statistics",
]
