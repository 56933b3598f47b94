"""CLS-ER against a version with whole copies of the network, and its averages alone."""

import copy
import math

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import side_by_side
from reference.plain_replay import PlainReplay, mean

from gcr.memory import Policy
from gcr.methods import ClsEr, Er
from gcr.models import build

METHOD = ClsEr(reg_weight=0.4, plastic_rate=0.7, stable_rate=0.3, plastic_decay=0.6, stable_decay=0.8)


class PlainClsEr(PlainReplay):
    def __init__(self, net, scenario, **settings):
        super().__init__(net, scenario, **settings)
        self.plastic, self.stable = copy.deepcopy(self.net).train(), copy.deepcopy(self.net).train()
        self.steps, self.moves = 0, {"plastic": [], "stable": []}
        self.chosen = set()

    def loss(self, new, labels, old, old_labels, weights):
        if old is None:
            return super().loss(new, labels, old, old_labels, weights)
        alone = self.net(old)
        value, logits = super().loss(new, labels, old, old_labels, weights)
        with torch.no_grad():
            plastic, stable = self.plastic(old), self.stable(old)
        terms = []
        for h, p, s, y in zip(alone, plastic, stable, old_labels, strict=True):
            teacher = "stable" if torch.softmax(s, 0)[y] > torch.softmax(p, 0)[y] else "plastic"
            self.chosen.add(teacher)
            terms.append(((h - (s if teacher == "stable" else p)) ** 2).mean())
        return value + METHOD.reg_weight * mean(terms, weights), logits

    def after_step(self):
        self.steps += 1
        t = self.steps
        for name, rate, decay in (("plastic", 0.7, 0.6), ("stable", 0.3, 0.8)):
            if math.ceil(t * rate) > math.ceil((t - 1) * rate):
                self.moves[name].append(t)
                a = min(1 - 1 / len(self.moves[name]), decay)
                for average, now in zip(getattr(self, name).parameters(), self.net.parameters(), strict=True):
                    average.data = a * average.data + (1 - a) * now.data


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_twenty_steps_equal_the_plain_version(model):
    def same_averages(state, plain):
        for average in ("plastic", "stable"):
            for name, tensor in getattr(plain, average).state_dict().items():
                torch.testing.assert_close(state.extras[f"{average}.{name}"], tensor, atol=1e-5, rtol=1e-5)

    _, plain = side_by_side(METHOD, PlainClsEr, model, same_averages)
    assert len(plain.moves["plastic"]) == 14
    assert len(plain.moves["stable"]) == 6
    assert plain.moves["stable"][:3] == [1, 4, 7]
    assert plain.chosen == {"plastic", "stable"}


def test_no_decay_gives_the_mean_of_all_weights():
    method, net = ClsEr(plastic_rate=1.0, stable_rate=0.001, plastic_decay=1.0), build("mlp", (1, 4, 4), 3, seed=0)
    extras = method.extras(net, 1)
    weights = []
    for value in (1.0, 5.0, -2.0):
        net.head.weight.data.fill_(value)
        weights.append(net.head.weight.detach().clone())
        method.after_step(net, extras)
    torch.testing.assert_close(extras["plastic.head.weight"], sum(weights) / 3)
    assert torch.equal(extras["stable.head.weight"], weights[0])  # moved once in a thousand steps, in the first


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.1, 0.37, 0.9, 1.0])
def test_averages_move_in_the_asked_share_of_the_steps(rate):
    method, net = ClsEr(stable_rate=rate), build("mlp", (1, 2, 2), 2, seed=0)
    extras = method.extras(net, 1)
    moves = 0
    for step in range(100):
        before = extras["stable.head.bias"].clone()
        net.head.bias.data.fill_(float(step + 1))
        method.after_step(net, extras)
        moves += not torch.equal(before, extras["stable.head.bias"])
    assert abs(moves - 100 * rate) <= 1


def test_the_stable_average_predicts():
    method, net = ClsEr(), build("convnet", (1, 8, 8), 3, seed=0).eval()
    extras, images = method.extras(net, 1), torch.randn(4, 1, 8, 8)
    before = net(images)
    for parameter in net.parameters():
        parameter.data.mul_(2)
    torch.testing.assert_close(method.predict(net, images, extras), before)
    extras["stable.head.bias"] += 1
    torch.testing.assert_close(method.predict(net, images, extras), before + 1)


def test_without_consistency_the_network_is_that_of_er():
    """A perceptron, since batch statistics know of the additional pass."""
    policy, training = Policy(buffer=12, replay_batch=8), Training(epochs=1, lr=0.05, batch=8)
    ours, er = (
        train(make_scenario(), "mlp", method, policy, training, 0).state.net for method in (ClsEr(reg_weight=0.0), Er())
    )
    for a, b in zip(ours.parameters(), er.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
