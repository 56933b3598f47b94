"""Strong views for contrastive learning: random resized crop, flip, colour jitter, grey. Images are floats in [0, 1].

Every image has its own draws, and all images are treated at once. Jitter runs in one fixed order (brightness, contrast,
saturation, hue). Images of one channel have no colour: saturation, hue and grey leave them alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

STRONG_DRAWS = 11  # area, ratio, top, left, flip, jitter?, brightness, contrast, saturation, hue, grey?


def resized_crop(images: Tensor, draws: Tensor, low: float, high: float, flip: bool) -> Tensor:
    """Crop a share in [low, high] of the area, with aspect ratio in [3/4, 4/3], and resize it back bilinearly.

    ``draws`` [b, 5]: area, ratio, top, left, flip. A crop that would be longer than the image is cut to its length.
    """
    area = low + (high - low) * draws[:, 0]
    ratio = torch.exp((2 * draws[:, 1] - 1) * math.log(4 / 3))
    height = (area / ratio).sqrt().clamp_max(1)
    width = (area * ratio).sqrt().clamp_max(1)
    # In grid_sample's coordinates the image spans [-1, 1]: a crop is a scale and a centre.
    centre_y = (1 - height) * (2 * draws[:, 2] - 1)
    centre_x = (1 - width) * (2 * draws[:, 3] - 1)
    mirrored = torch.where(draws[:, 4] < 0.5, 1.0, -1.0) if flip else torch.ones_like(width)
    zero = torch.zeros_like(width)
    affine = torch.stack([width * mirrored, zero, centre_x, zero, height, centre_y], 1).reshape(-1, 2, 3)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def colour_jitter(
    images: Tensor, draws: Tensor, brightness: float, contrast: float, saturation: float, hue: float
) -> Tensor:
    """``draws`` [b, 4]: factors in [1 - s, 1 + s] for the first three, and a turn of the hue in [-hue, hue]."""
    around = (2 * draws - 1).reshape(-1, 4, 1, 1, 1)
    images = (images * (1 + brightness * around[:, 0])).clamp(0, 1)
    mean = grey(images).mean((1, 2, 3), keepdim=True)
    images = _blend(images, mean, 1 + contrast * around[:, 1])
    if images.shape[1] != 3:
        return images
    images = _blend(images, grey(images), 1 + saturation * around[:, 2])
    return _turn_hue(images, hue * around[:, 3, 0])


def grey(images: Tensor) -> Tensor:
    """Luma of ITU-R 601, one channel."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def _blend(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return (share * images + (1 - share) * other).clamp(0, 1)


def _turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Add ``turn`` (in whole turns) to the hue of every pixel in HSV space."""
    red, green, blue = images.unbind(1)
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)
    safe = chroma.clamp_min(1e-12)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = torch.where(chroma > 0, sixth, 0.0) + 6 * turn
    # Each channel is value - chroma * clamp(min(k, 4 - k), 0, 1), with k the hue's distance from that channel's own.
    k = (torch.arange(5, 0, -2, device=images.device).reshape(1, 3, 1, 1) + sixth.unsqueeze(1)) % 6
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(k, 4 - k).clamp(0, 1)
