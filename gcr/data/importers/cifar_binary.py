"""CIFAR's binary version: records of one label byte (two in CIFAR-100: coarse, fine) and 3 x 32 x 32 pixels."""

from __future__ import annotations

import numpy as np

from gcr.data.archive import Tree
from gcr.data.importers.cifar_files import read_files, root_of
from gcr.data.source import Labels, Pixels, Source, Wanted
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
    return root_of(tree, train_files, test_file)


def read(tree: Tree, wanted: Wanted) -> Source:
    train_files, test_file, label_bytes = FILES[wanted.name]
    return read_files(tree, wanted, train_files, test_file, lambda file: _records(tree, file, label_bytes))


def _records(tree: Tree, file: str, label_bytes: int) -> tuple[Pixels, Labels]:
    data = np.frombuffer(tree.read(file), dtype=np.uint8)
    size = label_bytes + PIXELS
    if len(data) == 0 or len(data) % size:
        raise BadInput(f"{file} in {tree.where} must be records of {size} bytes, got {len(data)} bytes; get it again")
    records = data.reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)
