"""What a replay minibatch holds of memory."""

import pytest
import torch
from named import Training, train

from gcr.memory import Buffer, Coin, Policy
from gcr.methods import Gcr
from gcr.select import GradApprox
from gcr.training.randomness import ReplayDraws
from gcr.training.step import draw_replays


@pytest.fixture
def memory():
    """Four kept examples of weights 1, 2, 3 and 6, where six had been kept before, and three candidates."""
    memory = Buffer.empty(8, 8, (1, 2, 2), 3)

    def offer(labels):
        images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
        memory.offer({"image": images, "label": torch.tensor(labels)}, torch.zeros(len(labels)).double())

    offer([0, 1, 2, 3, 4, 5])
    memory.keep(memory.filled_rows(), torch.full((6,), 100.0))
    memory.keep(memory.filled_rows()[:4], torch.tensor([1.0, 2.0, 3.0, 6.0]))
    offer([10, 11, 12])
    return memory


def weights_of(memory, relative):
    """Weights of each example, by label, in two minibatches of 40."""
    draws = torch.rand(2, 40, 2, generator=torch.Generator().manual_seed(0))
    asked = tuple(ReplayDraws(rows, (torch.zeros(40, 3),)) for rows in draws)
    drawn = draw_replays(memory, Coin, asked, relative)
    assert [len(columns["weight"]) for columns in drawn] == [40, 40]
    seen = {}
    for columns in drawn:
        for label, weight in zip(columns["label"].tolist(), columns["weight"].tolist(), strict=True):
            seen.setdefault(label, set()).add(round(weight, 5))
    return {label: weights.pop() for label, weights in sorted(seen.items()) if len(weights) == 1}


def test_weights_as_chosen(memory):
    assert weights_of(memory, relative=False) == {0: 1.0, 1: 2.0, 2: 3.0, 3: 6.0, 10: 1.0, 11: 1.0, 12: 1.0}


def test_relative_weights_of_the_kept_have_a_mean_of_one(memory):
    expected = {0: 0.33333, 1: 0.66667, 2: 1.0, 3: 2.0, 10: 1.0, 11: 1.0, 12: 1.0}
    assert weights_of(memory, relative=True) == expected
    assert float(memory.mean_weight()) == 3.0


def test_relative_weights_before_anything_is_kept():
    memory = Buffer.empty(8, 8, (1, 2, 2), 3)
    batch = {"image": torch.zeros(2, 1, 2, 2, dtype=torch.uint8), "label": torch.tensor([7, 8])}
    memory.offer(batch, torch.zeros(2).double())
    assert weights_of(memory, relative=True) == {7: 1.0, 8: 1.0}


def test_the_setting_reaches_the_step(scenario):
    """From the third task on, when weights have been chosen."""
    heads = []
    for kept_weights in ("chosen", "relative"):
        policy = Policy(buffer=12, selector=GradApprox(), kept_weights=kept_weights)
        outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0)
        heads.append(outcome.state.net.head.weight)
    assert not torch.equal(*heads)
