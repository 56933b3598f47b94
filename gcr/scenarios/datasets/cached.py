"""Images of a data set in the cache: maps of its files, read when used."""

from __future__ import annotations

import torch

from gcr.data import CachedSet, open_cached
from gcr.scenarios.scenario import Images

RESIDENT_BYTES = 20 * 10**9  # a data set up to this size is held on the device


def load_cached(name: str) -> tuple[Images, Images]:
    cached = open_cached(name)
    return _images(cached, "train"), _images(cached, "test")


def _images(cached: CachedSet, part: str) -> Images:
    resident = cached.about.images_bytes <= RESIDENT_BYTES
    pixels, labels, check = cached.images(part), cached.labels(part), cached.image_check(part)
    if resident:
        check.start()
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), resident=resident, check=check)
