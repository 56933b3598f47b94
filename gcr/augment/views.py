"""The views of a data set's images: plain, weak and strong. uint8 images and draws in, normalised floats out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gcr.augment.strong import STRONG_DRAWS, colour_jitter, grey, resized_crop
from gcr.augment.weak import WEAK_DRAWS, shift_and_flip

DRAWS = {"weak": WEAK_DRAWS, "strong": STRONG_DRAWS}  # uniforms an image needs for each kind of view


@dataclass(frozen=True)
class Views:
    mean: tuple[float, ...]  # per channel, of images scaled to [0, 1]
    std: tuple[float, ...]
    pad: int = 4
    flip: bool = True
    crop: tuple[float, float] = (0.2, 1.0)  # share of the area a strong view keeps
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    jitter_share: float = 0.8
    grey_share: float = 0.2

    def make(self, kind: str, images: Tensor, draws: Tensor) -> Tensor:
        """A view of every image: ``kind`` is weak or strong, ``draws`` are [b, DRAWS[kind]] uniforms."""
        return self.weak(images, draws) if kind == "weak" else self.strong(images, draws)

    def plain(self, images: Tensor) -> Tensor:
        return self._normalised(images.float() / 255)

    def weak(self, images: Tensor, draws: Tensor) -> Tensor:
        return self.plain(shift_and_flip(images, draws, self.pad, self.flip))

    def strong(self, images: Tensor, draws: Tensor) -> Tensor:
        view = resized_crop(images.float() / 255, draws[:, :5], *self.crop, self.flip)
        chosen = (draws[:, 5] < self.jitter_share).reshape(-1, 1, 1, 1)
        view = torch.where(chosen, colour_jitter(view, draws[:, 6:10], *self.jitter), view)
        if view.shape[1] == 3:
            view = torch.where((draws[:, 10] < self.grey_share).reshape(-1, 1, 1, 1), grey(view), view)
        return self._normalised(view)

    def _normalised(self, images: Tensor) -> Tensor:
        mean, std = _moments(self.mean, self.std, images.device)
        return (images - mean) / std


@cache  # copied to the device once: a training step must not wait for the host
def _moments(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    both = torch.tensor([mean, std], device=device).reshape(2, 1, -1, 1, 1)
    return both[0], both[1]
