"""Which classes come in which task."""

from __future__ import annotations

import numpy as np


def equal_tasks(n_classes: int, n_tasks: int, class_order: int = 0) -> tuple[tuple[int, ...], ...]:
    """The same number of classes in every task, or, where they do not divide, one more in the first ones.

    ``class_order`` 0 is the order of labels; any other number is the seed of a permutation.

    >>> equal_tasks(6, 3)
    ((0, 1), (2, 3), (4, 5))
    >>> equal_tasks(5, 2)
    ((0, 1, 2), (3, 4))
    >>> sorted(sum(equal_tasks(6, 2, class_order=1), ()))
    [0, 1, 2, 3, 4, 5]
    """
    order = np.arange(n_classes)
    if class_order:
        order = np.random.default_rng(class_order).permutation(n_classes)
    return tuple(tuple(int(label) for label in classes) for classes in np.array_split(order, n_tasks))
