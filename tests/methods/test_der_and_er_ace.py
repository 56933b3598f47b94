"""Fine-tuning, ER, DER, DER++ and ER-ACE step by step against their formulas."""

import math

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import side_by_side
from reference.gcr_algorithm import cross_entropy
from reference.plain_replay import PlainReplay, mean

from gcr.memory import Policy
from gcr.methods import Batch, Der, DerPlusPlus, Er, ErAce, Finetune
from gcr.models import build

# --- ER, DER, DER++ and fine-tuning, with passes of their own for every minibatch


class PlainDer(PlainReplay):
    ALPHA, BETA = 0.4, None

    def loss_of(self, new, labels, replays):
        logits = self.net(new)
        value = mean(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True))
        outputs = [self.net(old) for old, _, _ in replays]
        if replays:
            _, entries, weights = replays[0]
            terms = [((h - e[2]) ** 2).mean() for h, e in zip(outputs[0], entries, strict=True)]
            value = value + self.ALPHA * mean(terms, weights)
        if replays and self.BETA:
            _, entries, weights = replays[1]
            terms = [cross_entropy(h, e[1]) for h, e in zip(outputs[1], entries, strict=True)]
            value = value + self.BETA * mean(terms, weights)
        return value, logits


class PlainDerPlusPlus(PlainDer):
    BETA = 0.7


class PlainSeparateEr(PlainReplay):
    def loss(self, new, labels, old, old_labels, weights):
        logits = self.net(new)
        value = mean(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True))
        if old is not None:
            terms = [cross_entropy(h, y) for h, y in zip(self.net(old), old_labels, strict=True)]
            value = value + mean(terms, weights)
        return value, logits


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (Er(), PlainReplay),
        (Er(forward="separate"), PlainSeparateEr),
        (Der(alpha=0.4), PlainDer),
        (DerPlusPlus(alpha=0.4, beta=0.7), PlainDerPlusPlus),
    ],
    ids=["er", "er separate", "der", "der++"],
)
def test_twenty_steps_equal_the_formulas(method, plain, model):
    side_by_side(method, plain, model)


def test_without_memory_all_that_is_left_is_cross_entropy_on_new_examples():
    """Fine-tuning is DER whose replay weighs nothing, on a network without batch statistics."""
    scenario, training = make_scenario(), Training(epochs=1, lr=0.05, batch=8)

    ours = train(scenario, "mlp", Finetune(), None, training, 0).state.net
    other = train(scenario, "mlp", Der(alpha=0.0), Policy(buffer=12, replay_batch=8), training, 0).state.net
    untrained = build("mlp", scenario.image_shape, 6, seed=0)
    for a, b, c in zip(ours.parameters(), other.parameters(), untrained.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
        assert not torch.equal(a, c)


# --- ER-ACE: where its gradients must vanish


def cross_entropy_among(h, y, classes):
    """-log of the share of class y among ``classes``."""
    return torch.log(sum(torch.exp(h[c]) for c in classes)) - h[y]


class PlainErAce(PlainReplay):
    unseen = "rivals"

    def loss(self, new, labels, old, old_labels, weights):
        self.seen = getattr(self, "seen", set()) | set(labels)
        logits = self.net(new)
        others = set(range(logits.shape[1])) - self.seen if self.unseen == "rivals" else set()
        terms = [cross_entropy_among(h, y, set(labels) | others) for h, y in zip(logits, labels, strict=True)]
        loss = mean(terms)
        if old is not None:
            pairs = zip(self.net(old), old_labels, strict=True)
            terms = [cross_entropy_among(h, y, self.seen | others) for h, y in pairs]
            loss = loss + mean(terms, weights)
        return loss, logits


class PlainErAcePaper(PlainErAce):
    unseen = "absent"


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("plain", [PlainErAce, PlainErAcePaper])
def test_twenty_steps_equal_the_plain_version(model, plain):
    def same_seen(state, reference):
        assert {c for c, seen in enumerate(state.extras["seen"].tolist()) if seen} == reference.seen

    state, _ = side_by_side(ErAce(unseen=plain.unseen), plain, model, same_seen)
    assert state.extras["seen"].tolist() == [True] * 4 + [False] * 2


def head_gradient(method, labels, seen, replay_labels=()):
    """Of the head's bias, on random images; and the value of the loss."""
    net = build("mlp", (1, 4, 4), 6, seed=0)
    generator = torch.Generator().manual_seed(1)

    def batch(of):
        images = torch.randn(len(of), 1, 4, 4, generator=generator)
        return Batch((images,), torch.tensor(of), torch.zeros(len(of), 6), torch.ones(len(of)))

    extras = method.extras(net, 3)
    extras["seen"][list(seen)] = True
    replay = (batch(replay_labels),) if replay_labels else ()
    loss = method.loss(net, batch(labels), replay, extras)
    return torch.autograd.grad(loss.value, net.head.bias)[0], loss.value.item()


def test_new_examples_leave_the_classes_of_earlier_tasks_alone():
    gradient, _ = head_gradient(ErAce(), labels=[2, 3, 3], seen=[0, 1])
    assert gradient[:2].tolist() == [0.0, 0.0]
    assert (gradient[4:] > 0).all()  # not seen yet: pushed down
    gradient, _ = head_gradient(ErAce(unseen="absent"), labels=[2, 3, 3], seen=[0, 1])
    assert gradient[[0, 1, 4, 5]].tolist() == [0.0] * 4


def test_a_seen_class_that_is_not_in_the_batch_is_left_alone_whatever_its_number():
    gradient, _ = head_gradient(ErAce(), labels=[0, 1], seen=[5])
    assert gradient[5] == 0.0


def test_replay_reaches_all_seen_classes():
    gradient, _ = head_gradient(ErAce(unseen="absent"), labels=[2, 3], seen=[0, 1], replay_labels=[0, 2])
    assert (gradient[:4] != 0).all()
    assert (gradient[4:] == 0).all()


def test_a_batch_of_one_class_tells_nothing_in_the_paper():
    gradient, value = head_gradient(ErAce(unseen="absent"), labels=[3, 3], seen=[0, 1, 2])
    assert math.isclose(value, 0.0, abs_tol=1e-6)
    assert gradient.abs().max() < 1e-6
