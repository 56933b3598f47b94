"""Scenarios of one's own arrays: what is converted, what is refused."""

import numpy as np
import pytest
import torch

import gcr
from gcr.augment import Views
from gcr.memory import Policy
from gcr.scenarios import Images, Scenario, equal_tasks, from_arrays
from gcr.select import GradApprox
from gcr.settings import BadInput


def images(n=12, channels=3, side=8, dtype=np.uint8, seed=0):
    values = np.random.default_rng(seed).random((n, channels, side, side))
    return (values * 255).astype(dtype) if np.issubdtype(dtype, np.integer) else values.astype(dtype)


LABELS = np.arange(12) % 6


def own(pixels, labels=LABELS, **more):
    return from_arrays((pixels, labels), (pixels, labels), **{"tasks": 3} | more)


@pytest.mark.parametrize(
    "given",
    [
        images(),
        images().astype(np.int64),
        images().astype(np.uint16),
        images().astype(">i4"),
        images()[:, ::-1][:, ::-1],
        images().tolist(),
        list(images()),
        torch.from_numpy(images()),
        [torch.from_numpy(image) for image in images()],
        images().transpose(0, 2, 3, 1),
        torch.from_numpy(images().transpose(0, 2, 3, 1)),
    ],
    ids=["uint8", "int64", "uint16", "big", "strides", "lists", "list", "tensor", "tensors", "hwc", "hwc-tensor"],
)
def test_bytes_are_stored_as_bytes_whatever_their_layout(given):
    scenario = own(given)
    assert scenario.train.pixels.dtype == torch.uint8
    assert np.array_equal(scenario.train.pixels.numpy(), images())
    assert scenario.image_shape == (3, 8, 8)


def test_a_read_only_array_is_taken():
    pixels = images()
    pixels.flags.writeable = False
    assert np.array_equal(own(pixels).train.pixels.numpy(), pixels)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_kept_as_floats(dtype):
    pixels = images(dtype=dtype)
    scenario = own(pixels)
    assert scenario.train.pixels.dtype == torch.float32
    assert np.array_equal(scenario.train.pixels.numpy(), pixels.astype(np.float32))
    assert own(pixels - 0.5).views.colours is False  # geometric strong views outside [0, 1]
    assert scenario.views.colours is True


def test_test_images_of_another_scale_are_told():
    pixels = images(dtype=np.float32)
    with pytest.warns(UserWarning, match=r"test has values of up to 25\d, train of up to .*; scale both alike"):
        from_arrays((pixels, LABELS), (pixels * 255, LABELS), tasks=3)


def test_bfloat16_tensors_are_kept():
    pixels = torch.from_numpy(images(dtype=np.float32)).bfloat16()
    assert torch.equal(own(pixels).train.pixels, pixels.float())


def test_floats_become_bytes_only_when_asked():
    pixels = images().astype(np.float32) / 255
    assert np.array_equal(own(pixels, quantise=True).train.pixels.numpy(), images())
    with pytest.raises(BadInput, match=r"train images must be in \[0, 1\] to be quantised, got -1"):
        own(2 * pixels - 1, quantise=True)


def test_grey_images_get_a_channel():
    assert own(images()[:, 0]).image_shape == (1, 8, 8)


@pytest.mark.parametrize("shape", [(12, 3, 8, 4), (12, 5, 8, 6), (12, 3, 3, 3)])
def test_an_unclear_layout_must_be_named(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    with pytest.raises(BadInput, match='say layout="chw" or layout="hwc"'):
        own(pixels)
    assert own(pixels, layout="chw").image_shape == shape[1:]
    hwc = own(pixels, layout="hwc")
    assert np.array_equal(hwc.train.pixels.numpy(), pixels.transpose(0, 3, 1, 2))


def test_views_are_measured_on_the_training_images():
    train, test = images(seed=1), images(seed=2)
    scaled = train / 255.0
    views = from_arrays((train, LABELS), (test, LABELS), 2).views
    np.testing.assert_allclose(views.mean, scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(views.std, scaled.std((0, 2, 3)), rtol=1e-6)
    floats = images(dtype=np.float64) * 7 - 3
    np.testing.assert_allclose(own(floats).views.std, floats.std((0, 2, 3)), rtol=1e-5)
    assert own(np.full((12, 8, 8), 0.25)).views.std == (1.0,)
    mine = Views(mean=(0.5,) * 3, std=(0.5,) * 3)
    assert own(train, views=mine).views is mine


@pytest.mark.parametrize(("channels", "side", "pad", "flip"), [(3, 16, 2, True), (1, 16, 2, False), (3, 8, 0, False)])
def test_only_larger_images_are_shifted_and_only_those_of_three_channels_mirrored(channels, side, pad, flip):
    views = own(images(channels=channels, side=side), layout="chw").views
    assert (views.pad, views.flip) == (pad, flip)


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ([7, -2, 7, 100, -2, 100], (-2, 7, 100)),
        (np.array([3, 1, 2, 3, 1, 2], np.uint8), (1, 2, 3)),
        (["b", "a", "c", "c", "b", "a"], ("a", "b", "c")),
        (np.array(["b", "a", "c", "c", "b", "a"]), ("a", "b", "c")),
        (np.array(["b", "a", "c", "c", "b", "a"], object), ("a", "b", "c")),
        (torch.tensor([5, 6, 7, 5, 6, 7]), (5, 6, 7)),
        (list(torch.tensor([5, 6, 7, 5, 6, 7])), (5, 6, 7)),
    ],
)
def test_labels_are_numbered_and_kept(given, classes):
    scenario = own(images(6), given)
    assert scenario.labels == classes
    assert scenario.class_names == tuple(str(label) for label in classes)
    values = (
        given.tolist() if hasattr(given, "tolist") else [getattr(label, "item", lambda x=label: x)() for label in given]
    )
    assert [classes[number] for number in scenario.train.labels.tolist()] == values


