"""Hugging Face's parquet files: encoded pictures in a column ``img`` or ``image``, labels as whole numbers.

Files belong to training or test by a word of their name, or of the nearest folder that has one
(``train-00000-of-00002.parquet``, ``test/0000.parquet``).
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcr.data.archive import Tree, in_short
from gcr.data.parquet_check import LIMITS, ROWS, check_parquet, parquet_library
from gcr.data.pictures import Tally, decode_all, first_shape
from gcr.data.source import Labels, Part, Pixels, Source, Wanted, block_rows, distinct, labels_of
from gcr.files import load_json
from gcr.settings import BadInput

TEST_WORDS = ("test", "validation", "valid", "val")
IMAGE_COLUMNS = ("img", "image", "img.bytes", "image.bytes")
LABEL_COLUMNS = ("fine_label", "label", "labels")


def finds(tree: Tree, wanted: Wanted) -> str | None:
    files = [f"/{name}" for name in tree.names if name.endswith(".parquet")]
    if not files:
        return None
    common = posixpath.commonpath([posixpath.dirname(file) for file in files]).strip("/")
    return common and f"{common}/"


def read(tree: Tree, wanted: Wanted) -> Source:
    parts = dict.fromkeys(name for word in ("train", *TEST_WORDS) for name in _files(tree, word))
    files = ((f"{name} in {tree.where}", tree.on_disk(name) or tree.read(name)) for name in parts)
    check_parquet(files, [*IMAGE_COLUMNS, *LABEL_COLUMNS])
    train = [_Shard(tree, name) for name in _files(tree, "train")]
    test, test_labels = _test_shards(tree)
    if not train or not test:
        lacking = "test" if train else "train"
        raise BadInput(
            f'{tree.where} lacks {lacking} files: names must contain "train", and "test" or "validation", as '
            "train.parquet and test.parquet; give their folder or both files"
        )
    known = wanted.known
    size = wanted.size or (known.shape[1] if known and known.resized else 0)
    upright = known is None
    all_pictures = (picture for shard in train for picture in shard.pictures())
    shape = first_shape(all_pictures, known.shape[0] if known else 3, size, upright)
    train_labels = _all_labels(train)
    given = train[0].class_names()
    n_labels = int(train_labels.max()) + 1
    if n_labels > len(train_labels):
        raise BadInput(
            f"labels in {tree.where} must be numbers from 0 on, one for each class, got {n_labels - 1} among "
            f"{len(train_labels)} training images"
        )
    names, order = _class_names(given, n_labels, wanted)
    notes: tuple[str, ...] = ()
    if known and known.class_ids and set(given) != set(known.class_ids):
        notes = ("the files do not say which label is which official class; labels are taken as they are",)
    return Source(
        Part(_renumbered(train_labels, order), lambda: _decoded(train, shape, size, upright)),
        Part(_renumbered(test_labels, order), lambda: _decoded(test, shape, size, upright)),
        shape,
        names,
        notes,
    )


def _test_shards(tree: Tree) -> tuple[list[_Shard], Labels]:
    """Test files, or validation files where the test files have no labels (they are -1 then)."""
    shards: list[_Shard] = []
    labels = np.empty(0, dtype=np.int64)
    for word in TEST_WORDS:
        if files := _files(tree, word):
            shards = [_Shard(tree, name) for name in files]
            labels = _all_labels(shards)
            if int(labels.max()) >= 0:
                break
    return shards, labels


def _all_labels(shards: list[_Shard]) -> Labels:
    return np.concatenate([shard.labels() for shard in shards])


def _files(tree: Tree, word: str) -> list[str]:
    return [name for name in tree.names if name.endswith(".parquet") and _part_of(name) == word]


def _part_of(name: str) -> str:
    """The word that says which part a file is of; "" without one.

    >>> _part_of("test_v1/train-0.parquet"), _part_of("val/0.parquet"), _part_of("latest/0.parquet")
    ('train', 'val', '')
    """
    for level in reversed(name.split("/")):
        found = [word for word in ("train", *TEST_WORDS) if re.search(rf"(^|[-_]){word}([-_.]|$)", level)]
        if "train" in found and len(found) > 1:
            raise BadInput(f'"{level}" in {name} names training and {found[1]}; rename it after the one that it is')
        if found:
            return found[0]
    return ""


def _class_names(
    given: tuple[str, ...], n_labels: int, wanted: Wanted
) -> tuple[tuple[str, ...], dict[int, int] | None]:
    """Names of the classes, and the official label of each of the file's labels where the two orders differ."""
    official = wanted.known.folder_names if wanted.known else ()
    if not official:
        own = given if len(given) >= n_labels else tuple(f"class {label}" for label in range(n_labels))
        return distinct(own, tags=range(len(own))), None
    names = (wanted.known.class_names if wanted.known else ()) or official
    if given != official and set(given) == set(official):
        return names, {label: official.index(name) for label, name in enumerate(given)}
    return names, None


