"""The package's training steps, one by one, against a plain implementation's, on the same draws."""

from dataclasses import replace

import pytest
import torch
from named import Training, fresh_state, one_step

from gcr.training.randomness import EpochDraws
from gcr.training.schedule import make_schedule
from gcr.training.step import draw_plan

SEED = 3
STEPS = 5  # of an epoch
TRAINING = Training(epochs=2, lr=0.05, batch=8)


def fresh(scenario, model, method, policy, weight_decay=0.0):
    return fresh_state(scenario, model, method, policy, replace(TRAINING, weight_decay=weight_decay), SEED)


def drive(state, scenario, method, policy, plain_step, check, end_stage=lambda stage: None, n_stages=2):
    """``plain_step(draws, replay, stage)`` gives the expected loss; ``check()`` compares the rest after every step."""
    draws = EpochDraws(draw_plan(method, policy, TRAINING), STEPS, torch.device("cpu"))
    for stage, about in enumerate(make_schedule(scenario, method, TRAINING, SEED).stages[:n_stages]):
        state.stage = stage
        for epoch in range(TRAINING.epochs):
            draws.fill((SEED, stage, epoch), about.rows, STEPS)
            for step in range(STEPS):
                replay = bool(stage or epoch or step)
                cut = draws.at(torch.tensor(step), TRAINING.batch, replay)
                state.loss_sum.zero_()
                one_step(state, scenario, method, policy, cut)
                expected = plain_step(cut, replay, stage)
                assert float(state.loss_sum) / len(cut.rows) == pytest.approx(expected, abs=1e-5, rel=1e-5)
                check()
        end_stage(stage)


def same_network(net, plain):
    """Weights and running statistics, to 1e-6: a step of lr 0.05 along a gradient that is 2e-5 off would show."""
    theirs = plain.state_dict()
    for name, ours in net.state_dict().items():
        torch.testing.assert_close(ours, theirs[name], atol=1e-6, rtol=1e-6)


def same_rows(memory, entries, start=0):
    """``entries`` are (image, label, logits), and what else a plain version keeps behind them."""
    for row, (image, label, logits, *_) in enumerate(entries, start):
        assert torch.equal(memory.columns["image"][row], image)
        assert int(memory.columns["label"][row]) == label
        torch.testing.assert_close(memory.columns["logits"][row], logits, atol=1e-5, rtol=1e-5)
