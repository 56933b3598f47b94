"""Encoded pictures (JPEG, PNG, …) to uint8 arrays with Pillow, by threads: decoding leaves Python's lock alone.

16 bits are scaled to 8, what is transparent lies on white, and a camera's note of how it was held (EXIF) is obeyed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Any

import numpy as np

from gcr.data.source import Pixels, block_rows
from gcr.settings import BadInput

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "PPM", "GIF", "TIFF")  # no others: Pillow runs programs for some
MAX_PIXELS = 80_000_000  # of one picture: larger ones are taken for bombs
MAX_DECODED = 40_000_000  # pixels in memory at a time, in all threads: they need up to 24 bytes each
FAINT = 16  # of 255, as 12 bits fill of 16
NAMED = 5  # bad pictures that are named; the others are counted


class BadPicture(BadInput):
    """One picture that cannot be read, and why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} cannot be read as a picture ({why}); replace or remove it")
        self.short = f"{name} ({why})"


class BadPictures(BadInput):
    """Several of them: the first few by name, and how many there are."""

    def __init__(self, tally: Tally) -> None:
        more = f" and {tally.n - len(tally.first)} more" if tally.n > len(tally.first) else ""
        named = ", ".join(bad.short for bad in tally.first)
        super().__init__(
            str(tally.first[0])
            if tally.n == 1
            else f"{tally.n} pictures cannot be read: {named}{more}; replace or remove them"
        )
        self.tally = tally


class Tally:
    """Pictures that cannot be read: all are counted before any is reported, so that one pass can fix them."""

    def __init__(self) -> None:
        self.first: list[BadPicture] = []
        self.n = 0

    def add(self, found: Iterable[BadPicture], n: int = 1) -> None:
        """Some of the ``n`` pictures that were found."""
        self.first = [*self.first, *found][:NAMED]
        self.n += n

    def check(self) -> None:
        if self.n:
            raise BadPictures(self)


def decode(data: bytes, name: str, channels: int = 3, size: int = 0, upright: bool = True) -> Pixels:
    """One picture as [c, h, w]; with ``size``, the short side is resized to it and the middle square kept.

    ``upright`` turns it as its EXIF data say. Official sets are read without, as everywhere, so that figures compare.
    """
    if not data:
        raise BadPicture(name, "empty file")
    with _named(name), opened(data) as picture:
        return _pixels(picture, name, channels, size, upright)


def of_picture(picture: Any, name: str, channels: int = 3, size: int = 0) -> Pixels:
    """As ``decode``, of one that Pillow has opened already. It is decoded at its full scale, where ``decode`` may take
    a lower one of a JPEG: numbers differ by a little."""
    with _named(name):
        _check_pixels(picture, name, MAX_PIXELS)
        own = picture.copy()
        own.format = picture.format
        return _pixels(own, name, channels, size, upright=True)


def _pixels(picture: Any, name: str, channels: int, size: int, upright: bool) -> Pixels:
    _check_pixels(picture, name, MAX_PIXELS)
    if size:
        picture.draft(None, (2 * size, 2 * size))  # a JPEG many times too large is decoded at a lower scale
    _check_pixels(picture, name, MAX_DECODED)
    with IN_MEMORY.room_for(picture.width * picture.height):
        if upright:
            _turn(picture)
        plain: Any = _opaque(_eight_bits(picture, name)).convert("RGB" if channels == 3 else "L")
        if size:
            plain = _square(plain, size)
        pixels = np.asarray(plain, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What Pillow says of a picture that it cannot read, with its name."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except BadInput:
        raise
    except UnidentifiedImageError:
        raise BadPicture(name, "not in a format that Pillow reads, or damaged at its beginning") from None
    except Image.DecompressionBombError:  # Pillow's own limit, which is above ours
        raise BadPicture(name, f"more than {MAX_PIXELS} pixels; at most so many are read") from None
    except Exception as error:  # Pillow raises many kinds for damaged pictures
        raise BadPicture(name, str(error) or type(error).__name__) from None


class _InMemory:
    """Pixels that are being decoded. A thread waits while there are too many."""

    def __init__(self) -> None:
        self.pixels, self.changed = 0, Condition()

    @contextmanager
    def room_for(self, pixels: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: self.pixels + pixels <= MAX_DECODED)
            self.pixels += pixels
        try:
            yield
        finally:
            with self.changed:
                self.pixels -= pixels
                self.changed.notify_all()


IN_MEMORY = _InMemory()


def _check_pixels(picture: Any, name: str, most: int) -> None:
    if picture.width * picture.height > most:
        raise BadPicture(name, f"{picture.width} x {picture.height} pixels; at most {most} are read")


def opened(data: bytes) -> Any:
    """The picture, of which only the beginning has been read."""
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=FORMATS)


