"""Replay for the loops of others, Avalanche's too: the terms are those of the method's own loss, memory is that of
training."""

import copy
import dataclasses
import pickle
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gcr.experiments.variants import GCR
from gcr.integrations.rehearsal import Rehearsal, coreset_policy
from gcr.memory import BalancedReservoir, GssGreedy, Policy
from gcr.methods import AGem, Batch, Der, DerPlusPlus, Er, ErAce, Finetune, Gcr, Gdumb, Mir
from gcr.models import attach
from gcr.select import ClassBalanced, GradApprox
from gcr.settings import BadInput


def make_net(classes=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, classes))


def make_batch(step, classes=(0, 1, 2, 3), size=8):
    draw = torch.Generator().manual_seed(step)
    y = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=draw)]
    return torch.randn(size, 6, generator=draw) + y[:, None], y


def steps(rehearsal, net, numbers, classes=(0, 1, 2, 3)):
    """A loop of somebody else's."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in numbers:
        x, y = make_batch(number, classes)
        logits = net(x)
        loss = F.cross_entropy(logits, y) + rehearsal.terms(net, x, y, logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rehearsal.remember(net, x, y, logits)


METHODS = [Er(forward="separate"), Der(), DerPlusPlus(), Gcr(gamma=0.0), Gcr(gamma=0.2)]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_loss_and_gradients_are_those_of_the_method(method):
    seen = []

    class Watched(type(method)):
        def loss(self, net, new, replay, extras):
            seen.append(replay)
            return super().loss(net, new, replay, extras)

    watched = Watched(**{field.name: getattr(method, field.name) for field in dataclasses.fields(method)})
    net, rehearsal = make_net(), Rehearsal(12, watched)
    steps(rehearsal, net, range(3))
    x, y = make_batch(9)
    logits = net(x)
    ours = F.cross_entropy(logits, y) + rehearsal.terms(net, x, y, logits)
    new = Batch((x,), y, torch.empty(0), torch.ones(len(y)))
    whole = method.loss(attach(net, x, 4), new, seen[-1], {}).value
    torch.testing.assert_close(ours, whole)
    weights = list(net.parameters())
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(whole, weights), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_is_replayed_before_something_is_remembered():
    net, rehearsal, (x, y) = make_net(), Rehearsal(12), make_batch(0)
    logits = net(x)
    assert rehearsal.terms(net, x, y, logits).item() == 0
    rehearsal.remember(net, x, y, logits)
    assert rehearsal.terms(net, x, y, logits).item() > 0


def test_a_number_of_examples_is_gcrs_own_policy():
    assert coreset_policy(500) == GCR(500).memory


def test_replay_minibatches_are_as_large_as_the_first_batch():
    net, rehearsal = make_net(), Rehearsal(12)
    steps(rehearsal, net, range(1))
    assert rehearsal.policy.replay_batch == 8


@pytest.mark.parametrize(
    "policy",
    [
        Policy(buffer=12),
        Policy(buffer=12, selector=BalancedReservoir()),
        Policy(buffer=12, selector=GssGreedy()),
        Policy(buffer=12, selector=GradApprox(), sampling="split", admit="correct", pool_mode="class"),
        Policy(buffer=12, selector=ClassBalanced(), every=20),
    ],
    ids=lambda policy: policy.selector.name,
)
def test_every_policy_fills_and_modes_stay(policy):
    net, rehearsal = make_net(), Rehearsal(policy, DerPlusPlus())
    net[2].eval()  # the owner froze it
    steps(rehearsal, net, range(6))
    about = rehearsal.end_task(net)
    assert net.training
    assert not net[2].training
    assert int(rehearsal.memory.kept) == 12
    assert (about is not None) == (policy.selects and not policy.every)
    assert int(rehearsal.memory.updates) == (1 if about else 2 if policy.every else 0)


def test_tasks_end_once():
    net, rehearsal = make_net(), Rehearsal(12)
    steps(rehearsal, net, range(3))
    assert rehearsal.end_task(net)["kept"] == 12
    assert rehearsal.end_task(net) is None  # nothing came since
    assert int(rehearsal.memory.updates) == 1


def test_it_goes_on_exactly_from_its_state():
    net, rehearsal = make_net(), Rehearsal(12, seed=3)
    steps(rehearsal, net, range(4))
    rehearsal.end_task(net)
    other, state = copy.deepcopy(net), copy.deepcopy(rehearsal.state_dict())
    resumed = Rehearsal(12, seed=3)
    resumed.load_state_dict(state)
    for one, its_net in ((rehearsal, net), (resumed, other)):
        steps(one, its_net, range(4, 8))
        one.end_task(its_net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    first, second = rehearsal.state_dict(), resumed.state_dict()
    assert all(torch.equal(first["memory"][name], second["memory"][name]) for name in first["memory"])
    assert {**first, "memory": 0} == {**second, "memory": 0}


def test_it_is_pickled_without_the_network():
    net, rehearsal = make_net(), Rehearsal(12)
    steps(rehearsal, net, range(2))
    again = pickle.loads(pickle.dumps(rehearsal))
    assert again.network is None
    assert torch.equal(again.memory.images, rehearsal.memory.images)


def test_a_head_that_grows():
    """Stored logits are compared on the classes that they knew."""
    net, rehearsal = make_net(2), Rehearsal(12)
    steps(rehearsal, net, range(3), classes=(0, 1))
    rehearsal.end_task(net)
    net[3] = nn.Linear(16, 4)
    steps(rehearsal, net, range(3, 6), classes=(2, 3))
    assert rehearsal.memory.columns["logits"].shape[1] == 4
    assert all(bool(weight.isfinite().all()) for weight in net.parameters())
    net[3] = nn.Linear(16, 3)
    x, y = make_batch(9, classes=(0, 1))
    with pytest.raises(BadInput, match="at least 4 logits, as before, got 3"):
        rehearsal.terms(net, x, y, net(x))


class Sum(nn.Module):
    """Of two inputs, by position or by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, a, b):
        return self.head((self.body(a) + b[:, None]).relu())


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_networks_with_several_inputs(kind):
    net, rehearsal = Sum(), Rehearsal(12, DerPlusPlus())
    for step in range(3):
        a, y = make_batch(step)
        x = (a, y.float()) if kind == "tuple" else {"b": y.float(), "a": a}
        logits = net(*x) if kind == "tuple" else net(**x)
        terms = rehearsal.terms(net, x, y, logits)
        rehearsal.remember(net, x, y, logits)
    assert terms.item() > 0
    assert rehearsal.end_task(net)["kept"] == 12
    stored = rehearsal.layout.inputs(rehearsal.memory.images)
    named = dict(zip("ab", stored, strict=True)) if kind == "tuple" else stored
    assert torch.equal(named["b"], rehearsal.memory.labels.float())


