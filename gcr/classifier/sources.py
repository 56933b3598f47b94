"""What a user points at: a folder per class, a table of picture paths, or a table of features.

Everything is listed and checked here; no picture is opened yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from gcr.classifier import tables
from gcr.classifier.tables import Table, read_table
from gcr.data.pictures import SUFFIXES
from gcr.settings import BadInput

NAMED = 5  # of what is left out
PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}  # of a data set, not classes
ROW_NUMBERS = re.compile(r"\s*|Unnamed: 0(\.\d+)*|__index_level_0__")  # columns that pandas and R write unasked


@dataclass(frozen=True)
class PictureFiles:
    files: list[Path]
    labels: list[str]  # empty where they are to be predicted
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureRows:
    file: Path
    names: list[str]
    values: NDArray[np.float32]  # [n, names]
    labels: list[str]
    notes: tuple[str, ...] = ()


Source = PictureFiles | FeatureRows


def find_labelled(
    path: Path, label: str | None = None, path_column: str | None = None, known: Sequence[str] | None = None
) -> Source:
    """``known``: the feature columns of a classifier that is there already."""
    if path.is_dir():
        for option, value in (("label", label), ("path", path_column)):
            if value is not None:
                raise BadInput(f"--{option} is for a CSV, TSV or parquet file, got the folder {path}; leave it out")
        return _class_folders(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder with a folder per class, or a CSV, TSV or parquet file")
    if path.suffix.lower() not in tables.SUFFIXES:
        raise BadInput(f"new examples must be a folder or a file of {', '.join(tables.SUFFIXES)}, got {path}")
    table = read_table(path)
    column = table.path_column(path_column)
    if column is not None:
        return PictureFiles(table.paths(column), table.labels(label))
    return _features(table, known, table.label_column(label), table.labels(label))


def find_unlabelled(
    paths: Sequence[Path], known: Sequence[str] | None = None, path_column: str | None = None
) -> list[Source]:
    """Pictures, folders of pictures and tables, in the order given. ``known`` are a classifier's feature columns;
    None: it is one of pictures."""
    found: list[Source] = []
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path} does not exist; give pictures, folders, or CSV, TSV or parquet files")
        if path.suffix.lower() in tables.SUFFIXES and path.is_file():
            table = read_table(path)
            column = table.path_column(path_column) if known is None else None
            if known is None and column is None:
                raise BadInput(f"{path} must have a column of picture paths; name it by --path")
            found.append(_features(table, known) if column is None else PictureFiles(table.paths(column), []))
        elif path.is_dir():
            files, _ = _walk(path)
            if not files:
                raise BadInput(f"{path} has no pictures ({', '.join(SUFFIXES)})")
            found.append(PictureFiles(files, []))
        else:
            found.append(PictureFiles([path], []))
    return found


def _class_folders(path: Path) -> PictureFiles:
    try:
        inside = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "__MACOSX")))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    folders = [entry for entry in inside if entry.is_dir()]
    if not folders:
        raise BadInput(f"{path} must hold a folder per class with its pictures, got no folder")
    _refuse_parts(path, folders)
    files: list[Path] = []
    labels: list[str] = []
    others = [entry for entry in inside if not entry.is_dir()]
    for folder in folders:
        pictures, strange = _walk(folder)
        if not pictures:
            raise BadInput(
                f"the class folder {folder} has no pictures ({', '.join(SUFFIXES)}); add some or remove the folder"
            )
        files += pictures
        labels += [normalize("NFC", folder.name)] * len(pictures)  # as macOS may not write accents
        others += strange
    return PictureFiles(files, labels, _left_out(others))


def _refuse_parts(path: Path, folders: Sequence[Path]) -> None:
    """An error for train/CLASS, val/CLASS and the like."""
    if {folder.name.strip().lower() for folder in folders} <= PARTS and all(map(_has_folders, folders)):
        names = ", ".join(folder.name for folder in folders)
        one = next((folder for folder in folders if "train" in folder.name.lower()), folders[0])
        raise BadInput(
            f"{path} must hold a folder per class, got the parts of a data set ({names}); give one of them, as {one}: "
            "examples to measure accuracy are held out of it"
        )


def _has_folders(folder: Path) -> bool:
    _, inside, _ = next(os.walk(folder), ("", [], []))
    return any(not name.startswith((".", "__MACOSX")) for name in inside)


def _left_out(others: Sequence[Path]) -> tuple[str, ...]:
    if not others:
        return ()
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    named = ", ".join(str(other) for other in others[:NAMED])
    return (f"left out {len(others)} files that are not pictures in a class folder: {named}{more}",)


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Pictures below the folder, and other files. Hidden ones are neither."""
    pictures: list[Path] = []
    others: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in sorted(names):
            if not name.startswith("."):
                (pictures if name.lower().endswith(SUFFIXES) else others).append(Path(where) / name)
    return pictures, others


def _features(
    table: Table, known: Sequence[str] | None, label_column: str | None = None, labels: list[str] | None = None
) -> FeatureRows:
    there = [name for name in table.columns if name != label_column]
    notes: tuple[str, ...] = ()
    if known is None:
        names = [name for name in there if not ROW_NUMBERS.fullmatch(name)]
        if not names:
            raise BadInput(f"{table.file} must have columns of numbers or a column of paths next to its labels")
        values = table.numbers(names)
        notes = _row_numbers([name for name in there if name not in names], names, values)
    else:
        names = list(known)
        if missing := [name for name in names if name not in table.columns]:
            raise BadInput(
                f"{table.file} must have the {len(names)} feature columns of the classifier; it lacks {len(missing)}: "
                f"{', '.join(missing[:NAMED])}{' …' if len(missing) > NAMED else ''}"
            )
        spare = sorted(set(there) - set(names))
        if spare and label_column is not None:  # where classes are predicted, a label or a name of the row is usual
            shown = ", ".join(name or '""' for name in spare)
            notes = (f"left out columns that the classifier does not know: {shown}",)
        values = table.numbers(names)
    return FeatureRows(table.file, names, values, labels or [], notes)


def _row_numbers(left_out: Sequence[str], names: Sequence[str], values: NDArray[np.float32]) -> tuple[str, ...]:
    """What is to be said of columns that number the rows: rows in the order of their classes give these away."""
    notes = [f'left out the column "{name}": by its name it numbers the rows' for name in left_out]
    for name, column in zip(names, values.T, strict=True):
        if len(column) > 2 and column[0] in (0, 1) and np.array_equal(column, column[0] + np.arange(len(column))):
            notes.append(f'the column "{name}" numbers the rows, and is taken as a feature; remove it if it is none')
    return tuple(notes)
