"""GSS-Greedy as a whole against Algorithm 2 written out, example by example."""

import pytest
import torch
from reference.driving import side_by_side
from reference.plain_replay import PlainGss

from gcr.experiments.experiment import compose
from gcr.memory import GssGreedy
from gcr.methods import Gss


class PlainWholeGss(PlainGss):
    whole = True


@pytest.mark.parametrize("gradients", ["last-layer", "whole"])
@pytest.mark.parametrize(("model", "capacity"), [("mlp", 12), ("convnet", 12), ("mlp", 5)])
def test_twenty_steps_equal_the_plain_version(model, capacity, gradients):
    def same_scores(state, plain):
        scores = torch.tensor([entry[3] for entry in plain.kept])
        torch.testing.assert_close(state.memory.columns["score"][: len(scores)], scores, atol=1e-5, rtol=1e-5)

    policy = {"capacity": capacity, "selector": GssGreedy(compared=2, gradients=gradients)}
    _, plain = side_by_side(
        Gss(), PlainGss if gradients == "last-layer" else PlainWholeGss, model, same_scores, **policy
    )
    assert plain.refused_batches > 0
    assert plain.replaced > 0
    assert plain.refused > 0


def test_its_own_policy_is_gss_greedy():
    experiment = compose("seq-digits", "gss", overrides={"compared": "10"})
    assert experiment.memory.selector == GssGreedy(compared=10)
    assert experiment.label == "gss"
    assert compose("seq-digits", "er", selector="gss-greedy").label == "er + gss-greedy"
