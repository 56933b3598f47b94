"""MIR against its plain form; it retrieves the true maximum and leaves no trace of the virtual step."""

import copy

import pytest
import torch
from conftest import make_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from named import Training, train
from reference.driving import follow, fresh
from reference.gradient_methods import PlainMir
from torch.nn import functional as F

from gcr.memory import Policy
from gcr.methods import Batch, Mir
from gcr.models import build


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("criterion", ["loss", "logits"])
def test_two_tasks_equal_plain_mir(model, criterion):
    scenario, policy = make_scenario(n_per_class=20), Policy(buffer=12, replay_batch=4)
    method = Mir(search=4, criterion=criterion, virtual_lr=0.1)
    state = fresh(scenario, model, method, policy)
    plain = PlainMir(state.net, scenario, lr=0.05, capacity=12, virtual_lr=0.1, retrieved=4, criterion=criterion)
    follow(state, plain, scenario, method, policy, n_stages=2)


def some(n, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 6, (n,), generator=generator)
    return Batch((images,), labels, torch.zeros(n, 6), torch.ones(n))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["loss", "logits"]), st.integers(1, 6))
def test_it_retrieves_the_true_top(seed, criterion, retrieved):
    """Each candidate goes alone through a network that has taken the step; the loss shows which were retrieved."""
    net, new, drawn = build("mlp", (1, 6, 6), 6, seed), some(8, seed + 1), some(3 * retrieved, seed + 2)
    moved = copy.deepcopy(net)
    F.cross_entropy(moved(new.images), new.labels).backward()
    with torch.no_grad():
        for p in moved.parameters():
            p -= 0.5 * p.grad
    scores, losses = [], []
    for image, label in zip(drawn.images, drawn.labels, strict=True):
        before, after = (at(image[None])[0].detach() for at in (net, moved))
        losses.append(float(F.cross_entropy(before, label)))
        rise = float(F.cross_entropy(after, label)) - losses[-1]
        scores.append(rise if criterion == "loss" else float((after - before).square().sum()))
    top = sorted(range(len(scores)), key=lambda i: -scores[i])[:retrieved]
    method = Mir(search=3, criterion=criterion, virtual_lr=0.5)
    value = method.loss(net, new, (drawn,), {}).value - method.loss(net, new, (), {}).value
    assert value.item() == pytest.approx(sum(losses[i] for i in top) / retrieved, abs=1e-4)


def test_the_virtual_step_leaves_no_trace():
    net = build("convnet", (1, 6, 6), 6, seed=0).train()
    before = copy.deepcopy(net.state_dict())
    gradients = [torch.ones_like(p) for p in net.parameters()]
    scores = Mir().interference(net, gradients, some(10, 0))
    assert not scores.requires_grad
    assert float(scores.abs().min()) > 0
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_weight_of_zero_is_retrieved_in_vain():
    drawn = some(4, 0)
    nothing = Batch(drawn.views, drawn.labels, drawn.logits, torch.zeros(4))
    net, new = build("mlp", (1, 6, 6), 6, seed=0), some(8, 1)
    assert Mir(search=2).loss(net, new, (nothing,), {}).value == Mir().loss(net, new, (), {}).value


def test_no_example_is_retrieved_twice(monkeypatch):
    """Memory has 12 rows, 20 are asked for, 5 of them retrieved."""
    scenario, policy, seen = make_scenario(n_per_class=20), Policy(buffer=12, replay_batch=5), []
    loss = Mir.loss

    def watched(self, net, new, replay, extras):
        if replay:
            (drawn,) = replay
            different = {tuple(image.flatten().tolist()) for image in drawn.images[drawn.weights > 0]}
            seen.append((len(different), int((drawn.weights > 0).sum())))
        return loss(self, net, new, replay, extras)

    monkeypatch.setattr(Mir, "loss", watched)
    train(scenario, "mlp", Mir(search=4), policy, Training(epochs=1, lr=0.05, batch=8), 0)
    assert seen[0][1] == 8  # of the first batch
    assert seen[-1][1] == 12
    assert all(different == counted for different, counted in seen)
