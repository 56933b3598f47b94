"""The views of a learner's examples: ours for images, the user's own augmentation, or none.

Bytes reach the network as floats in [0, 1], everything else as it is.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.augment import SHIFTED_FROM, AnyViews, Views
from gcr.learner.inputs import Layout
from gcr.settings import BadInput

Augment = str | None | Views | Callable[[Any], Any]
MOST = 2**31
FAR, NARROW = 3.0, 0.02  # mean size and deviation of normalised images, about 1, that are taken for a mistake


class Plain:
    """No augmentation."""

    def __init__(self, layout: Layout) -> None:
        self.scales = layout.scales and layout.dtype == torch.uint8

    def plain(self, images: Tensor) -> Tensor:
        return images.float() / 255 if self.scales else images

    def make(self, kind: str, images: Tensor, draws: Tensor) -> Tensor:
        return self.plain(images)


class Own(Plain):
    """The user's own, called with a batch of what the network takes. Its randomness follows the draws of the step."""

    def __init__(self, layout: Layout, augment: Callable[[Any], Any]) -> None:
        super().__init__(layout)
        self.layout, self.augment = layout, augment

    def make(self, kind: str, images: Tensor, draws: Tensor) -> Tensor:
        plain = self.plain(images)
        with seeded(int(draws.flatten()[0] * MOST)):
            views = self.augment(self.layout.inputs(plain))
        if self.layout.kind != "tensor":
            return self.layout.rows(views).to(images.device)
        if not isinstance(views, Tensor) or len(views) != len(images):
            got = tuple(views.shape) if isinstance(views, Tensor) else type(views).__name__
            raise BadInput(
                f"augment must return a tensor of {len(images)} views, got {got}; wrap what takes one example in "
                "gcr.per_sample"
            )
        return views.to(plain)


def per_sample(augment: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An augmentation of one example as one of a batch.

    >>> per_sample(lambda image: image.flip(-1))(torch.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """

    def each(batch: Any) -> Any:
        if isinstance(batch, Mapping):
            made = [augment({name: values[row] for name, values in batch.items()}) for row in range(_length(batch))]
            return {name: torch.stack([one[name] for one in made]) for name in batch}
        if isinstance(batch, tuple):
            made = [augment(tuple(values[row] for values in batch)) for row in range(len(batch[0]))]
            return tuple(map(torch.stack, zip(*made, strict=True)))
        return torch.stack([augment(example) for example in batch])

    return each


def _length(batch: Mapping[str, Tensor]) -> int:
    return len(next(iter(batch.values())))


def make_views(layout: Layout, augment: Augment) -> AnyViews:
    small = not layout.is_image or min(layout.shape[1:]) < SHIFTED_FROM
    if augment is None or (augment in ("auto", "shift") and small):
        return Plain(layout)
    if augment in ("auto", "shift"):
        channels, *sides = layout.shape
        zeros, ones = (0.0,) * channels, (1.0,) * channels
        in_unit = {} if layout.dtype == torch.uint8 else {"jitter_share": 0.0, "grey_share": 0.0}
        return Views(zeros, ones, pad=min(sides) // 8, flip=augment == "auto" and channels == 3, **in_unit)  # type: ignore[arg-type]
    if isinstance(augment, Views):
        if not layout.is_image:
            raise BadInput(f"augment=Views(…) needs images [n, c, h, w], got {layout.parts[0]}; use augment=None")
        return augment
    if not callable(augment):
        raise BadInput(
            f'augment must be "auto", "shift", None, gcr.augment.Views or a function of a batch, got {augment!r}'
        )
    return Own(layout, augment)


def warn_of_views(views: Views, images: Tensor) -> None:
    """Images for which mean and deviation are not meant: of another scale, or normalised already."""
    seen = views.plain(images).float()
    far, spread = float(seen.abs().mean()), float(seen.std())
    if far > FAR or 0 < spread < NARROW:  # blank images have none
        warnings.warn(
            f"augment=Views(…) makes values of {far:.3g} on average, spread by {spread:.2g}, of the first images: its "
            "mean and std are for pixels in [0, 1] that are not normalised yet",
            stacklevel=2,
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The random numbers of torch (on the CPU), NumPy and Python inside follow ``seed``; outside nothing changes."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
