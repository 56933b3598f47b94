import torch
from conftest import make_scenario

from gcr.scenarios import Stream, load
from gcr.scenarios.corruption import cut_short, mislabelled, unbalanced

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
