"""One picture at a time: bits, transparency, orientation, and what cannot be read."""

import io
import struct
import zlib

import made_data as made
import numpy as np
import pytest
from PIL import Image

from gcr.data import pictures
from gcr.data.pictures import BadPicture, decode


def encoded(picture, format="PNG", **options):
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits_are_scaled(format, channels):
    values = np.array([[0, 128, 129, 257 * 7], [10_000, 40_000, 65_406, 65_535]], dtype=np.uint16)
    pixels = decode(encoded(Image.fromarray(values), format), "x", channels)
    assert pixels.shape == (channels, 2, 4)
    assert all(np.array_equal(pixel, np.round(values / 257).astype(np.uint8)) for pixel in pixels)


def test_16_bits_with_a_transparent_value():
    values = np.array([[1000, 40_000]], dtype=np.uint16)
    data = encoded(Image.fromarray(values), transparency=1000)
    assert decode(data, "x", 1).tolist() == [[[255, 156]]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_values_of_unknown_range_are_refused(mode):
    with pytest.raises(BadPicture, match="its values have 32 bits, of unknown range; save it with 8 or 16"):
        decode(encoded(Image.new(mode, (2, 2)), "TIFF"), "x")


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparent_pixels_lie_on_white(format):
    rgba = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 51]]], dtype=np.uint8)
    data = encoded(Image.fromarray(rgba), format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    assert decode(data, "x").transpose(1, 2, 0)[0].tolist() == [[200, 0, 0], [255, 255, 255], [244, 204, 204]]


def test_transparent_grey_and_palettes_lie_on_white():
    grey = np.array([[[9, 255], [9, 0]]], dtype=np.uint8)
    assert decode(encoded(Image.fromarray(grey)), "x", 1).tolist() == [[[9, 255]]]
    palette = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    for format in ("PNG", "GIF"):
        pixels = decode(encoded(palette, format, transparency=1), "x")
        assert pixels.transpose(1, 2, 0)[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_an_opaque_alpha_channel_changes_nothing():
    rgb = made.examples(1, 1, (3, 16, 16))[0][0]
    rgba = np.concatenate([rgb, np.full((1, 16, 16), 255, np.uint8)])
    for channels in (1, 3):
        assert np.array_equal(decode(made.png(rgba), "x", channels), decode(made.png(rgb), "x", channels))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_pictures_are_turned_as_the_camera_was_held(orientation, format):
    """Orientations: 2 to 4 mirror or turn by half, 5 to 8 exchange the sides. Blocks of 16 pixels survive JPEG."""
    corner = np.zeros((32, 48), np.uint8)
    corner[:16, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(corner), format, exif=exif)
    turned = {
        1: corner,
        2: corner[:, ::-1],
        3: corner[::-1, ::-1],
        4: corner[::-1],
        5: corner.T,
        6: np.rot90(corner, -1),
        7: corner[::-1, ::-1].T,
        8: np.rot90(corner),
    }[orientation]
    assert np.array_equal(decode(data, "x", 1)[0] > 127, turned > 127)
    assert np.array_equal(decode(data, "x", 1, upright=False)[0] > 127, corner > 127)
    assert decode(data, "x", 3, size=8).shape == (3, 8, 8)


def test_damaged_exif_data_do_not_matter():
    plain = Image.new("L", (4, 4), 77)
    data = encoded(plain, "JPEG", exif=b"Exif\0\0MM\0*" + struct.pack(">IHHHII", 8, 5, 0x0112, 3, 99, 10**6))
    assert decode(data, "x", 1).tolist() == [[[77] * 4] * 4]


@pytest.mark.parametrize(
    "data",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) print\n",
        encoded(Image.new("RGB", (4, 4)), "ICNS"),
        encoded(Image.new("RGB", (4, 4)), "PDF"),
    ],
)
def test_formats_beyond_the_usual_are_refused(data):
    """Pillow would run Ghostscript for the first."""
    with pytest.raises(BadPicture, match="not in a format that Pillow reads"):
        decode(data, "x")


def test_pictures_that_are_too_large_or_too_narrow_are_refused(monkeypatch):
    with pytest.raises(BadPicture, match="1 x 1000000 pixels, too narrow to be resized"):
        decode(encoded(Image.new("1", (1, 1_000_000))), "x", size=64)
    for limit in ("MAX_PIXELS", "MAX_DECODED"):
        with monkeypatch.context() as patch:
            patch.setattr(pictures, limit, 100)
            with pytest.raises(BadPicture, match="20 x 10 pixels; at most 100 are read"):
                decode(encoded(Image.new("L", (20, 10))), "x")


def test_a_picture_beyond_the_limit_of_pillow_is_refused_in_our_words():
    content = bytearray(encoded(Image.new("L", (20, 10))))
    content[16:24] = struct.pack(">II", 60_000, 60_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    with pytest.raises(BadPicture, match="more than 80000000 pixels; at most so many are read"):
        decode(bytes(content), "x")


def test_many_large_pictures_are_decoded_one_by_one(monkeypatch):
    """Threads wait for room; all are decoded."""
    monkeypatch.setattr(pictures, "MAX_DECODED", 150)
    most = 0

    def counted(picture, name):
        nonlocal most
        most = max(most, pictures.IN_MEMORY.pixels)
        return picture

    monkeypatch.setattr(pictures, "_eight_bits", counted)
    data = encoded(Image.new("L", (10, 10), 7))
    (block,) = pictures.decode_all(20, lambda row: (data, str(row)), (1, 10, 10), 0)
    assert block.shape == (20, 1, 10, 10)
    assert (most, pictures.IN_MEMORY.pixels) == (100, 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty file"),
        (b"text", "not in a format that Pillow reads, or damaged at its beginning"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:600], r"image file is truncated \(.*\)"),
    ],
)
def test_what_cannot_be_read_is_said_in_plain_words(data, why):
    with pytest.raises(BadPicture, match=rf"^a/b\.png cannot be read as a picture \({why}\); replace or remove it$"):
        decode(data, "a/b.png")
