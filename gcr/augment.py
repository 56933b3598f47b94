"""Batched, fixed-shape views of images: plain, weak, mild and strong. Images and draws in, normalised floats out.

Every image has its own draws, and all images are treated at once. Weak views: crop after zero padding, and flip.
Strong views, for contrastive learning: random resized crop, flip, colour jitter in one fixed order (brightness,
contrast, saturation, hue), grey. Images of one channel have no colour: saturation, hue and grey leave them alone.

uint8 images are scaled to [0, 1]. Float images are taken as they are; colour jitter and grey need them in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from gcr.settings import Misfit

WEAK_DRAWS = 3  # row offset, column offset, flip
STRONG_DRAWS = 11  # area, ratio, top, left, flip, jitter?, brightness, contrast, saturation, hue, grey?
DRAWS = {"weak": WEAK_DRAWS, "mild": STRONG_DRAWS, "strong": STRONG_DRAWS}  # uniforms that a view of an image needs
MEASURED_AT_ONCE = 4096  # images
SHIFTED_FROM = 16  # pixels: a shift of smaller images loses too much of them


class AnyViews(Protocol):
    """What a training step needs of views: of images as memory keeps them, as the network takes them."""

    def make(self, kind: str, images: Tensor, draws: Tensor) -> Tensor: ...

    def plain(self, images: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Views:
    mean: tuple[float, ...]  # per channel, of images scaled to [0, 1], or of float images as they are
    std: tuple[float, ...]
    pad: int = 4
    flip: bool = True
    crop: tuple[float, float] = (0.2, 1.0)  # share of the area a strong view keeps
    mild_crop: tuple[float, float] = (0.5, 1.0)  # a mild view is a strong one that keeps more
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    jitter_share: float = 0.8
    grey_share: float = 0.2

    @classmethod
    def measured(cls, images: Tensor, **changes: Any) -> Self:
        """Views with the mean and deviation of these images, [n, c, h, w]. A constant channel has deviation 1.

        >>> Views.measured(torch.tensor([0.0, 4.0]).reshape(2, 1, 1, 1), pad=0, flip=False).std
        (2.0,)
        """
        channels = range(images.shape[1])
        count = images[:, 0].numel()
        mean = [_total(images, channel, 0.0, 1) / count for channel in channels]
        std = [math.sqrt(_total(images, channel, mean[channel], 2) / count) for channel in channels]
        tiny = [1e-6 * max(abs(value), 1e-30) for value in mean]
        std = [value if value > least else 1.0 for value, least in zip(std, tiny, strict=True)]
        return cls(**{"mean": tuple(mean), "std": tuple(std)} | changes)

    @staticmethod
    def moves(shape: Sequence[int]) -> dict[str, Any]:
        """Shifts and mirroring that do little harm to unknown images [c, h, w]: small ones stay as they are, and only
        those of three channels are mirrored, which are pictures rather than signs or measurements."""
        channels, side = shape[0], min(shape[1:])
        return {"pad": side // 8 if side >= SHIFTED_FROM else 0, "flip": channels == 3 and side >= SHIFTED_FROM}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The opposite of ``asdict``, with lists for tuples. An error names the field that is none."""
        if not isinstance(values, dict) or not {"mean", "std"} <= values.keys():
            raise Misfit("views must have mean and std")
        for name, value in values.items():
            like = {"mean": (0.0,), "std": (1.0,)}.get(name) or getattr(cls, name, None)
            if not _is_like(value, like) or (name == "std" and not all(one > 0 for one in value)):
                raise Misfit(f"views.{name} must be {_rule(name, like)}, got {value!r:.40}")
        if len(values["mean"]) != len(values["std"]):
            raise Misfit("views.mean and views.std must be of one length")
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**given)

    @property
    def colours(self) -> bool:
        """Whether strong views change colours, which needs images in [0, 1]."""
        return self.jitter_share > 0 or self.grey_share > 0

    def make(self, kind: str, images: Tensor, draws: Tensor) -> Tensor:
        """A view of every image: ``kind`` is weak, mild or strong, ``draws`` are [b, DRAWS[kind]] uniforms."""
        make = {"weak": self.weak, "mild": self.mild, "strong": self.strong}[kind]
        return make(images, draws)

    def plain(self, images: Tensor) -> Tensor:
        return self._normalised(_scaled(images))

    def weak(self, images: Tensor, draws: Tensor) -> Tensor:
        return self.plain(shift_and_flip(images, draws, self.pad, self.flip))

    def mild(self, images: Tensor, draws: Tensor) -> Tensor:
        return replace(self, crop=self.mild_crop).strong(images, draws)

    def strong(self, images: Tensor, draws: Tensor) -> Tensor:
        view = resized_crop(_scaled(images), draws[:, :5], *self.crop, self.flip)
        chosen = (draws[:, 5] < self.jitter_share).reshape(-1, 1, 1, 1)
        view = torch.where(chosen, colour_jitter(view, draws[:, 6:10], *self.jitter), view)
        if view.shape[1] == 3:
            view = torch.where((draws[:, 10] < self.grey_share).reshape(-1, 1, 1, 1), grey(view), view)
        return self._normalised(view)

    def _normalised(self, images: Tensor) -> Tensor:
        mean, std = _moments(self.mean, self.std, images.device)
        return (images - mean) / std


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


def _is_like(value: Any, like: Any) -> bool:
    if isinstance(like, tuple):  # numbers: one a channel, or as many as there are by default
        right = isinstance(value, list) and len(value) > 0 and len(like) in (1, len(value))
        return right and all(_is_like(one, 0.0) for one in value)
    if isinstance(like, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
    return type(value) is type(like) and like is not None and (isinstance(value, bool) or 0 <= value < 2**16)


def _rule(name: str, like: Any) -> str:
    kinds = {tuple: "finite numbers", float: "a finite number", bool: "true or false", int: "a whole number >= 0"}
    return f"{kinds[type(like)]}{' > 0' * (name == 'std')}" if type(like) in kinds else "absent"


def _scaled(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _total(images: Tensor, channel: int, mean: float, power: int) -> float:
    """The sum of ``(value - mean) ** power`` over a channel of the scaled images, in float64, part by part."""
    parts = images[:, channel].split(MEASURED_AT_ONCE)
    return sum(float((_scaled(part).double() - mean).pow(power).sum()) for part in parts)


@cache  # copied to the device once: a training step must not wait for the host
def _moments(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    both = torch.tensor([mean, std], device=device).reshape(2, 1, -1, 1, 1)
    return both[0], both[1]
