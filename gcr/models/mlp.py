"""A perceptron with two hidden layers of 100 units: the usual network of MNIST studies in continual learning."""

from __future__ import annotations

import math

from torch import nn

from gcr.models.network import Network
from gcr.models.norm import Trunk


def mlp(image_shape: tuple[int, int, int], n_classes: int, width: int = 100) -> Network:
    trunk = Trunk(
        nn.Flatten(),
        nn.Linear(math.prod(image_shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
    )
    return Network(trunk, width, n_classes)
