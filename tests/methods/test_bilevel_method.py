"""The method ``bilevel``: ER's loss, the selector ``bilevel``. The selector has its own tests."""

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import side_by_side
from reference.plain_replay import PlainReplay

from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.methods import Bilevel, Er
from gcr.select import SELECTORS

BilevelSelector = next(selector for selector in SELECTORS if selector.name == "bilevel")


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_the_loss_is_that_of_plain_weighted_replay(model):
    side_by_side(Bilevel(), PlainReplay, model)


def test_its_own_selector_is_bilevel():
    experiment = compose("seq-digits", "bilevel")
    assert isinstance(experiment.memory.selector, BilevelSelector)
    assert experiment.label == "bilevel"


def test_it_is_er_with_the_selector():
    memory = Policy(buffer=12, selector=BilevelSelector(), replay_batch=8)
    ours, er = (
        train(make_scenario(), "mlp", method(), memory, Training(epochs=1, lr=0.05, batch=8), 0)
        for method in (Bilevel, Er)
    )
    assert len(ours.state.selections) == 3
    for (name, a), (_, b) in zip(ours.state.tensors(), er.state.tensors(), strict=True):
        assert torch.equal(a, b), name
