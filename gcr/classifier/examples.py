"""From files to tensors: pictures as uint8 squares, features as standardised floats.

The first update fixes the form (size and channels, or columns and their scale). Later ones follow it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcr.classifier.sources import FeatureRows, PictureFiles, Source
from gcr.data.archive import MAX_MEMBER_BYTES
from gcr.data.pictures import FAINT, BadPicture, Tally, decode, of_picture, opened
from gcr.data.source import Pixels, times
from gcr.settings import BadInput, Misfit

Progress = Callable[[str, int, int], None]  # what, how much is done, of how much
LARGEST_BY_DEFAULT = 64  # pixels
LARGEST_FOR_CONVNET = 32
NETS = ("convnet", "resnet18", "mlp")
BLOCK = 256  # pictures between two reports of progress
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class Form:
    """How examples reach the network."""

    kind: str  # pictures or features
    shape: tuple[int, ...]  # [c, s, s] or [columns]
    names: tuple[str, ...] = ()  # of feature columns
    mean: tuple[float, ...] = ()  # of each column in the first update
    std: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Form:
        """An error names the field that is none."""
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        form = cls(**plain)
        wanted = {"pictures": 3, "features": 1}
        if form.kind not in wanted:
            raise Misfit(f"form.kind must be pictures or features, got {form.kind!r:.40}")
        if len(form.shape) != wanted[form.kind] or not all(type(n) is int and 0 < n < 2**16 for n in form.shape):
            raise Misfit(f"form.shape must be {wanted[form.kind]} whole numbers > 0, got {form.shape!r:.40}")
        if form.kind == "features":
            numbers = all(type(one) in (int, float) and abs(one) < 1e30 for one in (*form.mean, *form.std))
            if not numbers or not all(one > 0 for one in form.std):
                raise Misfit("form.mean must be finite numbers, and form.std such > 0")
            if not len(form.names) == len(form.mean) == len(form.std) == form.shape[0]:
                raise Misfit(f"form.names, form.mean and form.std must have {form.shape[0]} values each")
            if not all(isinstance(name, str) for name in form.names):
                raise Misfit("form.names must be text")
        return form

    @property
    def known_columns(self) -> tuple[str, ...] | None:
        return self.names if self.kind == "features" else None

    @property
    def in_words(self) -> str:
        return f"pictures of {times(self.shape)}" if self.kind == "pictures" else f"{self.shape[0]} features"

    def standardised(self, values: np.ndarray) -> Tensor:
        """Of features."""
        mean, std = (np.asarray(of, dtype=np.float32) for of in (self.mean, self.std))
        return torch.from_numpy((values - mean) / std)

    def default_net(self) -> str:
        if self.kind == "features":
            return "mlp"
        return "convnet" if self.shape[-1] <= LARGEST_FOR_CONVNET else "resnet18"

    def check_net(self, net: str) -> None:
        if net not in NETS:
            raise BadInput(f'net must be one of {", ".join(NETS)}, got "{net}"')
        if self.kind == "features" and net != "mlp":
            raise BadInput(f'net must be mlp for features, got "{net}"; {net} takes pictures')


class Read(NamedTuple):
    """Examples that could be read."""

    examples: Tensor  # [n, *shape], uint8 pictures or float32 features
    rows: list[int]  # of the source
    notes: tuple[str, ...]


def first_form(source: Source, size: int | None, progress: Progress) -> Form:
    """Of a new classifier. Pictures become squares of ``size``, or of their usual shorter side, at most 64."""
    if isinstance(source, FeatureRows):
        if size is not None:
            raise BadInput("size is for pictures, got features; leave --size out")
        std = source.values.astype(np.float64).std(axis=0)
        mean = source.values.astype(np.float64).mean(axis=0)
        return Form(
            "features",
            (len(source.names),),
            tuple(source.names),
            tuple(mean.tolist()),
            tuple(np.where(std > 1e-6 * np.maximum(np.abs(mean), 1e-30), std, 1.0).tolist()),
        )
    heads = [head for head in _mapped(_head, source.files, "looking at pictures", progress) if head is not None]
    if not heads:
        size = size or LARGEST_BY_DEFAULT  # none can be read: reading says so, with names
    side = size or min(LARGEST_BY_DEFAULT, round(median(min(head.width, head.height) for head in heads)))
    channels = 1 if all(head.grey for head in heads) else 3
    return Form("pictures", (channels, side, side))


def read_examples(source: Source, form: Form, skip_bad: bool, progress: Progress) -> Read:
    """As the form wants them. A picture that cannot be read is left out with ``skip_bad``, else an error."""
    if isinstance(source, FeatureRows) != (form.kind == "features"):
        got = "features" if isinstance(source, FeatureRows) else "pictures"
        raise BadInput(f"examples must be {form.kind}, as in the first update of this classifier, got {got}")
    if isinstance(source, FeatureRows):
        return Read(form.standardised(source.values), list(range(len(source.values))), source.notes)
    return _read_pictures(source, form, skip_bad, progress)


def as_form(x: Any, form: Form) -> Tensor:
    """Pictures or features that are in memory, as the form wants them: [n, *shape]."""
    if form.kind == "features":
        return form.standardised(_columns(x, form.names))
    pictures = list(x) if isinstance(x, list | tuple) else [x]
    if not pictures:
        raise BadInput("x must have at least one picture, got none")
    channels, size, _ = form.shape
    return torch.from_numpy(np.stack([_one_picture(one, n, channels, size) for n, one in enumerate(pictures)]))


def _one_picture(picture: Any, number: int, channels: int, size: int) -> Pixels:
    if isinstance(picture, str | Path):
        return decode(_content(Path(picture)), str(picture), channels, size)
    if isinstance(picture, bytes | bytearray | memoryview):
        return decode(bytes(picture), f"picture {number}", channels, size)
    if hasattr(picture, "getexif"):
        return of_picture(picture, f"picture {number}", channels, size)
    raise BadInput(f"pictures must be paths, bytes or Pillow images, got {type(picture).__name__}")


def _columns(x: Any, names: Sequence[str]) -> np.ndarray:
    """[n, columns], by name where they have names."""
    if isinstance(x, Mapping) or hasattr(x, "columns"):
        if missing := [name for name in names if name not in x]:
            raise BadInput(f"x must have the {len(names)} columns of the classifier, it lacks {missing[0]!r}")
        x = np.stack([np.asarray(x[name]).reshape(-1) for name in names], axis=1)
    try:
        values = np.asarray(x, dtype=np.float32)
    except (TypeError, ValueError):
        raise BadInput("x must be numbers, a row an example; gcr predict reads files of features") from None
    values = values[None] if values.shape == (len(names),) else values
    if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
        raise BadInput(f"x must be [n, {len(names)}], a column for each feature, got {list(values.shape)}")
    return values


def _read_pictures(source: PictureFiles, form: Form, skip_bad: bool, progress: Progress) -> Read:
    channels, size, _ = form.shape

    def one(file: Path) -> tuple[Pixels, _Head | None] | BadPicture:
        try:
            data = _content(file)
            return decode(data, str(file), channels, size), _head_of(data)
        except BadPicture as error:
            return error

    bad = Tally()
    rows: list[int] = []
    coloured = 0
    brightest: list[int] = []  # value of each picture of 16 bits
    images = torch.empty(len(source.files), *form.shape, dtype=torch.uint8)
    for row, found in enumerate(_mapped(one, source.files, "reading pictures", progress)):
        if isinstance(found, BadPicture):
            bad.add([found])
        else:
            pixels, head = found
            images[len(rows)] = torch.from_numpy(np.array(pixels))
            rows.append(row)
            coloured += head is not None and channels == 1 and not head.grey
            if head is not None and head.deep:
                brightest.append(int(pixels.max()))
    notes = list(source.notes)
    if bad.n:
        some = ", ".join(picture.short for picture in bad.first)
        more = f" and {bad.n - len(bad.first)} more" if bad.n > len(bad.first) else ""
        what = f"{bad.n} of {len(source.files)} pictures cannot be read: {some}{more}"
        if not skip_bad:
            raise BadInput(f"{what}; replace or remove them, or leave them out with --skip-bad")
        if not rows:
            raise BadInput(f"{what}; there is nothing left to read")
        notes.append(f"left out: {what}")
    if coloured:
        notes.append(f"{coloured} pictures have colours and are read as grey, as all in the first update were grey")
    return Read(images[: len(rows)], rows, (*notes, *_of_12_bits(brightest)))


def _of_12_bits(brightest: Sequence[int]) -> tuple[str, ...]:
    if not brightest or max(brightest) > FAINT:
        return ()
    return (
        f"{len(brightest)} pictures of 16 bits use the lowest sixteenth of their values and are read as nearly black; "
        "if they have values of 12 bits, multiply these by 16 first",
    )


class _Head(NamedTuple):
    width: int
    height: int
    grey: bool
    deep: bool  # more than 8 bits


def _head(file: Path) -> _Head | None:
    try:
        return _head_of(_content(file))
    except BadPicture:
        return None


def _head_of(data: bytes) -> _Head | None:
    """None where it is no picture."""
    try:
        with opened(data) as picture:
            return _Head(picture.width, picture.height, picture.mode in GREY_MODES, picture.mode.startswith("I"))
    except Exception:  # Pillow raises many kinds
        return None


def _content(file: Path) -> bytes:
    try:
        if not file.is_file() and file.exists():
            raise BadPicture(str(file), "not a file")
        if file.stat().st_size > MAX_MEMBER_BYTES:
            raise BadPicture(str(file), f"more than {MAX_MEMBER_BYTES} bytes")
        return file.read_bytes()
    except OSError as error:
        raise BadPicture(str(file), error.strerror or "cannot be opened") from None


def _mapped(function: Callable[[Path], Any], files: Sequence[Path], what: str, progress: Progress) -> Any:
    """In order, by threads."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        for start in range(0, len(files), BLOCK):
            yield from threads.map(function, files[start : start + BLOCK])
            progress(what, min(start + BLOCK, len(files)), len(files))