def first_shape(
    pictures: Iterable[tuple[bytes, str]], channels: int, size: int, upright: bool = True
) -> tuple[int, int, int]:
    """[c, h, w] of the first picture that can be read; those before it are reported when all are decoded."""
    bad = Tally()
    for data, name in pictures:
        try:
            c, h, w = decode(data, name, channels, size, upright).shape
            return c, h, w
        except BadPicture as error:
            bad.add([error])
    bad.check()
    raise BadInput("there are no pictures")


def decode_all(
    n: int,
    read: Callable[[int], tuple[bytes, str]],
    shape: tuple[int, int, int],
    size: int,
    upright: bool = True,
    bad: Tally | None = None,
) -> Iterator[Pixels]:
    """Blocks of the pictures 0 to n - 1; ``read`` gives the bytes and the name of one.

    After a picture that cannot be read there are no more blocks, but the others are tried. The error comes last, or,
    with a tally ``bad``, is the caller's to raise.
    """
    tally = Tally() if bad is None else bad

    def one(row: int) -> Pixels | BadPicture:
        data, name = read(row)
        try:
            pixels = decode(data, name, shape[0], size, upright)
        except BadPicture as error:
            return error
        if pixels.shape != shape:
            raise BadInput(
                f"{name} has {pixels.shape[2]} x {pixels.shape[1]} pixels, the first picture {shape[2]} x {shape[1]}; "
                "the images of a data set must be of one size: give --size"
            )
        return pixels

    rows = block_rows(shape)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        for start in range(0, n, rows):
            good: list[Pixels] = []
            for found in threads.map(one, range(start, min(start + rows, n))):
                if isinstance(found, BadPicture):
                    tally.add([found])
                else:
                    good.append(found)
            if not tally.n:
                yield np.stack(good)
    if bad is None:
        tally.check()


def _turn(picture: Any) -> None:
    from PIL import ImageOps

    try:
        ImageOps.exif_transpose(picture, in_place=True)
    except Exception:  # damaged EXIF data say nothing of the picture, which may be whole
        return


def _eight_bits(picture: Any, name: str) -> Any:
    """Pillow's own conversion from more than 8 bits a channel clips: nearly all becomes white."""
    from PIL import Image

    if picture.mode == "F" or (picture.mode == "I" and picture.format not in ("PNG", "PPM")):
        raise BadPicture(name, "its values have 32 bits, of unknown range; save it with 8 or 16")
    if not picture.mode.startswith("I"):
        return picture
    values = np.asarray(picture).astype(np.uint32)  # 0 to 65535
    grey = ((values + 128) // 257).astype(np.uint8)
    if isinstance(hidden := picture.info.get("transparency"), int):
        grey[values == hidden] = 255
    return Image.fromarray(grey)


def _opaque(picture: Any) -> Any:
    """Over white: what lies under transparent pixels is not meant to be seen."""
    from PIL import Image

    if picture.mode not in ("LA", "La", "PA", "RGBA", "RGBa") and "transparency" not in picture.info:
        return picture
    layered = picture if picture.mode == "RGBA" else picture.convert("RGBA")
    if layered.getchannel("A").getextrema()[0] == 255:
        return picture
    return Image.alpha_composite(Image.new("RGBA", layered.size, (255, 255, 255, 255)), layered)


def _square(picture: Any, size: int) -> Any:
    from PIL import Image

    width, height = picture.size
    if (width, height) == (size, size):
        return picture
    scale = size / min(width, height)
    if width * height * scale**2 > MAX_DECODED:
        raise ValueError(f"{width} x {height} pixels, too narrow to be resized")
    picture = picture.resize(
        (max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BILINEAR
    )
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    return picture.crop((left, top, left + size, top + size))
