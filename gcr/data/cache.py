"""The one form every data set takes on disk: a folder of memory-mapped arrays and an ``about.json``.

``<root>/<name>/``: ``train-images.npy`` and ``test-images.npy`` (uint8 [n, c, h, w]), ``train-labels.npy`` and
``test-labels.npy`` (int64 [n]), ``about.json``. The root is ``GCR_DATA`` or ``gcr`` in the platform's cache folder.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gcr.data.blocks import OTHER_SHA256, BlockCheck, digits_of
from gcr.data.catalog import CATALOG, commands, find
from gcr.data.source import Labels, Pixels
from gcr.files import Damaged, read_json, this_process
from gcr.settings import BadInput

LAYOUT = 2  # of the folder; raised when an older gcr could not read a newer one
WITHOUT_BLOCKS = 1  # the layout of gcr 0.2.0, read too: no digests of blocks
PARTS = ("train", "test")
ARRAYS = tuple(f"{part}-{what}.npy" for part in PARTS for what in ("images", "labels"))


@dataclass(frozen=True)
class About:
    """``about.json``: all that is known without reading the arrays."""

    layout: int
    name: str
    source: str  # the format it was read from
    gcr: str  # version that wrote it
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train: tuple[int, ...]  # examples of each class
    test: tuple[int, ...]
    mean: tuple[float, ...]  # of the training images scaled to [0, 1], per channel
    std: tuple[float, ...]
    sha256: dict[str, str]  # of each array's file
    bytes: dict[str, int]
    blocks: dict[str, str] = field(default_factory=dict)  # CRC-32 of each block of each file (``blocks.py``)
    mirrored: bool = True  # whether views of a set of one's own may be mirrored; in the file only where not

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> About:
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**plain)

    def to_mapping(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "mirrored" or not value}

    @property
    def is_sound(self) -> bool:
        """Whether the values are of the right kinds and go together: the file may have been edited."""
        n_classes, channels = len(self.class_names), self.shape[0]
        return (
            len(self.shape) == 3
            and _all(self.shape, int)
            and _all(self.class_names, str)
            and all(len(part) == n_classes and _all(part, int) for part in (self.train, self.test))
            and all(len(values) == channels and _all(values, int, float) for values in (self.mean, self.std))
            and all(abs(value) < MOST for value in (*self.mean, *self.std))
            and set(self.bytes) == set(self.sha256) == set(ARRAYS)
            and _all(self.bytes.values(), int)
            and _all(self.sha256.values(), str)
            and (self.layout == WITHOUT_BLOCKS or self._has_blocks)
            and type(self.mirrored) is bool
        )

    @property
    def _has_blocks(self) -> bool:
        return set(self.blocks) == set(ARRAYS) and all(
            len(self.blocks[file]) == digits_of(self.bytes[file]) for file in ARRAYS
        )

    @property
    def fingerprint(self) -> str:
        """Of the arrays: the beginning of a SHA-256 over theirs, in the order of file names. Runs of a set that is not
        mirrored are no seeds of those that mirror it."""
        together = "".join(self.sha256[file] for file in sorted(self.sha256)) + "not mirrored" * (not self.mirrored)
        return hashlib.sha256(together.encode()).hexdigest()[:16]

    @property
    def images_bytes(self) -> int:
        return self.bytes["train-images.npy"] + self.bytes["test-images.npy"]


MOST = 1e30  # of a mean or deviation; beyond it floats overflow


def _all(values: Iterable[object], *kinds: type) -> bool:
    return all(type(value) in kinds for value in values)


@dataclass(frozen=True)
class CachedSet:
    folder: Path
    about: About

    def check_files(self) -> None:
        """An error for the first array's file that is missing or has a wrong size."""
        for file in ARRAYS:
            if problem := self.file_problem(file):
                raise corrupt(self.about.name, self.folder / file, problem)

    def file_problem(self, file: str) -> str:
        """What can be seen without reading it; empty if nothing is wrong."""
        try:
            with open(self.folder / file, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return error.strerror or str(error)
        return "" if size == self.about.bytes[file] else f"{size} bytes instead of {self.about.bytes[file]}"

    def images(self, part: str) -> Pixels:
        """A map of the file, read page by page when used. Writing to it changes memory, never the file."""
        n = sum(getattr(self.about, part))
        mapped: Pixels = self._map(f"{part}-images.npy", (n, *self.about.shape), np.dtype(np.uint8))
        return mapped

    def image_check(self, part: str) -> BlockCheck:
        """Of the file that ``images`` maps."""
        file, n, about = f"{part}-images.npy", sum(getattr(self.about, part)), self.about
        damaged = partial(corrupt, about.name, self.folder / file)
        digests = about.blocks.get(file, "")
        return BlockCheck(self.folder / file, n, math.prod(about.shape), digests, about.sha256[file], damaged)

    def labels(self, part: str) -> Labels:
        """Read whole, and checked."""
        file, n = f"{part}-labels.npy", sum(getattr(self.about, part))
        labels = np.array(self._map(file, (n,), np.dtype(np.int64)))
        if hashlib.sha256((self.folder / file).read_bytes()).hexdigest() != self.about.sha256[file]:
            raise corrupt(self.about.name, self.folder / file, OTHER_SHA256)
        return labels

    def _map(self, file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        path = self.folder / file
        try:
            if problem := self.file_problem(file):
                raise ValueError(problem)
            array = np.load(path, mmap_mode="c")
            if not isinstance(array, np.ndarray):
                raise ValueError("it is an archive, not an array")
        except Exception as error:  # NumPy parses the header as Python: any kind of error
            raise corrupt(self.about.name, path, str(error)) from None
        if array.shape != shape or array.dtype != dtype:
            raise corrupt(self.about.name, path, f"{array.dtype} {list(array.shape)} instead of {dtype} {list(shape)}")
        return array


def data_root() -> Path:
    """Where data sets lie. Nothing is made by asking."""
    try:
        return _data_root()
    except RuntimeError:  # no HOME, and nobody who knows it
        raise BadInput("the home folder is not known; set GCR_DATA to a folder for data sets") from None


def _data_root() -> Path:
    if given := os.environ.get("GCR_DATA"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "gcr"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/gcr"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gcr"


def check_name(name: str) -> None:
    """A data set's name: also a folder's, and, for a set of one's own, a scenario's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
        raise BadInput(f'a data set\'s name must be small letters, digits and "-", at most 64, got "{name}"')
    if name.startswith("seq-"):
        raise BadInput(
            f'a data set\'s name must not begin with "seq-", got "{name}": such names are scenarios; '
            f'leave it out ("{name.removeprefix("seq-") or "birds"}")'
        )


def is_own_name(name: str) -> bool:
    """Whether data of one's own can have that name, there or not."""
    with suppress(BadInput):
        check_name(name)
        return find(name) is None
    return False


def is_cached(name: str) -> bool:
    file = data_root() / name / "about.json"
    if not file.is_file():
        put_back(name)
    return file.is_file()


def open_cached(name: str) -> CachedSet:
    """The data set of that name, all files there and of the right size.

    An error with the commands that get it if it is not there, or create it again if it is damaged.
    """
    cached = described(name)
    cached.check_files()
    return cached


def described(name: str) -> CachedSet:
    """The data set by its ``about.json`` alone; its arrays may be damaged or missing."""
    check_name(name)
    if not is_cached(name):
        raise absent(name)
    return _described(name, data_root() / name)


def described_at(folder: Path) -> CachedSet:
    """The same for a folder, in whatever cache it lies."""
    return _described(folder.resolve().name, folder)


def absent(name: str) -> BadInput:
    """The error for a data set that is not there: a mistyped name, one to get, or one that cannot be put back."""
    if left := _left_aside(name):
        return BadInput(
            f"the data set {name} is in {left[0]}, where an import that was interrupted left it; "
            f"rename that folder to {data_root() / name}"
        )
    near = difflib.get_close_matches(name, [*(known.name for known in CATALOG), *own_names()], n=1)
    hint = f' (did you mean "{near[0]}"?)' if near and near[0] != name else ""
    return BadInput(f"the data set {name}{hint} is not in {data_root()}; get it with: {commands(name)}")


def _described(name: str, folder: Path) -> CachedSet:
    file = folder / "about.json"
    try:
        values = read_json(file)
        layout = values.get("layout")
        about = About.from_mapping(values) if layout in (LAYOUT, WITHOUT_BLOCKS) else None
        sound = about is not None and about.is_sound
    except Damaged as error:
        raise corrupt(name, file, error.why) from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise corrupt(name, file, str(error)) from None
    if about is None:
        raise corrupt(name, file, f"layout {layout}, this gcr reads {LAYOUT}")
    if about.name != name or not sound:
        raise corrupt(name, file, "it does not describe this data set")
    return CachedSet(folder, about)


def own_names() -> list[str]:
    """The cached data sets that are not official ones."""
    root = data_root()
    if not root.is_dir():
        return []
    put_back()
    return sorted(
        folder.name
        for folder in root.iterdir()
        if not folder.name.startswith(".") and (folder / "about.json").is_file() and find(folder.name) is None
    )


def aside(place: Path) -> Path:
    """Where an earlier data set lies while a new one takes its place: another name in the same folder."""
    return place.with_name(f".{place.name}.{this_process()}.old.part")


def put_back(name: str = "*") -> None:
    """Data sets that are only aside, since an import was killed between two renames, return to their place."""
    for folder in _left_aside(name):
        with suppress(OSError):  # read-only, or another process did it: ``described`` says so if it is still missing
            folder.rename(folder.with_name(_name_of(folder)))


def _left_aside(name: str = "*") -> list[Path]:
    """Whole data sets that are aside and not in their place."""
    return [
        folder
        for folder in data_root().glob(f".{name}.*.old.part")
        if not folder.with_name(_name_of(folder)).exists() and _is_whole(folder)
    ]


def _name_of(folder: Path) -> str:
    return folder.name.split(".")[1]


def _is_whole(folder: Path) -> bool:
    try:
        _described(_name_of(folder), folder).check_files()
    except BadInput:
        return False
    return True


def corrupt(name: str, file: Path, what: str) -> BadInput:
    return BadInput(f"{file} is damaged ({what}); create it again with: {commands(name)}")