def test_tasks_by_number_by_label_and_in_another_order():
    assert own(images()).tasks == equal_tasks(6, 3)
    assert own(images(), tasks=None).tasks == equal_tasks(6, 5)
    assert own(images(6), [0, 1, 2] * 2, tasks=None).tasks == equal_tasks(3, 3)
    assert own(images(), class_order=4).tasks == equal_tasks(6, 3, 4)
    named = own(images(), list("abcdef" * 2), tasks=(("f", "a"), ("b",), ("c", "d", "e")))
    assert named.tasks == ((5, 0), (1,), (2, 3, 4))
    assert own(images(), tasks=np.arange(6).reshape(2, 3)).tasks == ((0, 1, 2), (3, 4, 5))


def test_without_test_images_a_share_of_each_class_is_held_out():
    pixels = images(60)
    scenario = from_arrays((pixels, np.arange(60) % 6), tasks=3, test_share=0.3)
    assert torch.bincount(scenario.test.labels).tolist() == [3] * 6
    assert torch.bincount(scenario.train.labels).tolist() == [7] * 6
    together = torch.cat([scenario.train.pixels, scenario.test.pixels]).flatten(1)
    assert len(together.unique(dim=0)) == 60


def test_a_stream_is_the_online_setting():
    assert own(images()).stream_length == 0
    assert own(images(), stream=4).stream_length == 4


NAN = images(dtype=np.float32)
NAN[3, 0, 0, 0] = np.nan
INF = images(dtype=np.float64)
INF[[1, 2], 0, 0, 0] = 1e300


