"""CIFAR's binary version: records of one label byte (two in CIFAR-100: coarse, fine) and 3 x 32 x 32 pixels."""

from __future__ import annotations

import numpy as np

from gcr.data.archive import Tree
from gcr.data.source import Labels, Part, Pixels, Source, Wanted
from gcr.settings import BadInput

PIXELS = 3 * 32 * 32
FILES = {  # training files, test file, label bytes
    "cifar10": (tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", 1),
    "cifar100": (("train.bin",), "test.bin", 2),
}


def finds(tree: Tree, wanted: Wanted) -> str | None:
    if wanted.name not in FILES:
        return None
    train_files, test_file, _ = FILES[wanted.name]
    whole = tree.root_with(*train_files, test_file)
    return tree.root_with(train_files[0], test_file) if whole is None else whole


def read(tree: Tree, wanted: Wanted) -> Source:
    train_files, test_file, label_bytes = FILES[wanted.name]
    root = tree.root_with(*train_files, test_file)
    if root is None:
        raise BadInput(
            f"{tree.where} must hold {', '.join(train_files)} and {test_file} side by side; not all are there"
        )
    parts = [_records(tree, root + file, label_bytes) for file in train_files]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    names = wanted.known.class_names if wanted.known else ()
    return Source(Part.of(images, labels), Part.of(*_records(tree, root + test_file, label_bytes)), (3, 32, 32), names)


def _records(tree: Tree, file: str, label_bytes: int) -> tuple[Pixels, Labels]:
    data = np.frombuffer(tree.read(file), dtype=np.uint8)
    size = label_bytes + PIXELS
    if len(data) == 0 or len(data) % size:
        raise BadInput(f"{file} in {tree.where} must be records of {size} bytes, got {len(data)} bytes; get it again")
    records = data.reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)