def _renumbered(labels: Labels, order: dict[int, int] | None) -> Labels:
    if order is None:
        return labels
    return np.array([order.get(int(label), -1) for label in labels], dtype=np.int64)


def _decoded(shards: list[_Shard], shape: tuple[int, int, int], size: int, upright: bool) -> Iterator[Pixels]:
    waiting: list[tuple[bytes, str]] = []
    bad = Tally()
    for shard in shards:
        for picture in shard.pictures():
            waiting.append(picture)
            if len(waiting) == block_rows(shape):
                yield from decode_all(len(waiting), waiting.__getitem__, shape, size, upright, bad)
                waiting = []
    yield from decode_all(len(waiting), waiting.__getitem__, shape, size, upright, bad)
    bad.check()


class _Shard:
    """One parquet file."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.where = f"{name} in {tree.where}"
        path = tree.on_disk(name)
        try:
            source = path if path else io.BytesIO(tree.read(name))
            self.file: Any = parquet_library().ParquetFile(source, **LIMITS)
        except Exception as error:
            raise BadInput(f"{self.where} is not a complete parquet file ({in_short(error)}); get it again") from None
        if self.file.metadata.num_rows == 0:
            raise BadInput(f"{self.where} has no rows; leave it out or get it again")
        columns = list(self.file.schema_arrow.names)
        self.image = self._column("pictures", IMAGE_COLUMNS, columns)
        self.label = self._column("labels", LABEL_COLUMNS, columns)

    def _column(self, what: str, candidates: tuple[str, ...], columns: list[str]) -> str:
        for candidate in candidates:
            if candidate in columns:
                return candidate
        raise BadInput(
            f"{self.where} has no column of {what}: one of {', '.join(candidates)}; it has {', '.join(columns)}"
        )

    def labels(self) -> Labels:
        return labels_of(self._read(self.label), f'column "{self.label}" of {self.where}')

    def _read(self, column: str) -> list[Any]:
        try:
            values: list[Any] = self.file.read(columns=[column], use_threads=False).column(column).to_pylist()
        except Exception as error:
            raise BadInput(f"{self.where} cannot be read ({in_short(error)}); get it again") from None
        return values

    def pictures(self) -> Iterator[tuple[bytes, str]]:
        """Encoded pictures and what to call them, in the order of rows."""
        batches = self.file.iter_batches(ROWS, columns=[self.image], use_threads=False)
        row = 0
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:
                raise BadInput(f"{self.where} cannot be read ({in_short(error)}); get it again") from None
            if batch is None:
                return
            for value in batch.column(0).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                if not isinstance(data, bytes):
                    raise BadInput(
                        f"row {row} of {self.where} holds no picture's bytes; get files with embedded pictures"
                    )
                yield data, f"row {row} of {self.where}"
                row += 1

    def class_names(self) -> tuple[str, ...]:
        """What Hugging Face's library wrote about the label column, if it did."""
        metadata = self.file.schema_arrow.metadata or {}
        try:
            names = load_json(metadata[b"huggingface"])["info"]["features"][self.label]["names"]
            return tuple(map(str, names)) if isinstance(names, list) else ()
        except (KeyError, TypeError, ValueError):
            return ()
