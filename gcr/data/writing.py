"""Writing a data set into the cache: block by block into a temporary folder, renamed when whole.

Hashes and channel statistics are taken while the blocks pass, so that nothing is read twice.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gcr
from gcr.data.blocks import BlockDigests
from gcr.data.cache import LAYOUT, About, aside, data_root, put_back
from gcr.data.catalog import find
from gcr.data.pictures import FAINT, BadPictures, Tally
from gcr.data.source import Part, Pixels, Source, counts, times
from gcr.files import is_left, sync_folder, this_process, write_json
from gcr.settings import BadInput

Progress = Callable[[str, int, int], None]  # what, how much is done, of how much
Say = Callable[[str], None]
LEFTOVER_SECONDS = 7 * 24 * 3600
REPLACE_ATTEMPTS = 3


def no_progress(what: str, done: int, total: int) -> None:
    pass


def write_set(
    name: str, format_name: str, source: Source, progress: Progress = no_progress, say: Say = lambda line: None
) -> About:
    """Write the data set and put it in the place of an earlier one of that name."""
    root = data_root()
    folder = root / f".{name}.{this_process()}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        put_back()  # before what is left over is dropped
        _drop_leftovers(root)
        shutil.rmtree(folder, ignore_errors=True)  # a process of the same number that was killed
        folder.mkdir()
        _check_space(folder, source)
        about = _write_arrays(folder, name, format_name, source, progress, say)
        write_json(folder / "about.json", about.to_mapping())
        _replace(folder, root / name)
        sync_folder(root)
    except OSError as error:
        raise BadInput(f"cannot write to {root} ({error.strerror or error}); set GCR_DATA to another folder") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return about


def _write_arrays(folder: Path, name: str, format_name: str, source: Source, progress: Progress, say: Say) -> About:
    sha256: dict[str, str] = {}
    digests: dict[str, str] = {}  # of blocks
    bad = Tally()
    official, copies = find(name) is not None, 0
    trained: set[bytes] = set()  # digests of training images
    histogram = Histogram(source.shape[0])
    total = len(source.train.labels) + len(source.test.labels)
    done = 0

    def passing(part: Part, counted: bool) -> Iterator[Pixels]:
        nonlocal done, copies
        for block in part.blocks():
            if counted:
                histogram.add(block)
            images = () if official else block
            own = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
            if counted:
                trained.update(own)
            else:
                copies += sum(one in trained for one in own)
            yield block
            done += len(block)
            progress(f"{name}: writing images", done, total)

    for part_name, part in (("train", source.train), ("test", source.test)):
        n, file = len(part.labels), f"{part_name}-images.npy"
        try:
            images = passing(part, part_name == "train")
            sha256[file], digests[file] = write_array(folder / file, (n, *source.shape), "|u1", images)
        except BadPictures as error:  # reported together with those of the other part
            bad.add(error.tally.first, error.tally.n)
        file = f"{part_name}-labels.npy"
        labels = iter([part.labels.astype("<i8")])
        sha256[file], digests[file] = write_array(folder / file, (n,), "<i8", labels)
    bad.check()
    if copies:
        say(f"{name}: {copies} of {len(source.test.labels)} test images are copies of training images; remove them")
    if not histogram.counts[:, FAINT + 1 :].any():
        say(
            f"{name}: no training image has a value above {FAINT} of 255, so all are nearly black; if they have values "
            "of 12 bits in files of 16, multiply these by 16 first"
        )
    n_classes = len(source.class_names)
    return About(
        layout=LAYOUT,
        name=name,
        source=format_name,
        gcr=gcr.__version__,
        shape=source.shape,
        class_names=source.class_names,
        train=tuple(counts(source.train.labels, n_classes)),
        test=tuple(counts(source.test.labels, n_classes)),
        mean=histogram.mean,
        std=histogram.std,
        sha256=sha256,
        bytes={file: (folder / file).stat().st_size for file in sha256},
        blocks=digests,
        mirrored=source.mirrored,
    )


def write_array(path: Path, shape: tuple[int, ...], dtype: str, blocks: Iterator[NDArray[Any]]) -> tuple[str, str]:
    """Write blocks of rows as one .npy file of the stated shape; its SHA-256, and the digests of its blocks."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    digest, digests = hashlib.sha256(header.getvalue()), BlockDigests()
    digests.add(header.getvalue())
    rows = 0
    with open(path, "wb") as file:
        file.write(header.getvalue())
        for block in blocks:
            if block.shape[1:] != shape[1:]:
                raise BadInput(f"images must be of {times(shape[1:])}, got one of {times(block.shape[1:])}")
            content = np.ascontiguousarray(block).data
            digest.update(content)
            digests.add(content)
            file.write(content)
            rows += len(block)
        file.flush()
        os.fsync(file.fileno())
    if rows != shape[0]:
        raise BadInput(f"there are {shape[0]} labels, but {rows} images; the files are damaged")
    return digest.hexdigest(), digests.text()


class Histogram:
    """How often each of the 256 values occurs in each channel: exact means and deviations, in any order of blocks."""

    def __init__(self, channels: int) -> None:
        self.counts = np.zeros((channels, 256), dtype=np.int64)

    def add(self, block: Pixels) -> None:
        for channel in range(len(self.counts)):
            self.counts[channel] += np.bincount(block[:, channel].ravel(), minlength=256)

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(float(m) for m in self._moments()[0].round(6))

    @property
    def std(self) -> tuple[float, ...]:
        return tuple(float(s) for s in self._moments()[1].round(6))

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values = np.arange(256) / 255
        share = self.counts / self.counts.sum(1, keepdims=True)
        mean = share @ values
        return mean, np.sqrt(np.maximum(share @ values**2 - mean**2, 0))


def _check_space(folder: Path, source: Source) -> None:
    needed = (len(source.train.labels) + len(source.test.labels)) * (int(np.prod(source.shape)) + 8)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"this needs {needed / 1e6:,.0f} MB in {folder.parent}, which has {free / 1e6:,.0f} MB free; "
            "set GCR_DATA to a folder on another disk"
        )


def _replace(new: Path, place: Path) -> None:
    """Put ``new`` in its place. An earlier one is out of place only between two renames, and comes back on failure."""
    old = aside(place)
    for attempt in range(REPLACE_ATTEMPTS):
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            place.rename(old)
        try:
            new.rename(place)
            break
        except BaseException as error:
            if place.exists() and isinstance(error, OSError) and attempt + 1 < REPLACE_ATTEMPTS:
                continue  # a reader missed the earlier one just now and put it back
            if old.exists() and not place.exists():
                old.rename(place)
            raise
    shutil.rmtree(old, ignore_errors=True)


def _drop_leftovers(root: Path) -> None:
    """What imports that were killed left behind. One of another machine has touched its folder within the week."""
    for folder in root.glob(".*.part"):
        if folder.is_dir() and (is_left(folder.name) or time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)
