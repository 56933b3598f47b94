"""What a format gives: labels at once, images in blocks, so that a set larger than memory can pass through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcr.data.catalog import DataSet
from gcr.settings import BadInput

Pixels = NDArray[np.uint8]  # [b, c, h, w]
Labels = NDArray[np.int64]

BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Part:
    """Training or test examples."""

    labels: Labels
    blocks: Callable[[], Iterator[Pixels]]  # all images, in the order of ``labels``

    @classmethod
    def of(cls, images: Pixels, labels: Labels) -> Part:
        """From arrays in memory, as [n, c, h, w]."""
        rows = block_rows(images.shape[1:])
        return cls(labels, lambda: (images[start : start + rows] for start in range(0, len(images), rows)))


@dataclass(frozen=True)
class Source:
    train: Part
    test: Part
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what the user should know of how it was read
    mirrored: bool = True  # whether training views may be


@dataclass(frozen=True)
class Wanted:
    """What the user asks for."""

    name: str
    known: DataSet | None  # the catalog's entry; None for a data set of one's own
    size: int = 0  # side of the images, 0: as they are


def block_rows(shape: tuple[int, ...]) -> int:
    """How many images make a block."""
    return max(1, min(4096, BLOCK_BYTES // int(np.prod(shape))))


def labels_of(values: object, where: str) -> Labels:
    """Labels as a file gives them: a list of whole numbers of at most 64 bits."""
    if not isinstance(values, list) or not all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        raise BadInput(f"{where} must be a list of whole numbers")
    return np.array(values, dtype=np.int64)


def counts(labels: Labels, n_classes: int) -> list[int]:
    return [int(n) for n in np.bincount(labels, minlength=n_classes)]


def stratified(labels: Labels, share: float, seed: int = 0) -> NDArray[np.bool_]:
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


def check_source(source: Source, wanted: Wanted) -> None:
    """Labels and counts, before an image is decoded."""
    n_classes, known = len(source.class_names), wanted.known
    if known is not None and source.shape != known.shape:
        raise BadInput(f"{wanted.name} has images of {times(known.shape)}, these are of {times(source.shape)}")
    if known is not None and n_classes != known.n_classes:
        raise BadInput(f"{wanted.name} has {known.n_classes} classes, these files have {n_classes}")
    if n_classes < 2:
        raise BadInput(f"{wanted.name} must have at least 2 classes, got {n_classes}")
    if len(set(source.class_names)) < n_classes:
        raise BadInput(f"{wanted.name} has two classes of the same name; rename one of them")
    for part, given in (("training", source.train), ("test", source.test)):
        labels = given.labels
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
            wrong = int(labels.max()) if labels.max() >= n_classes else int(labels.min())
            raise BadInput(f"{part} labels must be from 0 to {n_classes - 1}, got {wrong}; the files are damaged")
        found = counts(labels, n_classes)
        if known is not None:
            check_counts(wanted.name, part, found, known.train if part == "training" else known.test)
        elif min(found) == 0:
            empty = source.class_names[found.index(0)]
            raise BadInput(f'every class needs {part} images, but "{empty}" has none; add some or leave the class out')


def check_counts(name: str, part: str, found: list[int], expected: tuple[int, ...] | int) -> None:
    if isinstance(expected, int):
        if sum(found) != expected:
            raise BadInput(f"{name} must have {expected} {part} images, these files have {sum(found)}")
        return
    for label, (n, wanted) in enumerate(zip(found, expected, strict=True)):
        if n != wanted:
            raise BadInput(
                f"{name} must have {wanted} {part} images of class {label}, these files have {n} "
                f"({sum(found)} of {sum(expected)} in all); get it whole: the files are not the official set"
            )


def distinct(names: Sequence[str], tags: Sequence[object]) -> tuple[str, ...]:
    """Names, with its tag added to each that occurs more than once.

    >>> distinct(["crane", "reel", "crane"], tags=[134, 135, 517])
    ('crane (134)', 'reel', 'crane (517)')
    """
    often = Counter(names)
    return tuple(name if often[name] == 1 else f"{name} ({tag})" for name, tag in zip(names, tags, strict=True))


def times(shape: tuple[int, ...]) -> str:
    """
    >>> times((3, 32, 32))
    '3 x 32 x 32'
    """
    return " x ".join(map(str, shape))
