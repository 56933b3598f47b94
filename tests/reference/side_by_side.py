"""Twenty steps of a method over two tasks beside its plain version, on the same draws."""

import pytest
import torch
from conftest import make_scenario

from gcr.memory import Policy
from gcr.training.draws import EpochDraws
from gcr.training.settings import Training
from gcr.training.stages import plan_stages
from gcr.training.state import RunState
from gcr.training.step import draw_plan, train_step


def side_by_side(method, make_plain, model, check=lambda state, plain: None, capacity=12, **policy_settings):
    """Every step's loss, weights and memory must agree; ``check`` compares what else there is. Returns both states."""
    scenario, training = make_scenario(n_per_class=20), Training(epochs=2, lr=0.05, batch=8)
    policy = Policy(buffer=capacity, replay_batch=6, **policy_settings)
    state = RunState.fresh(scenario, model, method, policy, training, seed=3, device=torch.device("cpu"))
    plain = make_plain(state.net, scenario, lr=0.05, capacity=capacity)
    draws = EpochDraws(draw_plan(method, policy, training), most_steps=5, device=torch.device("cpu"))
    steps = 0
    for stage, rows in enumerate(s.rows for s in plan_stages(scenario, method, training, seed=3).stages[:2]):
        for epoch in range(training.epochs):
            draws.fill((3, stage, epoch), rows, n_batches=5)
            for step in range(5):
                cut = draws.at(torch.tensor(step), training.batch, replaying=steps > 0)
                state.loss_sum.zero_()
                train_step(state, scenario, method, policy, cut)
                expected = plain.step(cut, replay=steps > 0)
                assert float(state.loss_sum) / len(cut.rows) == pytest.approx(expected, abs=1e-5, rel=1e-5)
                for ours, theirs in zip(state.net.parameters(), plain.net.parameters(), strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
                same_memory(state.memory, plain.kept)
                check(state, plain)
                steps += 1
    assert steps == 20
    return state, plain


def same_memory(memory, entries):
    assert int(memory.kept) == len(entries)
    for row, (image, label, logits, *_) in enumerate(entries):
        assert torch.equal(memory.columns["image"][row], image)
        assert int(memory.columns["label"][row]) == label
        torch.testing.assert_close(memory.columns["logits"][row], logits, atol=1e-5, rtol=1e-4)
