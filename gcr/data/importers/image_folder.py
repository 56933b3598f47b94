"""A folder of pictures for each class: ``train/<class>/…`` and ``test/<class>/…`` (or ``val``), or ``<class>/…`` alone.

Without a test folder, a stratified share is held out with a stated seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcr.data.archive import Tree
from gcr.data.pictures import SUFFIXES, decode_all, first_shape
from gcr.data.source import Part, Source, Wanted, stratified
from gcr.settings import BadInput

TEST_FOLDERS = ("test", "val", "validation", "valid")
TEST_SHARE, TEST_SEED = 0.2, 0

Pictures = list[tuple[str, str]]  # file, class


@dataclass(frozen=True)
class _Found:
    root: str  # the folder of all of it, as "" or "a/"
    above: str  # the folder of the training classes
    train: Pictures
    test: Pictures | None = None  # where there is a folder of them


def finds(tree: Tree, wanted: Wanted) -> str | None:
    found = _parts(tree)
    return found.root if len({class_name for _, class_name in found.train}) > 1 else None


def read(tree: Tree, wanted: Wanted) -> Source:
    found = _parts(tree)
    train, test = found.train, found.test
    if not train:
        raise BadInput(f"{tree.where} holds no folders of pictures; give a folder with a folder for each class")
    notes = _empty_folders(tree, found)
    classes = _classes(train, wanted)
    label_of = {class_name: label for label, class_name in enumerate(classes)}
    if test is None:
        labels = np.array([label_of[class_name] for _, class_name in train], dtype=np.int64)
        held_out = stratified(labels, TEST_SHARE, TEST_SEED)
        notes.append(
            f"there is no test folder: {int(held_out.sum())} of {len(train)} pictures are held out for testing, "
            f"{TEST_SHARE:.0%} of each class, drawn with seed {TEST_SEED}"
        )
        test = [picture for picture, out in zip(train, held_out, strict=True) if out]
        train = [picture for picture, out in zip(train, held_out, strict=True) if not out]
    elif strange := {class_name for _, class_name in test} - set(classes):
        raise BadInput(f'test class "{min(strange)}" in {tree.where} is not a training class; the folders must match')
    size = wanted.size or (wanted.known.shape[1] if wanted.known and wanted.known.resized else 0)
    channels = wanted.known.shape[0] if wanted.known else 3
    upright = wanted.known is None
    shape = first_shape(((tree.read(name), name) for name, _ in train), channels, size, upright)
    names = (wanted.known.class_names if wanted.known else ()) or classes
    train_part, test_part = (_part(tree, pictures, label_of, shape, size, upright) for pictures in (train, test))
    return Source(train_part, test_part, shape, names, tuple(notes))


def _parts(tree: Tree) -> _Found:
    names = [name for name in tree.names if _is_picture(name)]
    roots = {root for name in names if (root := _above_train(name)) is not None}
    if not roots:
        root = _common_root(names)
        return _Found(root, root, _below(names, root))
    root = min(roots, key=lambda root: (root.count("/"), root))
    train = _below(names, root + "train/")
    others = [found for folder in TEST_FOLDERS if (found := _below(names, f"{root}{folder}/"))]
    classes = {class_name for _, class_name in train}
    same = [found for found in others if {class_name for _, class_name in found} == classes]
    return _Found(root, f"{root}train/", train, next(iter(same or others), None))


def _empty_folders(tree: Tree, found: _Found) -> list[str]:
    """What is to be said of class folders without pictures."""
    paths = [*tree.folders, *(name.rpartition("/")[0] for name in tree.names)]
    siblings = {path.removeprefix(found.above).split("/")[0] for path in paths if path.startswith(found.above)}
    empty = sorted(name for name in siblings - {name for _, name in found.train} if name and not _is_hidden(name))
    if not empty:
        return []
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    return [f"left out {len(empty)} folders without pictures: {', '.join(empty[:5])}{more}"]


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and "/" in name and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _above_train(name: str) -> str | None:
    """The folder, as "" or "a/", that has a ``train`` with class folders, if ``name`` lies in one.

    >>> _above_train("birds/train/robin/1.png"), _above_train("vehicles/train/1.png")
    ('birds/', None)
    """
    at = f"/{name.rpartition('/')[0]}".find("/train/")
    return name[:at] if at >= 0 else None


def _common_root(names: list[str]) -> str:
    """The folder of the class folders.

    >>> _common_root(["birds/robin/1.png", "birds/wren/1.png"])
    'birds/'
    """
    root = ""
    while len(tops := {name.removeprefix(root).split("/")[0] for name in names}) == 1:
        longer = f"{root}{tops.pop()}/"
        if not all("/" in name.removeprefix(longer) for name in names):
            break  # that was the one class
        root = longer
    return root


def _below(names: list[str], root: str) -> Pictures:
    """Pictures in the class folders below ``root``; deeper folders belong to their class."""
    inside = ((name, name.removeprefix(root)) for name in names if name.startswith(root))
    return [(name, rest.split("/")[0]) for name, rest in inside if "/" in rest]


def _classes(train: Pictures, wanted: Wanted) -> tuple[str, ...]:
    """Classes in the order of labels: the official one, or that of the names."""
    there = sorted({class_name for _, class_name in train})
    official = wanted.known.folder_names if wanted.known else ()
    if not official:
        return tuple(there)
    if strange := set(official) ^ set(there):
        raise BadInput(
            f'{wanted.name} has {len(official)} classes as "{official[0]}", these folders are {len(there)} as '
            f'"{there[0]}"; "{min(strange)}" is on one side only'
        )
    return official


def _part(
    tree: Tree, pictures: Pictures, label_of: dict[str, int], shape: tuple[int, int, int], size: int, upright: bool
) -> Part:
    labels = np.array([label_of[class_name] for _, class_name in pictures], dtype=np.int64)

    def read_one(row: int) -> tuple[bytes, str]:
        return tree.read(pictures[row][0]), pictures[row][0]

    return Part(labels, lambda: decode_all(len(pictures), read_one, shape, size, upright))
