"""A small convolutional network for small images (digits): a convolution at full size, one at half, mean over 2 x 2."""

from __future__ import annotations

from torch import nn

from gcr.models.network import Network
from gcr.models.norm import BatchNorm, Trunk


def convnet(image_shape: tuple[int, int, int], n_classes: int, width: int = 32) -> Network:
    channels, height, columns = image_shape
    pooled = -(-height // 4), -(-columns // 4)
    trunk = Trunk(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        BatchNorm(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
        BatchNorm(2 * width),
        nn.AdaptiveAvgPool2d(pooled),  # AvgPool2d with ceil_mode has a wrong gradient when compiled (torch 2.11, 2.13)
        nn.Flatten(),
    )
    return Network(trunk, 2 * width * pooled[0] * pooled[1], n_classes)
