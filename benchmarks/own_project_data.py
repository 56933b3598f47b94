"""The two data sets of ``benchmarks/own_project.py``, as vectors: digits, and fixed features of CIFAR-10.

The features are those of Coates, Ng and Lee (2011), an unsupervised and untrained network: 256 whitened k-means
centroids of 6 x 6 patches, soft assignment, sums over the image's quadrants. They need no download of weights and see
no label.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PATCH, STRIDE, CENTROIDS, SAMPLE, ROUNDS = 6, 2, 256, 50_000, 20
TRAIN, TEST = 500, 200  # images of a class
AT_ONCE = 500  # images


@dataclass(frozen=True)
class Data:
    name: str
    keep: int  # examples that memory may hold
    train: tuple[Tensor, Tensor]  # [n, d] float32, [n] int64
    test: tuple[Tensor, Tensor]

    def steps(self, seed: int) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """Training and test examples of five steps of two classes, in an order that the seed decides."""
        order = np.random.default_rng(seed).permutation(10).reshape(5, 2)
        train, test = (
            [tuple(part[np.isin(labels, pair)] for part in (x, labels)) for pair in order]
            for x, labels in (self.train, self.test)
        )
        return train, test  # type: ignore[return-value]

    def save(self, path: Path) -> None:
        (x, y), (x_test, y_test) = self.train, self.test
        np.savez(path, name=self.name, keep=self.keep, x=x, y=y, x_test=x_test, y_test=y_test)

    @classmethod
    def load(cls, path: Path) -> Data:
        with np.load(path) as file:
            x, y, x_test, y_test = (torch.from_numpy(file[name]) for name in ("x", "y", "x_test", "y_test"))
            return cls(str(file["name"]), int(file["keep"]), (x, y), (x_test, y_test))


def digits() -> Data:
    """1,797 digits of 8 x 8 pixels; every fifth is a test image."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target).long()
    test = torch.arange(len(y)) % 5 == 0
    return Data("digits", 100, (x[~test], y[~test]), (x[test], y[test]))


def cifar10_features() -> Data | None:
    """5,000 training and 2,000 test images; None where ``gcr data`` has no CIFAR-10. Made once, then read."""
    from gcr.data import open_cached
    from gcr.data.cache import data_root
    from gcr.settings import BadInput

    kept = data_root() / f"cifar10-patches-{PATCH}-{STRIDE}-{CENTROIDS}-{TRAIN}-{TEST}.npz"
    if kept.exists():
        return Data.load(kept)
    try:
        cached = open_cached("cifar10")
    except BadInput:
        return None
    images, labels = {}, {}
    for part, n in (("train", TRAIN), ("test", TEST)):
        y = torch.from_numpy(np.array(cached.labels(part)))
        rows = torch.cat([torch.nonzero(y == label).flatten()[:n] for label in range(10)])
        images[part], labels[part] = torch.from_numpy(np.array(cached.images(part)[rows.numpy()])), y[rows]
    x, x_test = patch_features(images["train"], images["test"])
    made = Data("CIFAR-10 features", 200, (x, labels["train"]), (x_test, labels["test"]))
    made.save(kept)
    return made


@torch.no_grad()
def patch_features(train: Tensor, test: Tensor, centroids: int = CENTROIDS) -> tuple[Tensor, Tensor]:
    """[n, 4 * centroids] of images [n, c, h, w], with mean 0 and deviation 1 on the training images."""
    generator = torch.Generator().manual_seed(0)
    sample = _some_patches(train, generator)
    mean = sample.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((sample - mean).T))
    whiten = vectors @ torch.diag((values + 0.1).rsqrt()) @ vectors.T
    centres = _k_means((sample - mean) @ whiten, centroids, generator)
    features = []
    for images in (train, test):
        features.append(torch.cat([_encode(part, mean, whiten, centres) for part in images.split(AT_ONCE)]))
    shift, scale = features[0].mean(0), features[0].std(0).clamp_min(1e-6)
    return (features[0] - shift) / scale, (features[1] - shift) / scale


def _patches(images: Tensor) -> Tensor:
    """[n, places, c * 36], each patch with mean 0 and deviation 1."""
    patches = F.unfold(images.float(), PATCH, stride=STRIDE).transpose(1, 2)
    patches = patches - patches.mean(2, keepdim=True)
    return patches / (patches.var(2, keepdim=True) + 10).sqrt()


def _some_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    rows = torch.randperm(len(images), generator=generator)[: SAMPLE // 10]
    patches = _patches(images[rows])
    places = torch.randint(patches.shape[1], (len(rows), 10), generator=generator)
    return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2])).flatten(0, 1)


def _k_means(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Centroids [k, d] of length 1: k-means by cosine. Empty ones stay where they were."""
    points = F.normalize(points)
    centres = points[torch.randperm(len(points), generator=generator)[:k]].clone()
    for _ in range(ROUNDS):
        sums = torch.zeros_like(centres).index_add_(0, (points @ centres.T).argmax(1), points)
        centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums), centres)
    return centres


def _encode(images: Tensor, mean: Tensor, whiten: Tensor, centres: Tensor) -> Tensor:
    """How much nearer than on average each centroid is, summed over quadrants."""
    distances = torch.cdist((_patches(images) - mean) @ whiten, centres)  # [n, places, k]
    near = (distances.mean(2, keepdim=True) - distances).clamp_min(0)
    side = int(near.shape[1] ** 0.5)
    maps = near.transpose(1, 2).reshape(len(images), len(centres), side, side)
    return F.adaptive_avg_pool2d(maps, 2).flatten(1)
