"""MNIST's idx files: a header of big-endian numbers, then bytes. Plain or packed with gzip."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from gcr.data.archive import Tree, gunzip
from gcr.data.source import Part, Source, Wanted
from gcr.settings import BadInput

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def finds(tree: Tree, wanted: Wanted) -> str | None:
    names = _locate(tree) if wanted.name in ("mnist", "fashion-mnist") else None
    return names[0].removesuffix(names[0].rsplit("/", 1)[-1]) if names else None


def read(tree: Tree, wanted: Wanted) -> Source:
    names = _locate(tree)
    if names is None:
        raise BadInput(f"{tree.where} must hold {', '.join(FILES)} side by side, plain or as .gz; not all are there")
    arrays = [_array(tree, name, 3 if "idx3" in name else 1) for name in names]
    for images, labels, name in ((arrays[0], arrays[1], names[1]), (arrays[2], arrays[3], names[3])):
        if len(images) != len(labels):
            raise BadInput(f"{name} in {tree.where} has {len(labels)} labels for {len(images)} images; get it again")
    train, test = (Part.of(images[:, None], labels.astype(np.int64)) for images, labels in (arrays[:2], arrays[2:]))
    class_names = wanted.known.class_names if wanted.known else ()
    return Source(train, test, (1, *arrays[0].shape[1:]), class_names)


def _locate(tree: Tree) -> list[str] | None:
    """Names of the four files, plain ones first; some copies write a dot before "idx"."""
    for ending in ("", ".gz"):
        for files in (FILES, tuple(file.replace("-idx", ".idx") for file in FILES)):
            files = tuple(file + ending for file in files)
            if (root := tree.root_with(*files)) is not None:
                return [root + file for file in files]
    return None


def _array(tree: Tree, name: str, dimensions: int) -> Any:
    where = f"{name} in {tree.where}"
    data = gunzip(tree.read(name), where) if name.endswith(".gz") else tree.read(name)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, 8, dimensions]):
        raise BadInput(f"{where} must begin with 0, 0, 8, {dimensions}, got {list(data[:4])}; it is not an idx file")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    expected = 1
    for length in shape:
        expected *= length
    if len(data) - start != expected:
        raise BadInput(f"{where} must hold {expected} bytes after its header, got {len(data) - start}; get it again")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
