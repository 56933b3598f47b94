import pytest
import torch
from conftest import make_scenario

from gcr.methods import Finetune
from gcr.models import build
from gcr.training.evaluate import evaluate


def test_class_il_and_task_il_example_by_example():
    scenario = make_scenario()
    net = build("mlp", scenario.image_shape, 6, seed=0).eval()
    class_il, task_il = evaluate(net, scenario, Finetune(), {}, batch=7)
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
