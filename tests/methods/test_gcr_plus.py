"""GCR+ against its plain version, its two copies of the network alone, and its softmax."""

import pytest
import torch
from conftest import make_scenario
from named import Training, new_run, train
from reference.driving import drive, fresh, same_network, same_rows
from reference.gcr_algorithm import ReferenceGcrPlus
from torch import nn
from torch.nn import functional as F

from gcr.experiments.experiment import compose
from gcr.memory import BalancedReservoir, Policy
from gcr.methods import Batch, GcrPlus, gcr_plus
from gcr.methods.ema import copy_in
from gcr.methods.losses import supervised_contrast
from gcr.models import attach, build
from gcr.models.network import Output
from gcr.select import GradApprox, ReducibleLoss, Typicality
from gcr.training import Checkpoints, How, Stopped

WEIGHTS = {"alpha": 0.05, "beta": 0.7, "gamma": 0.2, "keep": 0.07}
PARTS = [
    ("mlp", {"decay": 0.8}),
    ("convnet", {"decay": 0.7, "window": 0.5}),
    ("mlp", {"decay": 0.8, "softmax": "all", "window": 1.0}),
    ("convnet", {"decay": 0.0}),
]
FEW = 5  # steps: a task of the test has ten


@pytest.mark.parametrize(("model", "parts"), PARTS, ids=lambda value: value if isinstance(value, str) else str(value))
def test_twenty_steps_equal_the_plain_version(model, parts, monkeypatch):
    monkeypatch.setattr(gcr_plus, "FEW_STEPS", FEW)
    scenario, method = make_scenario(n_per_class=20), GcrPlus(**WEIGHTS, **parts)
    policy = Policy(buffer=12, selector=BalancedReservoir(), replay_batch=6)
    state = fresh(scenario, model, method, policy)
    plain = ReferenceGcrPlus(state.net, scenario, method, FEW, lr=0.05, capacity=12, replay_size=12)
    steps = []

    def check():
        steps.append(None)
        same_network(state.net, plain.net)
        assert int(state.memory.kept) == len(plain.kept)
        same_rows(state.memory, plain.kept)
        held = copy_in("ema.", state.extras) or state.net.state_dict()
        for name, tensor in plain.ema.items():
            torch.testing.assert_close(held[name], tensor, atol=1e-5, rtol=1e-5)

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay)

    drive(state, scenario, method, policy, step, check)
    assert len(steps) == 20
    assert plain.restarts == 2  # tasks begin with both of their classes
    assert state.extras["known"].tolist() == [True] * 2 + [False] * 4
    for name, tensor in plain.old.items():
        torch.testing.assert_close(state.extras[f"old.{name}"], tensor, atol=1e-5, rtol=1e-5)
    assert state.extras["seen"].tolist() == [True] * 4 + [False] * 2
    images = scenario.views.plain(scenario.test.pixels)
    predicted = method.predict(state.net.eval(), images, state.extras)
    torch.testing.assert_close(predicted, plain.averaged_net()(images), atol=1e-4, rtol=1e-4)


def averaged(method, values):
    """The EMA of the head's bias after steps that leave ``values`` there."""
    net = build("mlp", (1, 2, 2), 2, seed=0)
    extras = method.extras(net, 1)
    for value in values:
        net.head.bias.data.fill_(value)
        method.after_step(net, extras)
    return extras["ema.head.bias"][0].item()


def test_the_average_begins_as_a_mean_of_the_last_steps():
    whole = {"window": 1.0}
    assert averaged(GcrPlus(decay=1.0, **whole), [1.0, 5.0, -3.0, 9.0]) == pytest.approx(3.0)
    assert averaged(GcrPlus(decay=0.5, **whole), [1.0, 5.0, 2.0]) == pytest.approx(2.5)  # mean 3 of two, half of each
    assert averaged(GcrPlus(decay=1.0, window=0.5), [7.0, 1.0, 4.0]) == pytest.approx(3.0)  # 1/3 of 1, 2/3 of 4
    assert averaged(GcrPlus(), [7.0, 8.0]) == 8.0  # of so few steps the last alone


