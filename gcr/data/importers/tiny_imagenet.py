"""Tiny-ImageNet as Stanford packs it: ``train/<class>/images/``, ``val/images/`` and ``val/val_annotations.txt``.

The official test pictures have no labels, so that the validation set serves for testing, as everywhere. Classes and
pictures beyond the official ones, which some copies have, are left out and reported.
"""

from __future__ import annotations

import numpy as np

from gcr.data.archive import Tree
from gcr.data.pictures import SUFFIXES, decode_all
from gcr.data.source import Part, Source, Wanted, distinct
from gcr.settings import BadInput

ANNOTATIONS = "val/val_annotations.txt"
SHAPE = (3, 64, 64)


def finds(tree: Tree, wanted: Wanted) -> str | None:
    return tree.root_with("wnids.txt", ANNOTATIONS) if wanted.name == "tinyimagenet" else None


def read(tree: Tree, wanted: Wanted) -> Source:
    root = tree.root_with("wnids.txt", ANNOTATIONS)
    if root is None:
        raise BadInput(f"{tree.where} must hold wnids.txt and {ANNOTATIONS}; they are not there")
    ids = wanted.known.class_ids if wanted.known else ()
    label_of = {class_id: label for label, class_id in enumerate(ids)}
    notes: list[str] = []
    if missing := set(ids) - set(_text(tree, root + "wnids.txt").split()):
        raise BadInput(f"wnids.txt in {tree.where} lacks the class {min(missing)}; get the official set")
    train = _training_pictures(tree, root, label_of, notes)
    test = _validation_pictures(tree, root, label_of, notes)
    return Source(_part(tree, train), _part(tree, test), SHAPE, _class_names(tree, root, ids), tuple(notes))


def _training_pictures(tree: Tree, root: str, label_of: dict[str, int], notes: list[str]) -> list[tuple[str, int]]:
    pictures: list[tuple[str, int]] = []
    stray: dict[str, int] = {}
    prefix = root + "train/"
    for name in tree.names:
        if not name.startswith(prefix) or not name.lower().endswith(SUFFIXES):
            continue
        class_id = name.removeprefix(prefix).split("/")[0]
        if class_id in label_of:
            pictures.append((name, label_of[class_id]))
        else:
            stray[class_id] = stray.get(class_id, 0) + 1
    if stray:
        notes.append(
            f"left out {sum(stray.values())} training pictures of {len(stray)} classes that are not official: "
            + ", ".join(sorted(stray)[:5])
        )
    return sorted(pictures, key=lambda picture: (picture[1], picture[0]))


def _validation_pictures(tree: Tree, root: str, label_of: dict[str, int], notes: list[str]) -> list[tuple[str, int]]:
    annotated: dict[str, str] = {}
    for line in _text(tree, root + ANNOTATIONS).splitlines():
        file, _, rest = line.partition("\t")
        annotated[f"{root}val/images/{file}"] = rest.split("\t")[0]
    there = [name for name in tree.names if name.startswith(f"{root}val/images/")]
    if missing := annotated.keys() - set(there):
        raise BadInput(f"{ANNOTATIONS} in {tree.where} names {min(missing)}, which is not there; get the official set")
    pictures = [(name, label_of[annotated[name]]) for name in there if annotated.get(name) in label_of]
    if stray := len(there) - len(pictures):
        notes.append(f"left out {stray} validation pictures without an official class")
    return pictures


def _class_names(tree: Tree, root: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The first of a class's words, or its id where there are none."""
    words: dict[str, str] = {}
    if root + "words.txt" in tree.names:
        for line in _text(tree, root + "words.txt").splitlines():
            class_id, _, meaning = line.partition("\t")
            words[class_id] = meaning.split(",")[0].strip()
    return distinct([words.get(class_id) or class_id for class_id in ids], tags=ids)


def _part(tree: Tree, pictures: list[tuple[str, int]]) -> Part:
    labels = np.array([label for _, label in pictures], dtype=np.int64)

    def read_one(row: int) -> tuple[bytes, str]:
        return tree.read(pictures[row][0]), pictures[row][0]

    return Part(labels, lambda: decode_all(len(pictures), read_one, SHAPE, size=0, upright=False))


def _text(tree: Tree, name: str) -> str:
    return tree.read(name).decode("utf-8", errors="replace")
