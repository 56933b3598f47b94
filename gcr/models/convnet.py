"""A small convolutional network for small images (digits): two convolutions at full size, one at half, mean over space."""

from __future__ import annotations

from torch import nn

from gcr.models.network import Network


def convnet(image_shape: tuple[int, int, int], n_classes: int, width: int = 32) -> Network:
    return Network(
        nn.Sequential(
            *_block(image_shape[0], width, stride=1),
            *_block(width, 2 * width, stride=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        ),
        n_features=8 * width,
        n_classes=n_classes,
    )


def _block(n_in: int, n_out: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()
