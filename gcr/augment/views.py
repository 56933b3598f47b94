"""The views of a data set's images: plain, weak, mild and strong. Images and draws in, normalised floats out.

uint8 images are scaled to [0, 1]. Float images are taken as they are; colour jitter and grey need them in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gcr.augment.strong import STRONG_DRAWS, colour_jitter, grey, resized_crop
from gcr.augment.weak import WEAK_DRAWS, shift_and_flip
from gcr.settings import Misfit

DRAWS = {"weak": WEAK_DRAWS, "mild": STRONG_DRAWS, "strong": STRONG_DRAWS}  # uniforms that a view of an image needs
MEASURED_AT_ONCE = 4096  # images


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


def _is_like(value: Any, like: Any) -> bool:
    if isinstance(like, tuple):  # numbers: one a channel, or as many as there are by default
        right = isinstance(value, list) and value and len(value) in (len(value) if len(like) == 1 else 0, len(like))
        return bool(right) and all(_is_like(one, 0.0) for one in value)
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
