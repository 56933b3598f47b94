"""A folder of pictures for each class: ``train/<class>/…`` and ``test/<class>/…`` (or ``val``), or ``<class>/…`` alone.
``Training`` and ``Testing``, in any case of letters, are such parts too.

Without a test folder, a stratified share is held out with a stated seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcr.data.archive import Tree
from gcr.data.pictures import SUFFIXES, decode_all, first_shape
from gcr.data.source import Part, Source, Wanted, stratified
from gcr.settings import BadInput

TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "validation", "valid")
NAMED = 5  # of what is left out; the rest is counted
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
    notes = _left_out(tree, found)
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
    folders = {folder for name in names if (folder := _training_folder(name))}
    for above in sorted(folders, key=lambda folder: (folder.count("/"), folder)):
        own = above.split("/")[-2]
        root = above.removesuffix(f"{own}/")
        siblings = sorted({part for _, part in _below(names, root)} - {own})
        others = [_below(names, f"{root}{part}/") for word in TEST_FOLDERS for part in siblings if part.lower() == word]
        if own != "train" and siblings and not any(part.lower() in TEST_FOLDERS for part in siblings):
            continue  # a class of that name
        train = _below(names, above)
        classes = {class_name for _, class_name in train}
        same = [found for found in others if {class_name for _, class_name in found} == classes]
        return _Found(root, above, train, next(filter(None, same or others), None))
    root = _common_root(names)
    return _Found(root, root, _below(names, root))


def _left_out(tree: Tree, found: _Found) -> list[str]:
    """What is to be said of class folders without pictures, of other files next to pictures, and of other pictures."""
    paths = [*tree.folders, *(name.rpartition("/")[0] for name in tree.names)]
    siblings = {path.removeprefix(found.above).split("/")[0] for path in paths if path.startswith(found.above)}
    empty = sorted(name for name in siblings - {name for _, name in found.train} if name and not _is_hidden(name))
    folders = {name.rpartition("/")[0] for name, _ in [*found.train, *(found.test or [])]}
    others = [name for name in tree.names if name.rpartition("/")[0] in folders and not _is_picture(name)]
    others = [name for name in others if not _is_hidden(name) and not name.endswith(("/Thumbs.db", "/desktop.ini"))]
    taken = {name for name, _ in [*found.train, *(found.test or [])]}
    outside = [name for name in tree.names if _is_picture(name) and name not in taken]
    kinds = {
        "folders without pictures": empty,
        f"files that are not pictures ({', '.join(SUFFIXES)})": others,
        "pictures in no class folder of training or test": outside,
    }
    return [_counted(what, names) for what, names in kinds.items() if names]


def _counted(what: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"left out {len(names)} {what}: {', '.join(names[:NAMED])}{more}"


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and "/" in name and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _training_folder(name: str) -> str | None:
    """The first folder of training classes that ``name`` lies in.

    >>> _training_folder("birds/Train/robin/1.png"), _training_folder("vehicles/train/1.png")
    ('birds/Train/', None)
    """
    parts = name.split("/")
    at = next((i for i, part in enumerate(parts[:-2]) if part.lower() in TRAIN_FOLDERS), None)
    return None if at is None else "/".join(parts[: at + 1]) + "/"


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
