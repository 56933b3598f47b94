"""A small convolutional network for small images (digits): a convolution at full size, one at half, mean over 2 x 2."""

from __future__ import annotations

from torch import nn

from gcr.models.network import Network


def convnet(image_shape: tuple[int, int, int], n_classes: int, width: int = 32) -> Network:
    channels, height, columns = image_shape
    trunk = nn.Sequential(
        *_block(channels, width, stride=1),
        *_block(width, 2 * width, stride=2),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
    )
    return Network(trunk, 2 * width * -(-height // 4) * -(-columns // 4), n_classes)


def _block(n_in: int, n_out: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()