def test_the_average_begins_anew_with_a_new_class():
    method, net, counted = GcrPlus(), build("mlp", (1, 2, 2), 4, seed=0), []
    extras = method.extras(net, 1)
    for labels in ([0, 1], [1, 1], [0, 2], [2, 0]):
        method.loss(net, new_batch(labels), (), extras)
        method.after_step(net, extras)
        counted.append(int(extras["steps"]))
    assert counted == [1, 2, 1, 2]


def test_the_old_network_is_the_average_before_the_newest_classes():
    """Classes of one task that come over a few steps do not replace it."""
    method, net, old = GcrPlus(), build("mlp", (1, 2, 2), 4, seed=0), []
    extras = method.extras(net, 1)
    labels = [[0]] * 30 + [[1], [1], [2]] + [[1]] * 30 + [[3]]
    for step, new in enumerate(labels):
        net.head.bias.data.fill_(step)
        method.loss(net, new_batch(new), (), extras)
        old.append((extras["known"].sum().item(), extras["old.head.bias"][0].item()))
        method.after_step(net, extras)
    assert [known for known, _ in old] == [0] * 30 + [1] * 33 + [3]
    first, second = old[30][1], old[63][1]
    assert 20 < first < 29
    assert all(value == first for _, value in old[30:63])
    assert 50 < second < 62


def test_the_old_network_is_left_out_with_its_weight():
    net = build("mlp", (1, 2, 2), 4, seed=0)
    assert not any(name.startswith("old.") for name in GcrPlus(keep=0.0).extras(net, 1))


def new_batch(labels):
    return Batch((torch.zeros(len(labels), 1, 2, 2),), torch.tensor(labels), torch.empty(0), torch.ones(len(labels)))


def test_without_decay_there_is_no_average_and_the_network_predicts():
    policy, training = Policy(buffer=12, selector=BalancedReservoir(), replay_batch=8), Training(epochs=1, batch=8)
    scenario, method = make_scenario(), GcrPlus(decay=0.0)
    state = train(scenario, "convnet", method, policy, training, 0).state
    assert state.extras.keys() == {"seen", "known", "steps", *(f"old.{name}" for name in state.net.state_dict())}
    images, net = scenario.views.plain(scenario.test.pixels), state.net.eval()
    assert torch.equal(method.predict(net, images, state.extras), net(images))


def test_batch_statistics_are_averaged_and_the_old_network_leaves_them_alone():
    method = GcrPlus(decay=1.0, window=1.0)
    net = build("convnet", (1, 8, 8), 3, seed=0).train()
    extras = method.extras(net, 1)
    generator = torch.Generator().manual_seed(0)

    def batch(n_views):
        views = tuple(torch.randn(4, 1, 8, 8, generator=generator) for _ in range(n_views))
        return Batch(views, torch.tensor([0, 1, 2, 0]), torch.zeros(4, 3), torch.ones(4))

    running, seen = [name for name in net.state_dict() if "running" in name], []
    for _ in range(3):
        before = {name: extras[name].clone() for name in extras if "running" in name}
        method.loss(net, batch(1), (batch(2),), extras)
        assert net.training
        assert all(torch.equal(tensor, extras[name]) for name, tensor in before.items())
        method.after_step(net, extras)
        seen.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
    for name in running:
        torch.testing.assert_close(extras[f"ema.{name}"], sum(state[name] for state in seen) / 3)


