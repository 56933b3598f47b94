"""A stratified share of the examples: the same share of every class, drawn with a stated seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stratified(labels: NDArray[np.int64], share: float, seed: int = 0) -> NDArray[np.bool_]:
    """Which examples are held out: ``share`` of every class, rounded, at least one, and at least one stays.

    A class's draw depends on the seed and the class alone, so that other classes do not change it.

    >>> held_out = stratified(np.repeat([0, 1], [10, 20]), share=0.2)
    >>> int(held_out[:10].sum()), int(held_out[10:].sum())
    (2, 4)
    """
    held_out = np.zeros(len(labels), dtype=bool)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for label, rows in zip(classes, np.split(order, starts[1:]), strict=True):
        wanted = min(max(round(share * len(rows)), 1), len(rows) - 1)
        chosen = np.random.default_rng([seed, int(label)]).permutation(len(rows))[:wanted]
        held_out[rows[chosen]] = True
    return held_out
