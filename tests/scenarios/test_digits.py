from pathlib import Path

import pytest
import torch

from gcr.scenarios import load
from gcr.scenarios.datasets import digits
from gcr.settings import BadInput


def test_digits_are_all_there_once():
    s = load("seq-digits")
    assert len(s.train.labels) + len(s.test.labels) == 1797
    assert s.train.pixels.dtype == torch.uint8
    assert s.image_shape == (1, 8, 8)
    assert int(s.train.pixels.max()) == 255
    everything = torch.cat([s.train.labels, s.test.labels])
    assert torch.bincount(everything).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_split_is_fixed_and_stratified():
    first, second = load("seq-digits"), load("seq-digits")
    assert torch.equal(first.test.pixels, second.test.pixels)
    assert torch.bincount(first.test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]


def test_five_tasks_of_two_classes():
    s = load("seq-digits")
    assert s.tasks == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert s.task_of_class.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_normalisation_is_that_of_the_training_images():
    s = load("seq-digits")
    scaled = s.train.pixels.float() / 255
    assert s.views.mean[0] == pytest.approx(float(scaled.mean()), abs=1e-3)
    assert s.views.std[0] == pytest.approx(float(scaled.std()), abs=1e-3)


def test_the_file_is_what_scikit_learn_reads(monkeypatch):
    from sklearn.datasets import load_digits

    images, target = load_digits(return_X_y=True)
    table = digits._table()
    assert (table[:, :-1] == images).all()
    assert (table[:, -1] == target).all()
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert (digits._table() == table).all()


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install scikit-learn"):
        load("seq-digits")