@pytest.mark.parametrize(
    ("train", "more", "message"),
    [
        ((NAN, LABELS), {}, r"train images must be finite, got NaN or infinity in 1 of 12 rows: 3"),
        ((INF, LABELS), {}, r"in 2 of 12 rows: 1, 2"),
        ((images().astype(np.float32), LABELS), {}, "look like bytes .*; convert to uint8 or divide by 255"),
        ((images().astype(np.int64) * 2, LABELS), {}, r"train images of whole numbers must be in 0..255, got 0..5"),
        ((images().astype(np.int8), LABELS), {}, r"must be in 0..255, got -1"),
        ((images() > 9, LABELS), {}, "train images must be uint8 or float, got torch.bool"),
        ((images().astype(np.complex64), LABELS), {}, "train images must be real numbers, got complex64"),
        ((np.zeros((0, 3, 8, 8)), []), {}, "train images must have a row per image and must not be empty"),
        ((np.zeros((12, 3, 0, 8)), LABELS), {}, "must not be empty"),
        ((np.ma.masked_greater(images(), 250), LABELS), {}, "train images must not have masked entries"),
        ((images(), np.ma.masked_equal(LABELS, LABELS[0])), {}, "train labels must not have masked entries"),
        ((np.zeros((12, 64)), LABELS), {}, r"train images must be \[n, h, w\], .* got shape \(12, 64\)"),
        (([np.zeros((3, 8, 8)), np.zeros((3, 9, 9))], [0, 1]), {}, "rows have equal shapes"),
        ((images(), LABELS[:5]), {}, r"train labels must be one per image \(12\), got shape \(5,\)"),
        ((images(), np.eye(6)[LABELS]), {}, r"argmax\(1\)"),
        ((images(), LABELS / 2), {}, "train labels must be whole numbers or text, got float64"),
        ((images(), [*"abcdef", *range(6)]), {}, "train labels must be text, as the first, got 0 in row 6"),
        ((images(), [0, None] * 6), {}, "got None in row 1"),
        ((images(), [True, False] * 6), {}, "got True in row 0"),
        ((images(), np.zeros(12, int)), {}, "train labels must have two classes or more, got 0 alone"),
        (images(), {}, r"train must be \(images, labels\), got ndarray"),
        ((images(), LABELS), {"tasks": 7}, "tasks must be <= 6, the number of classes, got 7"),
        ((images(), LABELS), {"tasks": 0}, "tasks must be a whole number >= 1, got 0"),
        ((images(), LABELS), {"tasks": ((0, 1), (2, 9))}, "tasks must name labels of the training images, got 9"),
        ((images(), LABELS), {"tasks": ((0, 1), (2, 3))}, r"tasks must name each label once; \[4, 5\] are missing"),
        ((images(), LABELS), {"tasks": ((0, 1, 2), (2, 3, 4, 5))}, "some come twice"),
        ((images(), LABELS), {"tasks": (0, 1, 2)}, "each task must be a tuple of its labels, got 0"),
        ((images(), LABELS), {"tasks": ((0, 1, 2), (3, 4, 5)), "class_order": 1}, "class_order must be 0"),
        ((images(), LABELS), {"layout": "nchw"}, "layout must be one of auto, chw, hwc"),
        ((images(), LABELS), {"test": None, "test_share": 1.0}, "test_share must be between 0 and 1"),
        ((images(), LABELS), {"test": (images(), LABELS + 1)}, "must occur among the train labels, got 6 in row 5"),
        ((images(), LABELS), {"test": (images(), list("abcdef" * 2))}, "test labels must be whole numbers, as the"),
        ((images(), LABELS), {"test": (images(2), [0, 1])}, "task 2 must have test images, got none of 2, 3"),
        ((images(), LABELS), {"test": (images(side=6), LABELS)}, "test images must be torch.uint8"),
        ((images(), LABELS), {"test": (images(dtype=np.float32), LABELS)}, "test images must be torch.uint8"),
        ((images(), LABELS), {"views": Views((0.5,), (0.5,))}, "views must have a mean and a std for each of 3"),
        ((images(dtype=np.float32) * 3, LABELS), {"views": Views((0.5,) * 3, (0.5,) * 3)}, "jitter_share=0"),
        ((images(), LABELS), {"stream": 1}, "stream must be a whole number >= 2, got 1"),
    ],
)
def test_what_would_be_stored_wrong_is_refused(train, more, message):
    given = {"test": (images(dtype=np.float32), LABELS) if "jitter" in message else (images(), LABELS), "tasks": 3}
    with pytest.raises(BadInput, match=message):
        from_arrays(train, **given | more)


def make(pixels, labels, tasks=((0, 1),), **more):
    part = Images(pixels, labels)
    return Scenario("made", part, part, tasks, Views((0.5,), (0.5,)), ("a", "b"), **more)


BYTES, NUMBERS = torch.zeros(4, 1, 6, 6, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(BYTES.long(), NUMBERS), "pixels must be uint8 or float, got torch.int64"),
        (lambda: make(BYTES[:, 0], NUMBERS), r"pixels must be \[n, c, h, w\] and not empty"),
        (lambda: make(BYTES[:0], NUMBERS[:0]), "and not empty"),
        (lambda: make(BYTES, NUMBERS.int()), "labels must be int64, one per image, got torch.int32"),
        (lambda: make(BYTES, NUMBERS[:3]), "pixels and labels must be equally many, got 4 and 3"),
        (lambda: make(BYTES, NUMBERS + 1), r"training labels must be in 0..1, got 1..2; gcr.from_arrays numbers them"),
        (lambda: make(BYTES, NUMBERS, ((0,), (0, 1))), r"tasks must share classes 0..1, each in one task"),
        (lambda: make(BYTES, NUMBERS, ((0,), ())), "each in one task"),
        (lambda: make(BYTES.float() - 1, NUMBERS), r"training images must be in \[0, 1\] for strong views"),
    ],
)
def test_scenarios_made_by_hand_are_checked(call, message):
    make(BYTES, NUMBERS)
    with pytest.raises(BadInput, match=message):
        call()


def test_the_bytes_of_memory_are_known_before_training():
    scenario = own(images())
    policy = Policy(buffer=10, selector=GradApprox(), candidates=5)
    row = 3 * 8 * 8 + 8 + 6 * 4 + 4 + 8
    assert policy.nbytes(scenario.image_shape, 6) == 15 * row
    assert policy.nbytes(scenario.image_shape, 6, torch.float32) == 15 * (row + 3 * 3 * 8 * 8)
    assert policy.make_buffer(scenario.image_shape, 6).nbytes == 15 * row


def test_the_names_are_public():
    assert gcr.from_arrays is from_arrays
    assert gcr.Buffer.__name__ == "Buffer"
