"""iCaRL against its paper's algorithms written out, and what holds for its targets, exemplars and means."""

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import drive, fresh, same_memory, same_network
from reference.icarl_and_ocs import PlainIcarl

from gcr.memory import Policy
from gcr.methods import Batch, Icarl
from gcr.methods.icarl import TEACHER, targets
from gcr.models import build
from gcr.select import GradApprox, Herding
from gcr.settings import BadInput
from gcr.training.reselect import reselect


@pytest.mark.parametrize(
    ("model", "changed", "weighted"),
    [
        ("mlp", {}, False),
        ("mlp", {"over_classes": "mean"}, True),
        ("mlp", {"lengths": "own"}, True),
        ("convnet", {}, True),
    ],
)
def test_two_tasks_equal_the_algorithms_of_the_paper(model, changed, weighted):
    scenario = make_scenario(n_per_class=20)
    settings = {"over_classes": "sum", "lengths": "unit"} | changed
    method = Icarl(**settings)
    policy = Policy(buffer=12, selector=Herding(), replay_batch=6)
    state = fresh(scenario, model, method, policy, weight_decay=0.01)
    plain = PlainIcarl(state.net, scenario, decay=0.01, **settings, lr=0.05, capacity=12, replay_size=6)

    def check():
        same_network(state.net, plain.net)
        same_memory(state.memory, plain)

    def end_stage(stage):
        reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
        plain.herd()
        if weighted:  # as a selector that weighs would
            weights = [0.5 + i / 4 for i in range(12)]
            state.memory.columns["weight"][:12] = torch.tensor(weights)
            plain.kept = [(*e[:3], w) for e, w in zip(plain.kept, weights, strict=True)]
        same_memory(state.memory, plain)
        method.end_stage(state.net, state.memory, scenario.views, state.extras, (3, stage))
        plain.end_stage()
        same_predictions(method, state, scenario, plain)

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay)

    drive(state, scenario, method, policy, step, check, end_stage)
    labels = state.memory.columns["label"][:12]
    assert torch.bincount(labels, minlength=6).tolist() == [3, 3, 3, 3, 0, 0]


def same_predictions(method, state, scenario, plain):
    pixels = scenario.test.pixels[::3]
    with torch.no_grad():
        scores = method.predict(state.net, scenario.views.plain(pixels), state.extras)
    for image, found in zip(pixels, scores, strict=True):
        for c in range(6):
            expected = -plain.distance(image, c) if c in plain.means else float("-inf")
            assert float(found[c]) == pytest.approx(expected, abs=1e-4)


def short_run(selector=None, **settings):
    """A run of all three tasks: scenario, method and the state it ended in."""
    scenario, method = make_scenario(), Icarl(**settings)
    policy = Policy(buffer=12, selector=selector or Herding(), replay_batch=8)
    training = Training(epochs=1, lr=0.05, batch=8)
    outcome = train(scenario, "convnet", method, policy, training, 0)
    return scenario, method, outcome.state


@pytest.mark.parametrize("selector", [Herding(), GradApprox()])
def test_means_have_length_one_and_exemplars_are_balanced(selector):
    _, _, state = short_run(selector)
    assert state.extras["has_mean"].all()
    torch.testing.assert_close(state.extras["means"].norm(dim=1), torch.ones(6))
    assert torch.bincount(state.memory.columns["label"][:12], minlength=6).tolist() == [2] * 6


def test_targets_are_the_teachers_for_earlier_classes_and_labels_else():
    scenario, _, state = short_run()
    net = state.net.train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)  # the network has moved on from its teacher
    state.extras["earlier"].copy_(torch.tensor([True, True, False, False, False, False]))
    images, labels = scenario.views.plain(scenario.test.pixels[::5]), scenario.test.labels[::5]
    before = [tensor.clone() for tensor in net.state_dict().values()]
    found = targets(net, images, labels, state.extras)
    assert net.training
    assert all(map(torch.equal, before, net.state_dict().values()))  # the teacher leaves no trace
    teacher = build("convnet", scenario.image_shape, 6, seed=9)
    with torch.no_grad():
        for name, tensor in teacher.state_dict().items():
            tensor.copy_(state.extras[TEACHER + name])
        said = teacher.eval()(images).sigmoid()
    torch.testing.assert_close(found[:, :2], said[:, :2])
    assert torch.equal(found[:, 2:], torch.eye(6)[labels][:, 2:])
    state.extras["earlier"].zero_()  # the first task
    assert torch.equal(targets(net, images, labels, state.extras), torch.eye(6)[labels])


def test_equal_means_do_not_look_at_weights():
    scenario, _, state = short_run(GradApprox())
    found = {}
    for means in ("weighted", "equal"):
        method = Icarl(means=means)
        method.end_stage(state.net, state.memory, scenario.views, state.extras, (0, 0))
        found[means] = state.extras["means"].clone()
    assert not torch.allclose(found["weighted"], found["equal"])
    state.memory.columns["weight"].fill_(1.0)
    Icarl().end_stage(state.net, state.memory, scenario.views, state.extras, (0, 0))
    torch.testing.assert_close(found["equal"], state.extras["means"])


def test_predicting_before_any_exemplar_is_refused():
    net = build("mlp", (1, 6, 6), 6, seed=0)
    with pytest.raises(BadInput, match="exemplars, and there are none yet"):
        Icarl().predict(net, torch.zeros(2, 1, 6, 6), Icarl().extras(net, 3))


def test_residual_is_the_derivative_of_the_loss_by_the_logits():
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 5, 2, 2, 1])
    for over_classes in ("sum", "mean"):
        method = Icarl(over_classes=over_classes)
        value = method._values(logits, torch.eye(6)[labels]).sum()
        (expected,) = torch.autograd.grad(value, logits)
        found = method.residual(logits.detach(), Batch((), labels, torch.empty(0), torch.ones(5)))
        torch.testing.assert_close(found, expected)
