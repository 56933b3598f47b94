"""Columns of Hugging Face data sets: a stand-in with their interface, and the real package where it is installed."""

import importlib.util

import numpy as np
import pytest
import torch
from PIL import Image

from gcr.learner.hugging_face import columns, is_dataset
from gcr.settings import BadInput

REAL = importlib.util.find_spec("datasets") is not None


class Stand:
    """What ``datasets.Dataset`` has of what is used."""

    def __init__(self, table, features=None):
        self.table, self.features = table, features or dict.fromkeys(table)

    @property
    def column_names(self):
        return list(self.table)

    def __len__(self):
        return len(next(iter(self.table.values())))

    def __getitem__(self, name):
        return self.table[name]


def real(table):
    import datasets

    return datasets.Dataset.from_dict(table)


MAKERS = [
    pytest.param(Stand, id="stand-in"),
    pytest.param(real, id="real", marks=pytest.mark.skipif(not REAL, reason="datasets is not installed")),
]


def pictures(n=3, mode="RGB", size=(5, 4)):
    """PIL's sizes are (width, height)."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).convert(mode) for _ in range(n)]


@pytest.mark.parametrize("make", MAKERS)
def test_pictures(make):
    shown = pictures()
    inputs, labels = columns(make({"img": shown, "label": [2, 0, 2]}), image="img", label="label")
    assert inputs.dtype == torch.uint8
    assert inputs.shape == (3, 3, 4, 5)
    assert torch.equal(inputs[1].permute(1, 2, 0), torch.from_numpy(np.array(shown[1])))
    assert labels == [2, 0, 2]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("P", 3), ("RGBA", 3)])
def test_modes_of_pictures(mode, channels):
    inputs, _ = columns(Stand({"img": pictures(mode=mode), "label": [0, 1, 0]}), "img", "label")
    assert inputs.shape == (3, channels, 4, 5)


def test_one_picture_in_colour_makes_all_so():
    mixed = [*pictures(2, "L"), *pictures(1)]
    inputs, _ = columns(Stand({"img": mixed, "label": [0, 1, 0]}), "img", "label")
    assert inputs.shape == (3, 3, 4, 5)
    assert torch.equal(inputs[0, 0], inputs[0, 2])


@pytest.mark.parametrize("make", MAKERS)
def test_several_columns_are_a_dict(make):
    table = {"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 0]], "topic": ["war", "peace"]}
    inputs, labels = columns(make(table), image=("input_ids", "attention_mask"), label="topic")
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == {
        name: table[name] for name in ("input_ids", "attention_mask")
    }
    assert inputs["input_ids"].dtype == torch.int64
    assert labels == ["war", "peace"]


@pytest.mark.parametrize("make", MAKERS)
def test_vectors_are_float32(make):
    inputs, _ = columns(make({"x": [[0.5, 1.5], [2.5, 3.5]], "y": [0, 1]}), "x", "y")
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == [[0.5, 1.5], [2.5, 3.5]]


def test_columns_in_torch_and_numpy_format():
    arrays = [np.array(picture) for picture in pictures(size=(5, 6))]  # [h, w, c]
    tensors = torch.stack([torch.from_numpy(array).permute(2, 0, 1) for array in arrays])
    for column in (arrays, np.stack(arrays), tensors, list(tensors)):
        inputs, labels = columns(Stand({"img": column, "label": np.array([0, 1, 1])}), "img", "label")
        assert torch.equal(inputs, tensors)
        assert labels == [0, 1, 1]
        assert type(labels[0]) is int
    inputs, labels = columns(Stand({"img": tensors, "label": torch.tensor([0, 1, 1])}), "img", "label")
    assert labels == [0, 1, 1]


@pytest.mark.skipif(not REAL, reason="datasets is not installed")
@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_formats_of_the_real_package(form):
    dataset = real({"img": pictures(), "label": [2, 0, 2]})
    inputs, labels = columns(dataset.with_format(form), "img", "label")
    assert torch.equal(inputs, columns(dataset, "img", "label")[0])
    assert labels == [2, 0, 2]
    inputs, labels = columns(dataset.to_iterable_dataset(), "img", "label")
    assert torch.equal(inputs, columns(dataset, "img", "label")[0])
    assert is_dataset(dataset)


def test_rows_that_stream():
    class Stream:
        column_names, features = None, None

        def __iter__(self):
            yield from ({"x": [float(row)], "y": row % 2, "more": None} for row in range(4))

    inputs, labels = columns(Stream(), "x", "y")
    assert inputs.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert labels == [0, 1, 0, 1]
    with pytest.raises(BadInput, match=r'unknown column "z".*known: more, x, y'):
        columns(Stream(), "x", "z")


def test_names_are_found_by_features():
    kinds = {name: type(name, (), {})() for name in ("Image", "ClassLabel", "Value")}
    features = {"pic": kinds["Image"], "kind": kinds["ClassLabel"], "id": kinds["Value"]}
    table = {"pic": pictures(), "kind": [0, 1, 0], "id": [7, 8, 9]}
    inputs, labels = columns(Stand(table, features))
    assert inputs.shape == (3, 3, 4, 5)
    assert labels == [0, 1, 0]
    with pytest.raises(BadInput, match='image must name a column; give image="NAME", one of a, label'):
        columns(Stand({"a": [1], "label": [0]}))
    with pytest.raises(BadInput, match=r"label must name a column.*one of img, a"):
        columns(Stand({"img": pictures(1), "a": [0]}))


def test_bad_data_sets():
    def given(column, label=(0, 1)):
        return lambda: columns(Stand({"x": column, "y": list(label)}), "x", "y")

    deep = Image.fromarray(np.zeros((4, 5), dtype=np.uint16))
    for attempt, message in (
        (lambda: columns(Stand({"img": [1], "y": [0]}), "image", "y"), 'unknown column "image" .did you mean "img"'),
        (lambda: columns(Stand({"x": [], "y": []}), "x", "y"), "dataset must have rows, got none"),
        (given([*pictures(1), *pictures(1, size=(6, 4))]), r"x must have equal shapes, got \(6, 4\) in row 1 .*resize"),
        (given([[1, 2], [1]]), r"x must have equal shapes, got \(1,\) in row 1 and \(2,\) in row 0; pad"),
        (given([[1], None]), "x must have a value in every row, got none in 1: 1"),
        (given([[1], [2]], (0, None)), "y must have a value in every row"),
        (given([[1], [2]], ([0], [1])), "y must be one label a row, got list"),
        (given([*pictures(1), [1]]), "x must be images in every row, got list in row 1"),
        (given([deep, deep]), r"x must be images of 8 bits, got mode I;16 in row 0"),
        (given(["a", "b"]), "x must be real numbers"),
        (lambda: columns(Stand({"x": [[1]], "y": [0]}), (), "y"), "image must name a column, or several, got none"),
    ):
        with pytest.raises(BadInput, match=message):
            attempt()

    class Splits(dict):
        column_names = {"train": ["x"], "test": ["x"]}  # noqa: RUF012

    with pytest.raises(BadInput, match=r'one split, got several \("train", "test"\)'):
        columns(Splits(), "x", "y")
