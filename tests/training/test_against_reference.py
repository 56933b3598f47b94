"""The whole of GCR against the loop-by-loop reference: same draws, same weights, same memory."""

import pytest
import torch
from conftest import make_scenario
from reference.gcr_algorithm import ReferenceGcr

from gcr.memory import Policy
from gcr.methods import Gcr
from gcr.select import GradApprox
from gcr.training.draws import EpochDraws
from gcr.training.settings import Training
from gcr.training.stages import plan_stages
from gcr.training.state import RunState
from gcr.training.step import draw_plan, train_step
from gcr.training.update import reselect


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_two_tasks_of_gcr_equal_the_algorithms_of_the_paper(model):
    scenario = make_scenario(n_per_class=20)
    method = Gcr(alpha=0.3, beta=0.7, gamma=0.2)
    policy = Policy(buffer=12, selector=GradApprox(ridge=0.5), replay_batch=6)
    training = Training(epochs=2, lr=0.05, batch=8)
    state = RunState.fresh(scenario, model, method, policy, training, seed=3, device=torch.device("cpu"))
    plain = ReferenceGcr(
        state.net, scenario, alpha=0.3, beta=0.7, gamma=0.2, lr=0.05, capacity=12, replay_size=6, ridge=0.5
    )
    draws = EpochDraws(draw_plan(method, policy, training), most_steps=5, device=torch.device("cpu"))
    steps = 0
    stages = plan_stages(scenario, method, training, seed=3).stages
    for stage, rows in enumerate(stage.rows for stage in stages[:2]):
        for epoch in range(training.epochs):
            draws.fill((3, stage, epoch), rows, n_batches=5)
            for step in range(5):
                first = steps == 0
                cut = draws.at(torch.tensor(step), training.batch, replaying=not first)
                state.loss_sum.zero_()
                train_step(state, scenario, method, policy, cut)
                expected = plain.step(cut.rows.tolist(), cut, replay=not first)
                assert float(state.loss_sum) / len(cut.rows) == pytest.approx(expected, abs=1e-4)
                for ours, theirs in zip(state.net.parameters(), plain.net.parameters(), strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
                same_memory(state.memory, plain)
                steps += 1
        reselect(state.memory, policy, method, state.net, scenario, (3, stage))
        plain.grad_approx()
        same_memory(state.memory, plain)
    assert steps == 20
    assert len({round(float(w), 3) for w in state.memory.columns["weight"][:12]}) > 6  # weights were really chosen


def same_memory(memory, plain):
    for start, filled, entries in ((0, memory.kept, plain.kept), (memory.capacity, memory.pooled, plain.candidates)):
        assert int(filled) == len(entries)
        for row, (image, label, logits, weight) in enumerate(entries, start):
            assert torch.equal(memory.columns["image"][row], image)
            assert int(memory.columns["label"][row]) == label
            torch.testing.assert_close(memory.columns["logits"][row], logits, atol=1e-4, rtol=1e-4)
            assert float(memory.columns["weight"][row]) == pytest.approx(weight, abs=1e-3)
    assert int(memory.seen) == plain.n
    assert int(memory.seen_since) == plain.n_t
