"""Memory of another size: what is there stays, with the chances that it had."""

import pytest
import torch

import gcr
from gcr.classifier.saved import Classifier

OLD, LATE = 0.0, 1.0  # in the first column of an example


def classifier_with(memory, examples=1000):
    torch.manual_seed(0)
    learner = gcr.Learner(torch.nn.Linear(3, 2), memory, classes=["a", "b"])
    learner.remember(of(OLD, examples), ["a", "b"] * (examples // 2))
    return Classifier(None, None, "mlp", learner, memory, torch.zeros(0, 3), [], [])


def of(when, n):
    return torch.cat([torch.full((n, 1), when), torch.rand(n, 2)], 1)


@pytest.mark.parametrize(("before", "now"), [(100, 101), (100, 120), (100, 60), (2000, 100)])
def test_remembered_examples_keep_their_chance_against_later_ones(before, now):
    classifier = classifier_with(before)
    classifier.resize(now)
    classifier.learner.remember(of(LATE, 100), ["a", "b"] * 50)
    late = float((classifier.learner.memory.examples[:, 0] == LATE).float().mean())
    assert len(classifier.learner.memory) == now
    assert late < 100 / 1100 + max(now - before, 0) / now + 0.08  # late ones take all new places


def columns(memory):
    return memory.labels, memory.logits.numpy(), memory.tasks.numpy(), memory.weights.numpy()


@pytest.mark.parametrize("now", [20, 30, 60])
def test_rows_stay_as_they_are(now):
    classifier = classifier_with(30)
    memory, optimizer = classifier.learner.memory, classifier.learner.engine.state.optimizer
    there = {tuple(row): place for place, row in enumerate(memory.examples.tolist())}
    before = columns(memory)
    classifier.learner.end_task()
    with torch.no_grad():
        classifier.learner.net.weight.add_(1.0)  # stored logits are from before
    classifier.resize(now)
    memory = classifier.learner.memory
    places = [there[tuple(row)] for row in memory.examples.tolist()]
    assert len({*places}) == len(memory) == min(now, 30)
    for kept, own in zip(before, columns(memory), strict=True):
        assert (kept[places] == own).all()
    assert classifier.learner.engine.state.optimizer is optimizer
    classifier.learner.fit(of(LATE, 40), ["c"] * 40, epochs=1)  # memory of the new size goes on
    assert memory.capacity == now


def test_an_empty_memory_is_resized():
    classifier = classifier_with(30)
    classifier.learner.forget(torch.arange(30))
    classifier.resize(40)
    classifier.learner.fit(of(LATE, 60), ["a", "b"] * 30, epochs=1)
    assert len(classifier.learner.memory) == 40
