"""The whole of GCR against the loop-by-loop reference: same draws, same weights, same memory."""

import pytest
from conftest import make_scenario
from reference.driving import drive, fresh, same_memory, same_network
from reference.gcr_algorithm import ReferenceGcr

from gcr.memory import Policy
from gcr.methods import Gcr
from gcr.select import GradApprox
from gcr.training.reselect import reselect


@pytest.mark.parametrize(("model", "contrast"), [("mlp", "features"), ("convnet", "features"), ("convnet", "logits")])
def test_three_tasks_of_gcr_equal_the_algorithms_of_the_paper(model, contrast):
    scenario = make_scenario(n_per_class=20)
    method = Gcr(alpha=0.3, beta=0.7, gamma=0.2, contrast=contrast)
    policy = Policy(buffer=12, selector=GradApprox(ridge=0.5), replay_batch=6)
    state = fresh(scenario, model, method, policy)
    size = {"lr": 0.05, "capacity": 12, "replay_size": 6}
    plain = ReferenceGcr(state.net, scenario, alpha=0.3, beta=0.7, gamma=0.2, contrast=contrast, **size)

    def check():
        same_network(state.net, plain.net)
        same_memory(state.memory, plain)

    distinct = []

    def end_stage(stage):
        reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
        plain.grad_approx()
        same_memory(state.memory, plain)
        distinct.append(len({round(float(w), 3) for w in state.memory.columns["weight"][:12]}))

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay)

    drive(state, scenario, method, policy, step, check, end_stage, n_stages=3)
    assert distinct[0] == 1  # all were kept
    assert distinct[1] > 6  # so the third task is replayed with weights that were really chosen
