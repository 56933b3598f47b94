"""The package's training steps, one by one, against a plain implementation's, on the same draws."""

from dataclasses import replace

import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, one_step
from torch import nn

from gcr.memory import Policy
from gcr.memory.randomness import selection_draws
from gcr.models.norm import BatchNorm
from gcr.training.randomness import EpochDraws
from gcr.training.reselect import reselect
from gcr.training.schedule import make_schedule
from gcr.training.step import draw_plan

SEED = 3
STEPS = 5  # of an epoch
TRAINING = Training(epochs=2, lr=0.05, batch=8)


def fresh(scenario, model, method, policy, weight_decay=0.0):
    return fresh_state(scenario, model, method, policy, replace(TRAINING, weight_decay=weight_decay), SEED)


def smooth(trunk):
    """Tanh for ReLU: at a kink, what one kind of CPU rounds otherwise would become another gradient."""
    for name, layer in trunk.named_children():
        if isinstance(layer, nn.ReLU):
            setattr(trunk, name, nn.Tanh())
        elif isinstance(layer, BatchNorm):
            layer.relu = False
            layer.register_forward_hook(lambda _, __, output: output.tanh())


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


def same_memory(memory, plain):
    for start, filled, entries in ((0, memory.kept, plain.kept), (memory.capacity, memory.pooled, plain.candidates)):
        assert int(filled) == len(entries)
        same_rows(memory, entries, start)
        weights = memory.columns["weight"][start : start + len(entries)].tolist()
        assert weights == pytest.approx([entry[3] for entry in entries], abs=1e-5)
    assert int(memory.seen) == plain.n
    assert int(memory.seen_since) == plain.n_t


def side_by_side(method, make_plain, model, check=lambda state, plain: None, capacity=12, **policy_settings):
    """Twenty steps over two tasks against a ``PlainReplay``, whose loss, weights and memory must agree at every step.

    ``check`` compares what else there is. Slots of memory have weights 0.5, 1, 1.5 and so on, as a selector might have
    given them. Returns both states.
    """
    scenario, policy = make_scenario(n_per_class=20), Policy(buffer=capacity, replay_batch=6, **policy_settings)
    state = fresh(scenario, model, method, policy)
    plain = make_plain(state.net, scenario, lr=TRAINING.lr, capacity=capacity)
    plain.weights = [0.5 * (slot + 1) for slot in range(capacity)]
    steps = []

    def check_all():
        steps.append(None)
        same_network(state.net, plain.net)
        assert int(state.memory.kept) == len(plain.kept)
        same_rows(state.memory, plain.kept)
        check(state, plain)
        state.memory.columns["weight"][:capacity] = torch.tensor(plain.weights)

    drive(state, scenario, method, policy, lambda draws, replay, stage: plain.step(draws, replay), check_all)
    assert len(steps) == 20
    return state, plain


def follow(state, plain, scenario, method, policy, n_stages):
    """Losses, weights, running statistics and memory agree all along, selections at the end of stages included.

    The plain form keeps the task of every example.
    """

    def same_entries():
        assert int(state.memory.kept) == len(plain.kept)
        same_rows(state.memory, plain.kept)
        assert state.memory.columns["task"][: len(plain.kept)].tolist() == [entry[3] for entry in plain.kept]

    def check():
        same_network(state.net, plain.net)
        same_entries()

    def end_stage(stage):
        if policy.selects:
            n_rows = len(state.memory.filled_rows())
            reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
            plain.end_stage(selection_draws((3, stage), n_rows).tolist())
            same_entries()

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay, stage)

    drive(state, scenario, method, policy, step, check, end_stage, n_stages)
