"""Each batched view against a plain one, image by image."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image

from gcr.augment import DRAWS, Views, colour_jitter, grey, resized_crop, shift_and_flip


def uniforms(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def pictures(n=20, channels=3, size=7, seed=1):
    return (uniforms(n, channels, size, size, seed=seed) * 255).to(torch.uint8)


@pytest.mark.parametrize(("pad", "flip"), [(1, True), (3, False), (0, True)])
def test_shift_and_flip_is_pad_crop_mirror(pad, flip):
    images, draws = pictures(), uniforms(20, 3)
    views = shift_and_flip(images, draws, pad, flip)
    for image, u, view in zip(images, draws, views, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (pad, pad), (pad, pad)))
        top, left = int(u[0] * (2 * pad + 1)), int(u[1] * (2 * pad + 1))
        crop = padded[:, top : top + 7, left : left + 7]
        if flip and u[2] >= 0.5:
            crop = crop[:, :, ::-1]
        np.testing.assert_array_equal(view.numpy(), crop)


def test_resized_crop_of_everything_is_the_image():
    images = pictures().float() / 255
    draws = torch.tensor([[1.0, 0.5, 0.3, 0.7, 0.0]]).expand(20, 5)
    torch.testing.assert_close(resized_crop(images, draws, 0.2, 1.0, flip=True), images)


def test_resized_crop_resamples_as_pillow_does():
    images, draws = pictures(size=16), uniforms(20, 5)
    views = resized_crop(images.float(), draws, 0.2, 1.0, flip=True)
    for image, u, view in zip(images, draws.tolist(), views, strict=True):
        area, ratio = 0.2 + 0.8 * u[0], (4 / 3) ** (2 * u[1] - 1)
        height, width = min(1, (area / ratio) ** 0.5) * 16, min(1, (area * ratio) ** 0.5) * 16
        top, left = u[2] * (16 - height), u[3] * (16 - width)
        for channel in range(3):
            source = Image.fromarray(image[channel].numpy().astype(np.float32))
            box = (left, top, left + width, top + height)
            # Pillow's affine transform samples at pixel centres without smoothing, as grid_sample does.
            matrix = (width / 16, 0, box[0], 0, height / 16, box[1])
            expected = np.asarray(source.transform((16, 16), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR))
            if u[4] >= 0.5:
                expected = expected[:, ::-1]
            inner = np.s_[2:-2, 2:-2]  # at the rim Pillow fills, grid_sample repeats the border
            np.testing.assert_allclose(view[channel].numpy()[inner], expected[inner], atol=0.6)


def test_colour_jitter_pixel_by_pixel():
    images, draws = uniforms(10, 3, 4, 4, seed=3), uniforms(10, 4, seed=4)
    views = colour_jitter(images, draws, 0.4, 0.4, 0.4, 0.1)
    for image, u, view in zip(images.double().numpy(), draws.tolist(), views, strict=True):
        b, c, s = (1 + 0.4 * (2 * v - 1) for v in u[:3])
        x = np.clip(image * b, 0, 1)
        luma = np.tensordot([0.299, 0.587, 0.114], x, 1)
        x = np.clip(c * x + (1 - c) * luma.mean(), 0, 1)
        luma = np.tensordot([0.299, 0.587, 0.114], x, 1)
        x = np.clip(s * x + (1 - s) * luma, 0, 1)
        for i in range(4):
            for j in range(4):
                h, saturation, value = colorsys.rgb_to_hsv(*x[:, i, j])
                x[:, i, j] = colorsys.hsv_to_rgb((h + 0.1 * (2 * u[3] - 1)) % 1, saturation, value)
        np.testing.assert_allclose(view.numpy(), x, atol=1e-5)


def test_grey_is_pillows_luma():
    image = pictures(1)
    expected = np.asarray(Image.fromarray(image[0].permute(1, 2, 0).numpy()).convert("L"))
    np.testing.assert_allclose(grey(image.float())[0, 0].numpy(), expected, atol=1)


def test_jitter_leaves_one_channel_without_colour():
    view = colour_jitter(uniforms(5, 1, 4, 4), uniforms(5, 4), 0.4, 0.4, 0.4, 0.1)
    assert view.shape == (5, 1, 4, 4)


@pytest.mark.parametrize("kind", ["weak", "mild", "strong"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_of_a_batch_is_the_views_of_its_images(kind, channels):
    views = Views(mean=(0.4,) * channels, std=(0.2,) * channels, pad=2)
    images, draws = pictures(channels=channels), uniforms(20, DRAWS[kind])
    together = views.make(kind, images, draws)
    assert together.dtype == torch.float32
    for i in range(20):
        torch.testing.assert_close(together[i], views.make(kind, images[i : i + 1], draws[i : i + 1])[0])


def test_grey_and_jitter_happen_as_often_as_they_should():
    views = Views(mean=(0.0,) * 3, std=(1.0,) * 3)
    images = pictures(n=2000, size=4)
    view = views.strong(images, uniforms(2000, DRAWS["strong"]))
    is_grey = (view[:, 0] - view[:, 1]).abs().amax((1, 2)) < 1e-6
    assert float(is_grey.float().mean()) == pytest.approx(0.2, abs=0.03)


def test_a_mild_view_is_a_strong_one_of_a_larger_part():
    images, draws = pictures(), uniforms(20, DRAWS["mild"])
    mild, larger = Views((0.4,) * 3, (0.2,) * 3), Views((0.4,) * 3, (0.2,) * 3, crop=(0.5, 1.0))
    assert torch.equal(mild.mild(images, draws), larger.strong(images, draws))
    assert not torch.equal(mild.mild(images, draws), mild.strong(images, draws))


def test_plain_images_are_normalised():
    views = Views(mean=(0.5,), std=(0.25,))
    assert views.plain(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item() == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["plain", "weak", "mild", "strong"])
@pytest.mark.parametrize("channels", [1, 3])
def test_floats_in_unit_range_have_the_views_of_their_bytes(kind, channels):
    views = Views(mean=(0.4,) * channels, std=(0.2,) * channels, pad=2)
    images, draws = pictures(channels=channels), uniforms(20, DRAWS.get(kind, 0))
    floats = images.float() / 255
    ours, theirs = (
        views.plain(given) if kind == "plain" else views.make(kind, given, draws) for given in (floats, images)
    )
    assert torch.equal(ours, theirs)


def test_floats_of_any_range_are_only_normalised_and_moved():
    images = 10 * torch.randn(20, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    views = Views.measured(images, pad=1, jitter_share=0.0, grey_share=0.0)
    plain = views.plain(images)
    torch.testing.assert_close(plain.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.std((0, 2, 3), correction=0), torch.ones(3))
    moved, draws = shift_and_flip(images, uniforms(20, 3), 1, True), uniforms(20, 3)
    assert torch.equal(views.weak(images, draws), views.plain(moved))
    strong = uniforms(20, DRAWS["strong"])
    cropped = resized_crop(images, strong[:, :5], *views.crop, views.flip)
    assert torch.equal(views.strong(images, strong), views.plain(cropped))
    assert float(cropped.abs().max()) > 5  # not clamped to [0, 1]


def test_measured_views_are_those_of_numpy():
    images = pictures(n=50)
    views = Views.measured(images, flip=False)
    scaled = images.double().numpy() / 255
    np.testing.assert_allclose(views.mean, scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(views.std, scaled.std((0, 2, 3)), rtol=1e-6)
    assert not views.flip
