"""Steps of a method and of its plain form side by side."""

import pytest
import torch

from gcr.training.draws import EpochDraws, selection_draws
from gcr.training.settings import Training
from gcr.training.stages import plan_stages
from gcr.training.state import RunState
from gcr.training.step import draw_plan, train_step
from gcr.training.update import reselect

TRAINING = Training(epochs=2, lr=0.05, batch=8)


def fresh(scenario, model, method, policy):
    return RunState.fresh(scenario, model, method, policy, TRAINING, seed=3, device=torch.device("cpu"))


def follow(state, plain, scenario, method, policy, n_stages):
    """Five steps an epoch, two epochs a stage: losses, weights, running statistics and memory agree all along."""
    draws = EpochDraws(draw_plan(method, policy, TRAINING), most_steps=5, device=torch.device("cpu"))
    stages = plan_stages(scenario, method, TRAINING, seed=3).stages
    for stage, rows in enumerate(stage.rows for stage in stages[:n_stages]):
        state.stage = stage
        for epoch in range(TRAINING.epochs):
            draws.fill((3, stage, epoch), rows, n_batches=5)
            for step in range(5):
                replay = bool(stage or epoch or step)
                cut = draws.at(torch.tensor(step), TRAINING.batch, replay)
                state.loss_sum.zero_()
                train_step(state, scenario, method, policy, cut)
                expected = plain.step(cut.rows.tolist(), cut, replay, stage)
                assert float(state.loss_sum) / len(cut.rows) == pytest.approx(expected, abs=1e-5)
                ours, theirs = state.net.state_dict(), plain.net.state_dict()
                for name in ours:
                    torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5)
                _same_memory(state.memory, plain.kept)
        if policy.selects:
            n_rows = len(state.memory.filled_rows())
            reselect(state.memory, policy, method, state.net, scenario, (3, stage))
            plain.end_stage(selection_draws((3, stage), n_rows).tolist())
            _same_memory(state.memory, plain.kept)


def _same_memory(memory, kept):
    assert int(memory.kept) == len(kept)
    for row, (image, label, logits, task) in enumerate(kept):
        assert torch.equal(memory.columns["image"][row], image)
        assert int(memory.columns["label"][row]) == label
        assert int(memory.columns["task"][row]) == task
        torch.testing.assert_close(memory.columns["logits"][row], logits, atol=1e-5, rtol=1e-5)
