"""Encoded pictures (JPEG, PNG, …) to uint8 arrays with Pillow, by threads: decoding leaves Python's lock alone."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gcr.data.source import Pixels, block_rows
from gcr.settings import BadInput

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")
MAX_PIXELS = 80_000_000  # of one picture: larger ones are taken for bombs


def decode(data: bytes, name: str, channels: int = 3, size: int = 0) -> Pixels:
    """One picture as [c, h, w]; with ``size``, the short side is resized to it and the middle square kept."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise BadInput(f"{name} has {picture.width} x {picture.height} pixels; at most {MAX_PIXELS} are read")
            if size:
                picture.draft(None, (2 * size, 2 * size))  # a JPEG many times too large is decoded at a lower scale
            plain: Any = picture.convert("RGB" if channels == 3 else "L")
            if size:
                plain = _square(plain, size)
            pixels = np.asarray(plain, dtype=np.uint8)
    except BadInput:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged pictures
        raise BadInput(f"{name} is no whole picture ({error}); replace or remove it") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_all(
    n: int, read: Callable[[int], tuple[bytes, str]], shape: tuple[int, int, int], size: int
) -> Iterator[Pixels]:
    """Blocks of the pictures 0 to n - 1; ``read`` gives the bytes and the name of one."""

    def one(row: int) -> Pixels:
        data, name = read(row)
        pixels = decode(data, name, shape[0], size)
        if pixels.shape != shape:
            raise BadInput(
                f"{name} has {pixels.shape[2]} x {pixels.shape[1]} pixels, the first picture {shape[2]} x {shape[1]}; "
                "the images of a data set must be of one size: give --size"
            )
        return pixels

    rows = block_rows(shape)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for start in range(0, n, rows):
            yield np.stack(list(pool.map(one, range(start, min(start + rows, n)))))


def _square(picture: Any, size: int) -> Any:
    from PIL import Image

    width, height = picture.size
    if (width, height) == (size, size):
        return picture
    scale = size / min(width, height)
    picture = picture.resize(
        (max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BILINEAR
    )
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    return picture.crop((left, top, left + size, top + size))