def test_inputs_keep_their_shape():
    net, rehearsal = make_net(), Rehearsal(12)
    steps(rehearsal, net, range(1))
    with pytest.raises(BadInput, match=r"inputs must be x: float32 \[6\] for each example, as at first, got .*\[3\]"):
        rehearsal.terms(net, torch.rand(8, 3), torch.zeros(8, dtype=torch.int64), torch.rand(8, 4))


def test_views_are_the_users():
    net, calls = make_net(), []
    rehearsal = Rehearsal(12, DerPlusPlus(), augment=lambda batch: calls.append(len(batch)) or batch)
    steps(rehearsal, net, range(2))
    assert calls == [16]  # two replay minibatches at once, from the second step on


@pytest.mark.parametrize("method", [Er(), ErAce(), Mir(), AGem(), Gdumb(), Finetune()], ids=lambda method: method.name)
def test_methods_that_do_more_are_refused(method):
    with pytest.raises(BadInput, match=rf"method must add replay terms .*DerPlusPlus.*got {method.name}"):
        Rehearsal(12, method)


def test_bad_arguments():
    with pytest.raises(BadInput, match="memory must be a whole number >= 1, got 0"):
        Rehearsal(0)
    with pytest.raises(BadInput, match=r"method must be an object of gcr.methods.*got 'der'"):
        Rehearsal(12, "der")
    with pytest.raises(BadInput, match="statistics must be training in the loop of another framework, got memory"):
        Rehearsal(Policy(buffer=12, statistics="memory"))
    with pytest.raises(BadInput, match="state lacks steps, tasks, arrived"):
        Rehearsal(12).load_state_dict({})


# --- Our plugin in a loop that calls it as Avalanche does; `make avalanche` is the proof with the real one


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
