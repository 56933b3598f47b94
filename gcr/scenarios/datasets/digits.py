"""Scikit-learn's embedded digits (from the UCI optical recognition set): 1,797 real images of 8 x 8 pixels."""

from __future__ import annotations

import numpy as np
import torch

from gcr.scenarios.scenario import Images
from gcr.settings import BadInput


def load_digits() -> tuple[Images, Images]:
    """Train and test images: every fifth example of each class, in the file's order, is for testing."""
    try:
        from sklearn import datasets
    except ImportError:
        raise BadInput("seq-digits needs scikit-learn: pip install scikit-learn") from None
    bunch = datasets.load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    for_testing = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        for_testing[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (
        Images(torch.from_numpy(pixels[rows]), torch.from_numpy(labels[rows])) for rows in (~for_testing, for_testing)
    )
    return train, test
