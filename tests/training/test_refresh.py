"""Stored logits replaced at the end of a stage, by what the method predicts."""

import pytest
import torch
from conftest import make_scenario
from made_learners import A, B, C, blobs, mlp
from named import Training, train

import gcr
from gcr.memory import BalancedReservoir, Policy
from gcr.methods import DerPlusPlus, GcrPlus


def differences(state, method, views):
    """Of what memory has stored and what the method predicts now, the largest of each row."""
    memory = state.memory
    rows = memory.filled_rows()
    predicted = method.predict(state.net.eval(), views.plain(memory.columns["image"][rows]), state.extras)
    return memory.columns["label"][rows], (memory.columns["logits"][rows] - predicted).detach().abs().amax(1)


@pytest.mark.parametrize("method", [GcrPlus(), DerPlusPlus()], ids=lambda method: method.name)
@pytest.mark.parametrize("refresh", ["never", "stages"])
def test_logits_of_the_last_task_are_those_of_the_end(method, refresh):
    scenario = make_scenario()
    policy = Policy(buffer=12, selector=BalancedReservoir(), replay_batch=8, refresh=refresh)
    state = train(scenario, "convnet", method, policy, Training(epochs=2, batch=8), 0).state
    labels, off = differences(state, method, scenario.views)
    last = labels >= 4
    assert last.any()
    assert (off[last] < 1e-5).all() == (refresh == "stages")
    assert (off[~last] > 1e-3).all()  # what earlier tasks left


@pytest.mark.parametrize("refresh", ["never", "stages"])
def test_a_learner_refreshes_at_the_end_of_a_task(refresh):
    policy = Policy(buffer=12, selector=BalancedReservoir(), refresh=refresh)
    learner = gcr.Learner(mlp(n_out=3), memory=policy, method=GcrPlus(), augment=None)
    for labels in ([A, B], [C]):
        learner.observe(*blobs(labels, n=8))
        learner.observe(*blobs(labels, n=8, seed=1))
        learner.end_task()
    labels, off = differences(learner.engine.state, learner.method, learner.engine.views)
    assert (off[labels == 2] < 1e-5).all() == (refresh == "stages")
    assert (off[labels < 2] > 1e-5).any()


def test_fit_stores_what_is_predicted():
    """By the EMA, where that predicts."""
    learner = gcr.Learner(mlp(), memory=12, method=GcrPlus(decay=0.9)).fit(*blobs([A, B]), epochs=3)
    _, off = differences(learner.engine.state, learner.method, learner.engine.views)
    assert (off < 1e-5).all()
    assert not torch.equal(learner.engine.state.extras["ema.net.2.weight"], learner.net[2].weight)
