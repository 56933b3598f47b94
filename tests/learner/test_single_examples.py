"""One example at a time, as in ``river``: dicts of numbers, labels of any kind, classes that come later."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import gcr
from gcr.settings import BadInput


def new_learner(features=3, **given):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))
    return gcr.Learner(net, **{"memory": 50} | given)


def example(value):
    return {"a": float(value), "b": 1.0, "c": -float(value)}


def taught():
    learner = new_learner()
    for value in range(60):
        learner.learn_one(example(value % 2), "odd" if value % 2 else "even")
    return learner


def test_nothing_is_known_before_the_first_example():
    learner = new_learner()
    assert learner.predict_one(example(0)) is None
    assert learner.predict_proba_one(example(0)) == {}


def test_the_order_of_keys_does_not_matter():
    learner = taught()
    for value, label in ((0, "even"), (1, "odd")):
        x = example(value)
        turned = dict(reversed(x.items()))
        assert learner.predict_one(x) == learner.predict_one(turned) == label
        assert learner.predict_proba_one(x) == learner.predict_proba_one(turned)
    assert learner.predict_proba_one(example(1)).keys() == {"odd", "even"}
    assert math.isclose(sum(learner.predict_proba_one(example(1)).values()), 1, rel_tol=1e-5)
    other = new_learner()
    for value in range(60):
        other.learn_one(
            dict(sorted(example(value % 2).items(), key=lambda _: value % 3)), "odd" if value % 2 else "even"
        )
    assert other.predict_proba_one(example(1)) == learner.predict_proba_one(example(1))


def test_the_first_dict_after_arrays_names_their_columns():
    learner = new_learner().fit(torch.rand(40, 3), ["x"] * 20 + ["y"] * 20, epochs=1)
    row = torch.tensor([0.3, 0.1, 0.9])
    named = dict(zip("zyx", row.tolist(), strict=True))
    assert learner.predict_proba_one(named) == learner.predict_proba_one(row)
    assert learner.predict_proba_one(dict(sorted(named.items()))) == learner.predict_proba_one(row)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"a": 1.0, "b": 1.0}, "x must have the keys of the first example, 3, got one that lacks 'c'"),
        (example(1) | {"d": 1.0}, "got one that has 'd' too"),
        ({"a": 1.0, "b": 1.0, "C": 1.0}, "lacks 'c'"),
        ({"a": 1.0, "b": "red", "c": 1.0}, "x must be numbers"),
        ({"a": 1.0, "b": math.nan, "c": 1.0}, "finite"),
        ({}, "x must hold at least one tensor, got an empty dict"),
    ],
)
def test_other_keys_and_values_are_refused_and_nothing_is_learned(x, message):
    learner = taught()
    before = learner.predict_proba_one(example(1))
    for call in (learner.predict_one, learner.predict_proba_one, lambda x: learner.learn_one(x, "odd")):
        with pytest.raises(BadInput, match=message):
            call(x)
    assert learner.predict_proba_one(example(1)) == before


def test_names_are_saved(tmp_path):
    learner = taught()
    learner.save(tmp_path / "state")
    other = gcr.Learner.load(tmp_path / "state", nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)))
    turned = dict(reversed(example(1).items()))
    assert other.predict_proba_one(turned) == learner.predict_proba_one(turned)
    with pytest.raises(BadInput, match="lacks 'a'"):
        other.learn_one({"z": 1.0, "b": 1.0, "c": 1.0}, "odd")


def test_a_stream_of_500_digits_whose_classes_come_one_after_another():
    digits = load_digits()
    names = ["zero", "one", "two", "three", "four"]
    first = [row for row in range(len(digits.target)) if digits.target[row] < 5]
    stream, later = sorted(first[:500], key=lambda row: digits.target[row]), first[500:]

    def pixels(row):
        return dict(zip(digits.feature_names, (digits.data[row] / 16).tolist(), strict=True))

    learner = new_learner(64, memory=100)
    for row in stream:
        learner.learn_one(pixels(row), names[digits.target[row]])
    assert learner.classes == names
    assert len(learner.memory) == 100
    right = [learner.predict_one(pixels(row)) == names[digits.target[row]] for row in later]
    assert sum(right) / len(right) > 0.85
