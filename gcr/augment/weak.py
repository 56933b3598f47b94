"""Weak views: crop after zero padding, and horizontal flip, each image with its own draws."""

from __future__ import annotations

import torch
from torch import Tensor

WEAK_DRAWS = 3  # row offset, column offset, flip


def shift_and_flip(images: Tensor, draws: Tensor, pad: int, flip: bool) -> Tensor:
    """[b, c, h, w] images and [b, 3] uniforms -> views of the same shape and type.

    The same as padding by ``pad`` zeros on every side and cropping back to the old size at a random place.

    >>> image = torch.arange(1, 5, dtype=torch.uint8).reshape(1, 1, 2, 2)
    >>> shift_and_flip(image, torch.tensor([[0.0, 0.4, 0.9]]), pad=1, flip=True)  # one row down, not sideways, mirrored
    tensor([[[[0, 0],
              [2, 1]]]], dtype=torch.uint8)
    """
    _, _, height, width = images.shape
    offset = (draws[:, :2] * (2 * pad + 1)).long().clamp_max(2 * pad) - pad
    row = torch.arange(height, device=images.device) + offset[:, :1]
    column = torch.arange(width, device=images.device) + offset[:, 1:]
    if flip:
        column = torch.where(draws[:, 2:] < 0.5, column, column.flip(1))
    inside = ((row >= 0) & (row < height)).unsqueeze(2) & ((column >= 0) & (column < width)).unsqueeze(1)
    flat = row.clamp(0, height - 1).unsqueeze(2) * width + column.clamp(0, width - 1).unsqueeze(1)
    moved = images.flatten(2).gather(2, flat.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1))
    return moved.reshape(images.shape) * inside.unsqueeze(1)
