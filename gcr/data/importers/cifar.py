"""CIFAR's two versions: training files and a test file that lie side by side.

Binary: records of one label byte (two in CIFAR-100: coarse, fine) and 3 x 32 x 32 pixels. Python: pickles of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gcr.data.archive import Tree
from gcr.data.importers.pickled import read_pickle
from gcr.data.source import Labels, Part, Pixels, Source, Wanted, labels_of
from gcr.settings import BadInput

Files = Mapping[str, tuple[tuple[str, ...], str, Any]]  # of each data set: for training, for testing, where labels are

PIXELS = 3 * 32 * 32
BINARY: Files = {  # label bytes
    "cifar10": (tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", 1),
    "cifar100": (("train.bin",), "test.bin", 2),
}
PYTHON: Files = {  # key of the labels
    "cifar10": (tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "labels"),
    "cifar100": (("train",), "test", "fine_labels"),
}


def finds_binary(tree: Tree, wanted: Wanted) -> str | None:
    return _root(tree, wanted, BINARY)


def finds_python(tree: Tree, wanted: Wanted) -> str | None:
    return _root(tree, wanted, PYTHON)


def read_binary(tree: Tree, wanted: Wanted) -> Source:
    return _read(tree, wanted, BINARY, _records)


def read_python(tree: Tree, wanted: Wanted) -> Source:
    return _read(tree, wanted, PYTHON, _batch)


def _root(tree: Tree, wanted: Wanted, files: Files) -> str | None:
    """The folder with all of them, or else one that has at least the first and the last."""
    if wanted.name not in files:
        return None
    train_files, test_file, _ = files[wanted.name]
    whole = tree.root_with(*train_files, test_file)
    return tree.root_with(train_files[0], test_file) if whole is None else whole


def _read(
    tree: Tree, wanted: Wanted, files: Files, read_file: Callable[[Tree, str, Any], tuple[Pixels, Labels]]
) -> Source:
    train_files, test_file, where_labels = files[wanted.name]
    root = tree.root_with(*train_files, test_file)
    if root is None:
        raise BadInput(
            f"{tree.where} must hold {', '.join(train_files)} and {test_file} side by side; not all are there"
        )
    *train, test = (read_file(tree, root + file, where_labels) for file in (*train_files, test_file))
    images, labels = (np.concatenate(column) for column in zip(*train, strict=True))
    names = wanted.known.class_names if wanted.known else ()
    return Source(Part.of(images, labels), Part.of(*test), (3, 32, 32), names)


def _records(tree: Tree, file: str, label_bytes: int) -> tuple[Pixels, Labels]:
    data = np.frombuffer(tree.read(file), dtype=np.uint8)
    size = label_bytes + PIXELS
    if len(data) == 0 or len(data) % size:
        raise BadInput(f"{file} in {tree.where} must be records of {size} bytes, got {len(data)} bytes; get it again")
    records = data.reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def _batch(tree: Tree, file: str, key: str) -> tuple[Pixels, Labels]:
    where = f"{file} in {tree.where}"
    values = read_pickle(tree.read(file), where)
    if not isinstance(values, dict):
        raise BadInput(f"{where} must hold a dictionary, got {type(values).__name__}")
    named = {name.decode("latin1") if isinstance(name, bytes) else name: value for name, value in values.items()}
    images, labels = named.get("data"), named.get(key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise BadInput(f'{where} must hold "data", uint8 of [n, 3072]; get it again')
    numbers = labels_of(labels, f'"{key}" of {where}')
    if len(numbers) != len(images):
        raise BadInput(f"{where} has {len(images)} images, but {len(numbers)} labels; get it again")
    return images.reshape(-1, 3, 32, 32), numbers
