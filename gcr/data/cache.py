"""The one form every data set takes on disk: a folder of memory-mapped arrays and an ``about.json``.

``<root>/<name>/``: ``train-images.npy`` and ``test-images.npy`` (uint8 [n, c, h, w]), ``train-labels.npy`` and
``test-labels.npy`` (int64 [n]), ``about.json``. The root is ``GCR_DATA`` or ``gcr`` in the platform's cache folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcr.data.catalog import commands, find
from gcr.data.source import Labels, Pixels
from gcr.settings import BadInput

LAYOUT = 1  # of the folder; raised when an older gcr could not read a newer one
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

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> About:
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**plain)

    @property
    def images_bytes(self) -> int:
        return self.bytes["train-images.npy"] + self.bytes["test-images.npy"]


@dataclass(frozen=True)
class CachedSet:
    folder: Path
    about: About

    def images(self, part: str) -> Pixels:
        """A map of the file, read page by page when used. Writing to it changes memory, never the file."""
        n = sum(getattr(self.about, part))
        mapped: Pixels = self._map(f"{part}-images.npy", (n, *self.about.shape), np.dtype(np.uint8))
        return mapped

    def labels(self, part: str) -> Labels:
        n = sum(getattr(self.about, part))
        return np.array(self._map(f"{part}-labels.npy", (n,), np.dtype(np.int64)))

    def _map(self, file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        path = self.folder / file
        try:
            if path.stat().st_size != self.about.bytes[file]:
                raise ValueError(f"{path.stat().st_size} bytes instead of {self.about.bytes[file]}")
            array = np.load(path, mmap_mode="c")
        except (OSError, ValueError, EOFError) as error:
            raise corrupt(self.about.name, path, str(error)) from None
        if array.shape != shape or array.dtype != dtype:
            raise corrupt(self.about.name, path, f"{array.dtype} {list(array.shape)} instead of {dtype} {list(shape)}")
        return array


def data_root() -> Path:
    """Where data sets lie. Nothing is made by asking."""
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


def is_cached(name: str) -> bool:
    return (data_root() / name / "about.json").is_file()


def open_cached(name: str) -> CachedSet:
    """The data set of that name; an error with the commands that get it if it is not there."""
    check_name(name)
    folder = data_root() / name
    file = folder / "about.json"
    if not file.is_file():
        raise BadInput(f"the data set {name} is not in {data_root()}; get it with: {commands(name)}")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        layout = values.get("layout")
        about = About.from_mapping(values) if layout == LAYOUT else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise corrupt(name, file, str(error)) from None
    if about is None:
        raise corrupt(name, file, f"layout {layout}, this gcr reads {LAYOUT}")
    if about.name != name or set(about.bytes) != set(ARRAYS) or set(about.sha256) != set(ARRAYS):
        raise corrupt(name, file, "it does not describe this data set")
    return CachedSet(folder, about)


def own_names() -> list[str]:
    """The cached data sets that are not official ones."""
    root = data_root()
    if not root.is_dir():
        return []
    return sorted(
        folder.name
        for folder in root.iterdir()
        if not folder.name.startswith(".") and (folder / "about.json").is_file() and find(folder.name) is None
    )


def corrupt(name: str, file: Path, what: str) -> BadInput:
    return BadInput(f"{file} is damaged ({what}); make it anew with: {commands(name)}")
