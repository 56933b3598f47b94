"""Training sets as they are outside of papers: unbalanced, cut short, with wrong labels.

What is dropped or mislabelled is drawn with fixed seeds, the same for every run, so that methods compare.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gcr.data import stratified
from gcr.scenarios.scenario import Images

UNBALANCED_SEED, CUT_SEED, NOISE_SEED = 1, 2, 3
Tasks = tuple[tuple[int, ...], ...]


def unbalanced(train: Images, tasks: Tasks, smallest: float) -> Images:
    """Class sizes fall in a geometric row to ``smallest`` of the first, in the order in which the classes come."""
    order = [label for classes in tasks for label in classes]
    shares = {label: smallest ** (place / max(len(order) - 1, 1)) for place, label in enumerate(order)}
    return _keep(train, shares, UNBALANCED_SEED)


def cut_short(train: Images, tasks: Tasks, share: float) -> Images:
    """Only ``share`` of the last task's examples."""
    return _keep(train, dict.fromkeys(tasks[-1], share), CUT_SEED)


def mislabelled(train: Images, tasks: Tasks, share: float) -> Images:
    """``share`` of each class gets the label of another class of its task; a task of one class stays as it is."""
    labels = train.labels.numpy()
    wrong = stratified(labels, share, NOISE_SEED)
    noisy = labels.copy()
    for classes in tasks:
        for place, label in enumerate(classes):
            rows = np.flatnonzero(wrong & (labels == label))
            others = np.array(classes[:place] + classes[place + 1 :])
            if len(others):
                noisy[rows] = np.random.default_rng([NOISE_SEED, label]).choice(others, len(rows))
    return replace(train, labels=torch.from_numpy(noisy))


def _keep(train: Images, shares: dict[int, float], seed: int) -> Images:
    labels = train.labels.numpy()
    stays = np.ones(len(labels), dtype=bool)
    for label, share in shares.items():
        rows = np.flatnonzero(labels == label)
        kept = max(round(share * len(rows)), 1)
        stays[np.random.default_rng([seed, label]).permutation(rows)[kept:]] = False
    return train.part(torch.from_numpy(np.flatnonzero(stays)))