def test_only_what_training_changes_is_averaged():
    """Frozen weights, counters and masks are the network's own."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
            self.first.weight.requires_grad_(False)
            self.register_buffer("mask", torch.tensor(-torch.inf))

        def forward(self, x):
            return self.last(self.norm(self.first(x.flatten(1))))

    net = attach(Own(), torch.zeros(2, 1, 2, 2), 2)
    method = GcrPlus()
    extras = method.extras(net, 1)
    names = {name.removeprefix("ema.net.") for name in method.predictor_state(extras)}
    layers = {"first.bias", "last.weight", "last.bias"}
    assert names == layers | {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    method.after_step(net, extras)
    assert method.predict(net.eval(), torch.ones(3, 1, 2, 2), extras).isfinite().all()


def test_new_examples_leave_the_classes_of_earlier_tasks_alone():
    net = build("mlp", (1, 4, 4), 6, seed=0)
    new = Batch((torch.randn(3, 1, 4, 4),), torch.tensor([2, 3, 3]), torch.empty(0), torch.ones(3))
    for softmax, untouched in (("own", True), ("all", False)):
        method = GcrPlus(softmax=softmax)
        extras = method.extras(net, 3)
        extras["seen"][:2] = True
        (gradient,) = torch.autograd.grad(method.loss(net, new, (), extras).value, net.head.bias)
        assert gradient[:2].eq(0).all() == untouched
        assert (gradient[4:] > 0).all()  # not seen yet: pushed down


def test_weights_of_replayed_examples_and_the_temperature_count():
    method, generator = GcrPlus(alpha=0.3, beta=0.7, gamma=0.2, temperature=0.5), torch.Generator().manual_seed(0)
    weak, mild = (Output(*torch.randn(2, 3, 4, generator=generator)) for _ in range(2))
    labels, weights, stored = torch.tensor([0, 2, 0]), torch.tensor([1.0, 3.0, 0.5]), torch.zeros(3, 4)
    by_label = (F.cross_entropy(weak.logits, labels, reduction="none")
                + F.cross_entropy(mild.logits, labels, reduction="none")) / 2  # fmt: skip
    contrast = supervised_contrast(weak.features, mild.features, labels, 0.5)
    values = 0.3 * weak.logits.square().sum(1) + 0.7 * by_label + 0.2 * contrast
    found = method._on_replay(Batch((), labels, stored, weights), weak, mild)
    torch.testing.assert_close(found, (values * weights).sum() / weights.sum())


def test_values_are_those_of_the_registration():
    of_loss = {"alpha": 0.003, "beta": 1.0, "gamma": 0.1, "keep": 0.02, "decay": 0.999, "window": 0.2}
    assert all(getattr(GcrPlus(), name) == value for name, value in of_loss.items())
    assert GcrPlus().replay_size(32) == 64


def test_defaults_by_name():
    offline, online = (compose("seq-cifar10", "gcr+", overrides={"online": online}) for online in (False, True))
    assert (offline.run_name, online.run_name) == ("seq-cifar10-gcr-plus-k500", "seq-cifar10-online-gcr-plus-k500")
    assert compose("seq-digits", "gcr+", selector="herding").run_name == "seq-digits-gcr-plus-herding-k100"
    assert offline.memory.pool_size == 0  # K examples in all
    assert offline.method == online.method == GcrPlus()  # one set of values
    assert offline.optimizer.lr == online.optimizer.lr == 0.03


OTHER_MEMORIES = [
    {"selector": BalancedReservoir(evict="loss")},
    {"selector": BalancedReservoir(evict="herding"), "pool_network": "predictor"},
    {"selector": GradApprox(power=0.3, shrink=0.5), "pool_network": "predictor", "candidates": 4},
    {"selector": Typicality(), "pool_view": "weak", "pool_views": 3},
    {"selector": ReducibleLoss(), "pool_network": "predictor"},
]


@pytest.mark.parametrize("memory", OTHER_MEMORIES, ids=lambda memory: str(memory["selector"]))
def test_a_run_with_another_memory_resumes_to_the_bit(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(gcr_plus, "FEW_STEPS", 2)  # so that there is an old network
    policy, training = Policy(buffer=12, replay_batch=8, **memory), Training(epochs=2, lr=0.05, batch=8)

    def part(stop, saved):
        return new_run(
            make_scenario(), "convnet", GcrPlus(decay=0.9), policy, training, 0, How(), checkpoints=saved, stop=stop
        )

    whole = part(lambda: False, None)
    list(whole.advance())
    assert whole.state.extras["known"].any()
    first = part(lambda: first.state.steps == 11, Checkpoints(tmp_path, {}))
    with pytest.raises(Stopped):
        list(first.advance())
    second = part(lambda: False, Checkpoints(tmp_path, {}))
    assert second.state.steps == 11
    list(second.advance())
    assert second.outcome().class_il == whole.outcome().class_il
    for (name, ours), (_, theirs) in zip(second.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name
