"""Small networks for small images: convolutions (digits), and the perceptron of many studies of MNIST."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcr.models.network import Network
from gcr.models.norm import BatchNorm, Trunk


def convnet(image_shape: tuple[int, int, int], n_classes: int, width: int = 32) -> Network:
    """A convolution at full size, one at half, mean over 2 x 2."""
    channels, height, columns = image_shape
    half = -(-height // 2), -(-columns // 2)
    trunk = Trunk(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        BatchNorm(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
        BatchNorm(2 * width),
        MeanOf2x2(*half),
        nn.Flatten(),
    )
    return Network(trunk, 2 * width * -(-half[0] // 2) * -(-half[1] // 2), n_classes)


def mlp(image_shape: tuple[int, int, int], n_classes: int, width: int = 100) -> Network:
    """A perceptron with two hidden layers: with 100 units the usual network of MNIST studies in continual learning."""
    trunk = Trunk(
        nn.Flatten(),
        nn.Linear(math.prod(image_shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
    )
    return Network(trunk, width, n_classes)


class MeanOf2x2(nn.Module):
    """The mean over 2 x 2 pixels, over those that are there at an odd edge.

    Of torch's own, ``AvgPool2d`` with ``ceil_mode`` has a wrong gradient when compiled (torch 2.11 and 2.13), and
    adaptive pooling has none on a GPU that is the same every time.
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.odd = (0, width % 2, 0, height % 2)
        self.share: Tensor
        there = F.avg_pool2d(F.pad(torch.ones(1, 1, height, width), self.odd), 2)
        self.register_buffer("share", there, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not any(self.odd):
            return F.avg_pool2d(x, 2)
        return F.avg_pool2d(F.pad(x, self.odd), 2) / self.share
