"""Labels: what they may be, and what the outputs of a network mean."""

from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple

import pytest
import torch
from made_learners import A, B, blobs, mlp
from torch import nn

import gcr
from gcr.learner.labels import Labels
from gcr.settings import BadInput

X, Y = blobs([A, B])


class Number(IntEnum):
    CAT = 1
    DOG = 2


class Word(StrEnum):
    CAT = "cat"
    DOG = "dog"


class Mixed(str, Enum):  # noqa: UP042
    CAT = "cat"
    DOG = "dog"


class Place(NamedTuple):
    row: int
    column: Number


def test_equal_class_names_are_refused_with_their_places():
    """They would shift all later outputs, so that a perfect network is wrong."""
    with pytest.raises(BadInput, match=r"classes must be distinct, .* got 'crane' at outputs 1, 3; rename"):
        gcr.Learner(nn.Linear(5, 5), classes=["ant", "crane", "bee", "crane", "cat"])
    with pytest.raises(BadInput, match="got 1 at outputs 0, 1; rename"):
        gcr.Learner(mlp(), classes=[1, True])
    with pytest.raises(BadInput, match="'e' at outputs 4, 14; and 5 more"):
        gcr.Learner(nn.Linear(20, 20), classes=list("abcdefghij" * 2))


@pytest.mark.parametrize("classes", ["cat", b"cat"])
def test_a_text_is_not_a_list_of_classes(classes):
    with pytest.raises(BadInput, match=r"classes must be a sequence of labels, got the text b?'cat'"):
        gcr.Learner(mlp(), classes=classes)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (list(Number), [1, 2]),
        (list(Word), ["cat", "dog"]),
        (list(Mixed), ["cat", "dog"]),
        ([Place(0, Number.CAT), Place(0, Number.DOG)], [(0, 1), (0, 2)]),
    ],
    ids=["IntEnum", "StrEnum", "str, Enum", "NamedTuple"],
)
def test_a_loaded_learner_takes_the_same_labels(given, plain, tmp_path):
    y = [given[0]] * 40 + [given[1]] * 40
    learner = gcr.Learner(mlp(), memory=10).fit(X, y, epochs=1)
    assert learner.classes == plain
    assert [type(label) for label in learner.classes] == [type(label) for label in plain]
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp())
    assert loaded.score(X, y) == learner.score(X, y)
    loaded.fit(X, y, epochs=1)
    assert loaded.predict_proba(X, labels=given).shape == (80, 2)


@pytest.mark.parametrize("label", [frozenset({1}), b"cat", (1, frozenset())])
def test_labels_that_cannot_be_saved_are_refused_before_training(label):
    learner = gcr.Learner(mlp(), memory=5)
    with pytest.raises(BadInput, match="so that they can be saved, got "):
        learner.fit(X, [label] * 80, epochs=1)
    assert learner.engine is None


def test_a_column_of_labels():
    labels = Labels()
    assert labels.checked(torch.tensor([[3], [5]]), 2) == [3, 5]
    assert labels.checked(torch.tensor([[3], [5]]).numpy(), 2) == [3, 5]
    with pytest.raises(BadInput, match="argmax"):
        labels.checked(torch.eye(2), 2)


def test_labels_of_another_type_are_refused_in_score():
    learner = gcr.Learner(mlp(), memory=5).fit(X, [0, 1] * 40, epochs=1)
    with pytest.raises(BadInput, match="labels must be of one type, int as the first, got '0'"):
        learner.score(X, ["0", "1"] * 40)
