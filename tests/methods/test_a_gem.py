"""A-GEM against its plain form, and what its projection promises."""

import pytest
import torch
from conftest import make_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.driving import follow, fresh
from reference.gradient_methods import PlainAGem

from gcr.memory import Policy
from gcr.methods import AGem
from gcr.methods.a_gem import project_on


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_two_tasks_equal_plain_a_gem(model):
    scenario, method, policy = make_scenario(n_per_class=20), AGem(), Policy(buffer=12, replay_batch=6)
    state = fresh(scenario, model, method, policy)
    plain = PlainAGem(state.net, scenario, lr=0.05, capacity=12)
    follow(state, plain, scenario, method, policy, n_stages=2)


VECTOR = st.lists(st.integers(-3, 3).map(float), min_size=4, max_size=4).map(torch.tensor)


@settings(max_examples=200, deadline=None)
@given(VECTOR, VECTOR)
def test_the_projection_is_orthogonal_where_there_was_a_conflict(g, r):
    projected = torch.cat(project_on([g[:1], g[1:]], [r[:1], r[1:]]))
    if g @ r >= 0:
        assert torch.equal(projected, g)
    else:
        assert float(projected @ r) == pytest.approx(0, abs=1e-5)
        torch.testing.assert_close(projected, g - (g @ r) / (r @ r) * r)


def test_gradients_that_are_not_there_count_as_zero():
    g, r = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])
    first, second, third, fourth = project_on([g, None, g, None], [r, r, None, None])
    torch.testing.assert_close(first, g + 0.25 * r)
    torch.testing.assert_close(second, 0.25 * r)
    assert torch.equal(third, g)
    assert fourth is None
