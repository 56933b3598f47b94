"""Training and test images of the data sets that scenarios are made of: those in the cache, and embedded digits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from gcr.data import CachedSet, open_cached
from gcr.scenarios.scenario import Images
from gcr.settings import BadInput

RESIDENT_BYTES = 20 * 10**9  # a data set up to this size is held on the device


def load_cached(name: str) -> tuple[Images, Images]:
    """Maps of the files in the cache, read when used."""
    cached = open_cached(name)
    return _images(cached, "train"), _images(cached, "test")


def _images(cached: CachedSet, part: str) -> Images:
    resident = cached.about.images_bytes <= RESIDENT_BYTES
    pixels, labels, check = cached.images(part), cached.labels(part), cached.image_check(part)
    if resident:
        check.start()
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), resident=resident, check=check)


def load_digits() -> tuple[Images, Images]:
    """Scikit-learn's embedded digits (from the UCI optical recognition set): 1,797 real images of 8 x 8 pixels.

    Every fifth example of each class, in the file's order, is for testing.
    """
    table = _digits()
    pixels = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    for_testing = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        for_testing[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (
        Images(torch.from_numpy(pixels[rows]), torch.from_numpy(labels[rows])) for rows in (~for_testing, for_testing)
    )
    return train, test


def _digits() -> np.ndarray:
    """64 pixels from 0 to 16 and a label in a row. From the file itself: to import scikit-learn takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise BadInput("seq-digits needs scikit-learn: pip install scikit-learn")
    file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # of a version that keeps it elsewhere

    images, target = load_digits(return_X_y=True)
    return np.column_stack([images, target])
