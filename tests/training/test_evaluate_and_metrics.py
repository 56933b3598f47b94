"""Evaluation of a network, and the metrics that are computed from accuracies."""

import math

import pytest
import torch
from conftest import make_scenario

from gcr.methods import Finetune
from gcr.models import build
from gcr.training.evaluate import evaluate
from gcr.training.metrics import (
    anytime_accuracy,
    average_accuracy,
    backward_transfer,
    forgetting,
    forgetting_with_last,
    forward_transfer,
    learning_accuracy,
)


def test_class_il_and_task_il_example_by_example(monkeypatch):
    """In batches of few examples, as on a CPU where images are large."""
    scenario, batches = make_scenario(), []
    monkeypatch.setattr("gcr.training.evaluate.NUMBERS", 7 * math.prod(scenario.image_shape) + 1)
    net = build("mlp", scenario.image_shape, 6, seed=0).eval()
    class_il, task_il = evaluate(net, scenario, Finetune(), {}, lambda: batches.append(1))
    assert len(batches) == math.ceil(len(scenario.test.labels) / 7)
    for task, classes in enumerate(scenario.tasks):
        rows = [i for i, label in enumerate(scenario.test.labels.tolist()) if label in classes]
        class_right = task_right = 0
        for row in rows:
            logits = net(scenario.views.plain(scenario.test.pixels[row : row + 1]))[0].tolist()
            label = int(scenario.test.labels[row])
            class_right += logits.index(max(logits)) == label
            task_right += max(classes, key=logits.__getitem__) == label
        assert class_il[task] == pytest.approx(100 * class_right / len(rows))
        assert task_il[task] == pytest.approx(100 * task_right / len(rows))
    assert sum(task_il) >= sum(class_il)


def test_evaluation_leaves_no_trace():
    scenario = make_scenario()
    net = build("convnet", scenario.image_shape, 6, seed=0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    evaluate(net, scenario, Finetune(), {})
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_class_that_cannot_be_predicted_is_never_right():
    """iCaRL's classes without exemplars: among scores that are all -inf, that of class 0 comes first."""

    class Unseen(Finetune):
        def predict(self, net, images, extras):
            return torch.full((len(images), 6), -torch.inf).index_fill_(1, torch.tensor(possible), 0.0)

    scenario = make_scenario()
    net = build("mlp", scenario.image_shape, 6, seed=0)
    possible = [3]
    class_il, task_il = evaluate(net, scenario, Unseen(), {})
    assert class_il.tolist() == task_il.tolist() == [0, 50, 0]  # tasks of two classes
    possible = [0]
    assert evaluate(net, scenario, Unseen(), {})[0].tolist() == [50, 0, 0]


MATRIX = [[90.0, 10.0, 0.0], [95.0, 80.0, 5.0], [60.0, 85.0, 99.0]]


def test_three_tasks_by_hand():
    first = last = [0, 1, 2]
    assert average_accuracy(MATRIX) == pytest.approx((60 + 85 + 99) / 3)
    # the 10 before task 2 began is out
    assert forgetting(MATRIX, first) == pytest.approx(((95 - 60) + (80 - 85)) / 2)
    assert forgetting_with_last(MATRIX, first) == pytest.approx((95 - 60) / 2)  # the second is best at the end
    assert backward_transfer(MATRIX, last) == pytest.approx(((60 - 90) + (85 - 80)) / 2)
    assert forward_transfer(MATRIX, first, [50.0, 20.0, 4.0]) == pytest.approx(((10 - 20) + (5 - 4)) / 2)
    assert learning_accuracy(MATRIX, last) == pytest.approx((90 + 80 + 99) / 3)
    assert anytime_accuracy(MATRIX, first) == pytest.approx((90 + (95 + 80) / 2 + (60 + 85 + 99) / 3) / 3)


def test_streams_across_tasks():
    """Task 0 ends in stream 1, in which task 1 begins."""
    matrix = [[50.0, 0.0], [70.0, 40.0], [60.0, 90.0]]
    first, last = [0, 1], [1, 2]
    assert forgetting(matrix, first) == pytest.approx(70 - 60)
    assert backward_transfer(matrix, last) == pytest.approx(60 - 70)
    assert learning_accuracy(matrix, last) == pytest.approx((70 + 90) / 2)
    assert forward_transfer(matrix, first, [10.0, 10.0]) == pytest.approx(0 - 10)


def test_forgetting_begins_with_the_task():
    """What a network guesses of a task before it begins, here 90 %, is not forgotten."""
    matrix = [[95.0, 90.0, 1.0], [80.0, 70.0, 2.0], [75.0, 60.0, 99.0]]
    assert forgetting_with_last(matrix, [0, 1, 2]) == forgetting(matrix, [0, 1, 2]) == pytest.approx((20 + 10) / 2)
    assert forgetting_with_last(matrix, [0, 0, 2]) == pytest.approx((20 + 30) / 2)


def test_one_stage_has_no_transfer():
    for metric in (
        forgetting([[90.0, 80.0]], [0, 0]),
        forgetting_with_last([[90.0, 80.0]], [0, 0]),
        backward_transfer([[90.0, 80.0]], [0, 0]),
        forward_transfer([[90.0, 80.0]], [0, 0], [1.0, 1.0]),
    ):
        assert metric is None


def test_no_forward_transfer_where_unseen_classes_are_never_predicted():
    assert forward_transfer(MATRIX, [0, 1, 2], None) is None
