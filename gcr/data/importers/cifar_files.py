"""What CIFAR's binary and python versions have in common: training files and a test file that lie side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcr.data.archive import Tree
from gcr.data.source import Labels, Part, Pixels, Source, Wanted
from gcr.settings import BadInput


def root_of(tree: Tree, train_files: tuple[str, ...], test_file: str) -> str | None:
    """The folder with all of them, or else one that has at least the first and the last."""
    whole = tree.root_with(*train_files, test_file)
    return tree.root_with(train_files[0], test_file) if whole is None else whole


def read_files(
    tree: Tree,
    wanted: Wanted,
    train_files: tuple[str, ...],
    test_file: str,
    read_file: Callable[[str], tuple[Pixels, Labels]],
) -> Source:
    root = tree.root_with(*train_files, test_file)
    if root is None:
        raise BadInput(
            f"{tree.where} must hold {', '.join(train_files)} and {test_file} side by side; not all are there"
        )
    parts = [read_file(root + file) for file in train_files]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    names = wanted.known.class_names if wanted.known else ()
    return Source(Part.of(images, labels), Part.of(*read_file(root + test_file)), (3, 32, 32), names)
