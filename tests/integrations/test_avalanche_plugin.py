"""Our plugin in a loop that calls it as Avalanche does; ``make avalanche`` is the proof with the real one."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gcr.settings import BadInput


@pytest.fixture
def plugin_class(monkeypatch):
    """The module, with the two names that it imports of Avalanche."""
    for name in ("avalanche", "avalanche.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    core, models = types.ModuleType("avalanche.core"), types.ModuleType("avalanche.models.utils")
    core.SupervisedPlugin = object
    models.is_multi_task_module = lambda model: hasattr(model, "known_train_tasks_labels")
    monkeypatch.setitem(sys.modules, "avalanche.core", core)
    monkeypatch.setitem(sys.modules, "avalanche.models.utils", models)
    monkeypatch.delitem(sys.modules, "gcr.integrations.avalanche", raising=False)
    from gcr.integrations.avalanche import CoresetReplayPlugin

    yield CoresetReplayPlugin
    sys.modules.pop("gcr.integrations.avalanche", None)


def train(net, tasks, plugin):
    """The order of calls in avalanche.training.templates.update_type.SGDUpdate."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    strategy = SimpleNamespace(model=net, clock=SimpleNamespace(train_exp_counter=0))
    for x, y in tasks:
        plugin and plugin.before_training_exp(strategy)
        for _ in range(20):
            for rows in torch.randperm(len(y)).split(16):
                strategy.mb_x, strategy.mb_y = x[rows], y[rows]
                optimizer.zero_grad()
                strategy.mb_output = net(strategy.mb_x)
                strategy.loss = torch.zeros(()) + F.cross_entropy(strategy.mb_output, strategy.mb_y)
                plugin and plugin.before_backward(strategy)
                strategy.loss.backward()
                optimizer.step()
                plugin and plugin.after_update(strategy)
        plugin and plugin.after_training_exp(strategy)
        strategy.clock.train_exp_counter += 1


def test_it_remembers_the_first_experience(plugin_class):
    y = torch.arange(160) % 4
    x = 2 + 2 * torch.eye(4)[y] + 0.3 * torch.randn(160, 4, generator=torch.Generator().manual_seed(0))
    tasks = [(x[y // 2 == task], y[y // 2 == task]) for task in range(2)]
    accuracies = {}
    for plugin in (None, plugin_class(memory=16)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
        train(net, tasks, plugin)
        accuracies[plugin is not None] = float((net(tasks[0][0]).argmax(1) == tasks[0][1]).float().mean())
    assert accuracies[False] < 0.2
    assert accuracies[True] > 0.8
    assert int(plugin.memory.kept) == 16
    assert sorted(plugin.memory.labels.unique().tolist()) == [0, 1, 2, 3]
    assert [selection["experience"] for selection in plugin.selections] == [0, 1]


def test_a_model_with_a_head_for_each_task_is_refused(plugin_class):
    net = nn.Linear(4, 2)
    net.known_train_tasks_labels = set()
    with pytest.raises(BadInput, match="one head for all tasks"):
        plugin_class(memory=16).before_training_exp(SimpleNamespace(model=net))
