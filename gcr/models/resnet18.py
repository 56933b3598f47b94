"""ResNet-18 (He et al. 2016): with a 3x3 stem and no max-pooling, as in the paper, for images up to 64 pixels; with the
standard stem (7x7, stride 2, max-pooling) for larger ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcr.models.network import Network
from gcr.models.norm import BatchNorm, Sizes, Trunk

LARGEST_FOR_SMALL_STEM = 64  # pixels
CHANNELS_PER_PIXEL = 16  # of a convolution that is better a product of matrices


class Conv3x3(nn.Conv2d):
    """On a CPU a product of two matrices, where channels are many and pixels few: torch's convolution reads all weights
    again for every row of pixels."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__(n_in, n_out, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        starts = [range(0, side, self.stride[0]) for side in x.shape[2:]]
        n_windows = [len(along) for along in starts]
        if x.device.type != "cpu" or self.in_channels < CHANNELS_PER_PIXEL * math.prod(n_windows):
            return super().forward(x)
        rows, columns = (torch.tensor(along).unsqueeze(1) + torch.arange(3) for along in starts)  # of each window
        places = rows[:, None, :, None] * (x.shape[3] + 2) + columns[:, None, :]
        pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).flatten(1, 2)
        windows = pixels.index_select(1, places.flatten()).reshape(len(x), *n_windows, -1)
        return F.linear(windows, self.weight.permute(0, 2, 3, 1).flatten(1)).permute(0, 3, 1, 2)


class Stem(nn.Conv2d):
    """The first convolution. A GPU computes it under autocast on 8 channels, of which 5 are zero: no kernel for matrix
    units takes 3."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            return self.on_eight(x)
        return super().forward(x)

    def on_eight(self, x: Tensor) -> Tensor:
        more = (0, 0, 0, 0, 0, -x.shape[1] % 8)
        x = F.pad(x.to(torch.get_autocast_dtype(x.device.type)), more)
        return F.conv2d(x, F.pad(self.weight, more), None, self.stride, self.padding)


class BasicBlock(nn.Module):
    takes_sizes = True

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(n_in, n_out, stride)
        self.norm1 = BatchNorm(n_out)
        self.conv2 = Conv3x3(n_out, n_out)
        self.norm2 = BatchNorm(n_out)
        self.shortcut: Trunk | None = None
        if stride != 1 or n_in != n_out:
            self.shortcut = Trunk(nn.Conv2d(n_in, n_out, 1, stride, bias=False), BatchNorm(n_out, relu=False))

    def forward(self, x: Tensor, sizes: Sizes | None = None) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x, sizes)
        out: Tensor = self.norm1(self.conv1(x), sizes)
        out = self.norm2(self.conv2(out), sizes, add=shortcut)
        return out


def resnet18(image_shape: tuple[int, int, int], n_classes: int, width: int = 64) -> Network:
    channels, height, _ = image_shape
    if height <= LARGEST_FOR_SMALL_STEM:
        layers: list[nn.Module] = [Stem(channels, width, 3, padding=1, bias=False), BatchNorm(width)]
    else:
        layers = [
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            BatchNorm(width),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
    n_in = width
    for stage in range(4):
        n_out = width * 2**stage
        layers += [BasicBlock(n_in, n_out, 1 if stage == 0 else 2), BasicBlock(n_out, n_out, 1)]
        n_in = n_out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Network(Trunk(*layers), n_in, n_classes)
