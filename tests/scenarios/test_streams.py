"""Streams: tasks, class order, the validation split, damage to training images; on the digits and on a small data set
of one's own in a cache."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_scenario

from gcr import scenarios
from gcr.data import open_cached, stratified
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.experiments.describe import differences, setting_lines
from gcr.experiments.experiment import Experiment, compose
from gcr.scenarios import Images, Stream, datasets, equal_tasks, load
from gcr.scenarios.corruption import cut_short, mislabelled, unbalanced
from gcr.scenarios.registry import SCENARIOS
from gcr.settings import BadInput


@pytest.fixture
def birds(cache):
    """Seven classes of 20 training and 4 test images; a pixel identifies the image."""

    def part(n, first):
        labels = np.random.default_rng(n).permutation(np.repeat(np.arange(7), n)).astype(np.int64)
        images = np.random.default_rng(n).integers(0, 256, (len(labels), 3, 8, 8), dtype=np.uint8)
        images[:, 0, 0, 0] = np.arange(first, first + len(labels))
        return Part.of(images, labels)

    names = tuple("abcdefg")
    write_set("birds", "made", Source(part(20, 0), part(4, 200), (3, 8, 8), names))
    return "birds"


def test_own_data_is_a_scenario_with_defaults(birds):
    about = scenarios.entry(birds)
    assert (about.n_classes, about.n_tasks, about.buffer, about.model) == (7, 5, 500, "resnet18")
    assert birds in [known.name for known in scenarios.entries()]
    s = load(birds)
    assert s.tasks == ((0, 1), (2, 3), (4,), (5,), (6,))
    assert s.class_names == tuple("abcdefg")
    assert (s.views.pad, s.views.flip) == (0, False)  # pictures of 8 pixels
    scaled = s.train.pixels.double() / 255
    assert s.views.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), abs=1e-5)


@pytest.mark.parametrize(("n_classes", "n_tasks"), [(10, 5), (100, 20), (7, 3), (7, 7), (7, 1), (200, 10)])
@pytest.mark.parametrize("class_order", [0, 1, 2])
def test_tasks_share_the_classes_evenly(n_classes, n_tasks, class_order):
    tasks = equal_tasks(n_classes, n_tasks, class_order)
    sizes = [len(classes) for classes in tasks]
    assert sorted(sum(tasks, ())) == list(range(n_classes))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_class_order_is_a_seed():
    assert equal_tasks(10, 5, 3) == equal_tasks(10, 5, 3)
    assert len({equal_tasks(10, 5, order) for order in range(5)}) == 5


def test_stratified_is_even_disjoint_and_fixed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [50, 7, 2, 30]))
    out = stratified(labels, 0.1)
    assert np.bincount(labels[out]).tolist() == [5, 1, 1, 3]
    assert np.array_equal(out, stratified(labels, 0.1))
    assert not np.array_equal(out, stratified(labels, 0.1, seed=1))


def test_validation_replaces_the_test_set(birds):
    plain, tuning = load(birds), load(birds, Stream(validation=0.1))
    assert torch.bincount(tuning.train.labels).tolist() == [18] * 7
    assert torch.bincount(tuning.test.labels).tolist() == [2] * 7
    name = {part: set(s.pixels[:, 0, 0, 0].tolist()) for part, s in (("train", tuning.train), ("test", tuning.test))}
    assert not name["train"] & name["test"]
    assert name["train"] | name["test"] == set(plain.train.pixels[:, 0, 0, 0].tolist())
    again = load(birds, Stream(validation=0.1, class_order=4, tasks=2))
    assert torch.equal(again.test.pixels, tuning.test.pixels)  # one split, whatever the tasks


def test_a_set_that_does_not_fit_stays_on_disk(birds, monkeypatch):
    resident = load(birds, Stream(validation=0.1))
    monkeypatch.setattr(datasets, "RESIDENT_BYTES", 100)
    s = load(birds, Stream(validation=0.1))
    assert not s.train.resident
    assert len(s.train.pixels) == 140  # all of the file, for both parts
    for ours, theirs in ((s.train, resident.train), (s.test, resident.test)):
        rows = torch.arange(len(ours.labels))
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.pixels_of(rows), theirs.pixels_of(rows))


def test_only_labels_move_where_pixels_do_not_fit():
    images = Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), resident=False)
    moved = images.to("meta")
    assert (moved.pixels.device.type, moved.labels.device.type, moved.resident) == ("cpu", "meta", False)
    assert Images(images.pixels, images.labels).to("meta").pixels.device.type == "meta"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": -1}, "tasks must be >= 0"),
        ({"tasks": 8}, "tasks must be <= 7, the number of classes of birds, got 8"),
        ({"class_order": 1.5}, "class_order must be a whole number"),
        ({"validation": 0.6}, "validation must be <= 0.5"),
        ({"validation": "much"}, "validation must be a finite number"),
    ],
)
def test_bad_streams_are_refused(birds, values, message):
    with pytest.raises(BadInput, match=message):
        compose(birds, "gcr", overrides=values)


def test_experiments_keep_their_stream(birds):
    changed = compose(birds, "gcr", overrides={"tasks": "3", "class_order": "1", "validation": "0.1"})
    assert changed.stream == Stream(tasks=3, class_order=1, validation=0.1)
    assert Experiment.from_json(changed.to_json()) == changed
    assert "stream.tasks is 0 there, 3 here" in differences(compose(birds, "gcr"), changed)
    assert {"stream.tasks", "stream.class_order", "stream.validation"} <= {
        name for name, _, _ in setting_lines(birds, "gcr")
    }
    before = compose(birds, "gcr").to_dict()
    del before["stream"]  # as runs wrote it before there were streams
    assert Experiment.from_dict(before) == compose(birds, "gcr")


def test_missing_data_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("GCR_DATA", str(tmp_path))
    assert compose("seq-cifar10", "gcr").memory.buffer == 500  # experiments can be written without the data
    with pytest.raises(BadInput, match="get it with: gcr data get cifar10, or gcr data import cifar10 PATH"):
        scenarios.entry("seq-cifar10").check_present()
    with pytest.raises(BadInput, match=r"unknown scenario \"birds\".*gcr data import NAME PATH"):
        scenarios.entry("birds")


@pytest.mark.parametrize(
    ("name", "classes", "tasks", "epochs"),
    [
        ("seq-cifar10", 10, 5, 50),
        ("seq-cifar100", 100, 5, 50),
        ("seq-cifar100-20", 100, 20, 50),
        ("seq-tinyimagenet", 200, 10, 100),
        ("seq-imagenet1k", 1000, 5, 50),
        ("seq-mnist", 10, 5, 5),
        ("seq-fashion-mnist", 10, 5, 5),
    ],
)
def test_the_official_scenarios(name, classes, tasks, epochs, tmp_path, monkeypatch):
    monkeypatch.setenv("GCR_DATA", str(tmp_path))
    about = scenarios.entry(name)
    assert (about.n_classes, about.n_tasks, about.epochs) == (classes, tasks, epochs)
    assert len(about.class_names) == classes
    assert about.buffer >= classes


def test_fingerprints(birds, cache):
    print_ = scenarios.entry(birds).fingerprint
    assert print_ == open_cached(birds).about.fingerprint
    assert len(print_) == 16
    assert scenarios.entry("seq-digits").fingerprint == ""
    with pytest.raises(BadInput, match="the data set cifar10 is not in"):
        _ = scenarios.entry("seq-cifar10").fingerprint


@pytest.mark.parametrize(("file", "content"), [("about.json", "{"), ("train-labels.npy", "")])
def test_a_damaged_set_of_ones_own_disturbs_no_other(birds, cache, file, content, caplog):
    (cache / birds / file).write_text(content)
    assert [known.name for known in scenarios.entries()] == [known.name for known in SCENARIOS]
    assert "birds is left out: " in caplog.text
    assert f"{file} is damaged" in caplog.text
    assert scenarios.entry("seq-digits").n_classes == 10
    with pytest.raises(BadInput, match=f"{file} is damaged .* gcr data import birds PATH"):
        scenarios.entry(birds)
    with pytest.raises(BadInput, match="unknown scenario"):
        scenarios.entry("fish")


@pytest.mark.parametrize("file", ["train-images.npy", "test-images.npy", "train-labels.npy", "test-labels.npy"])
def test_damage_is_told_before_anything_is_trained(birds, cache, file):
    about = scenarios.entry(birds)
    about.check_present()
    os.truncate(cache / birds / file, 130)
    with pytest.raises(BadInput, match=rf"{file} is damaged \(130 bytes instead of"):
        about.check_present()


# --- The digits


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
    table = datasets._digits()
    assert (table[:, :-1] == images).all()
    assert (table[:, -1] == target).all()
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert (datasets._digits() == table).all()


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install scikit-learn"):
        load("seq-digits")


# --- Damage to training images: few of a class, a short last task, wrong labels

TASKS = ((0, 1), (2, 3), (4, 5))


def counts(images):
    return torch.bincount(images.labels, minlength=6).tolist()


def test_sizes_fall_in_a_geometric_row_in_the_order_of_classes():
    train = make_scenario(n_per_class=32).train
    assert counts(unbalanced(train, TASKS, 1 / 32)) == [32, 16, 8, 4, 2, 1]
    assert counts(unbalanced(train, TASKS[::-1], 1 / 32)) == [2, 1, 8, 4, 32, 16]


def test_only_the_last_task_is_cut():
    assert counts(cut_short(make_scenario(n_per_class=20).train, TASKS, 0.25)) == [20, 20, 20, 20, 5, 5]


def test_wrong_labels_stay_in_their_task():
    train = make_scenario(n_per_class=20).train
    noisy = mislabelled(train, TASKS, 0.2)
    wrong = noisy.labels != train.labels
    assert torch.bincount(train.labels[wrong]).tolist() == [4] * 6
    assert torch.equal(noisy.labels // 2, train.labels // 2)
    assert torch.equal(noisy.pixels, train.pixels)


def test_the_same_damage_every_time_and_only_to_training_images():
    stream = Stream(label_noise=0.2, last_task=0.5, imbalance=0.5)
    first, second, whole = load("seq-digits", stream), load("seq-digits", stream), load("seq-digits")
    assert torch.equal(first.train.labels, second.train.labels)
    assert torch.equal(first.train.pixels, second.train.pixels)
    assert len(first.train.labels) < len(whole.train.labels)
    assert torch.equal(first.test.labels, whole.test.labels)
