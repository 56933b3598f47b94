"""GEM against its plain form, and what its projection promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_scenario
from hypothesis import example, given, settings
from hypothesis import strategies as st
from named import Training, train
from reference.driving import follow, fresh
from reference.gradient_methods import PlainGem, bounded_qp

from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.methods import Batch, Gem
from gcr.methods.gem import project_on_past
from gcr.methods.gem_qp import gem_multipliers
from gcr.models import build
from gcr.select import ClassBalanced
from gcr.settings import BadInput

GRID = st.integers(-3, 3).map(float)  # small whole numbers: repeated, opposite and zero directions are common


@pytest.mark.parametrize(("model", "buffer"), [("mlp", 12), ("mlp", 13), ("convnet", 12)])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_three_tasks_equal_plain_gem(model, buffer, margin):
    """13 does not divide by two tasks: shares of 7 and 6, and weights of the rows that fill up the smaller one."""
    scenario = make_scenario(n_per_class=20)
    method, policy = Gem(margin=margin), Policy(buffer=buffer, selector=ClassBalanced())
    state = fresh(scenario, model, method, policy)
    plain = PlainGem(state.net, scenario, lr=0.05, capacity=buffer, margin=margin)
    follow(state, plain, scenario, method, policy, n_stages=3)
    assert plain.projected >= 10  # of the 20 steps that had a past


@st.composite
def problems(draw):
    t, p = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    rows = [[draw(GRID) for _ in range(p)] for _ in range(t + 1)]
    scales = [10.0 ** draw(st.integers(-3, 3)) for _ in range(t + 1)]
    return torch.tensor(rows) * torch.tensor(scales).unsqueeze(1)


@settings(max_examples=500, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5, 2.0]))
def test_the_solution_satisfies_kkt(lines, margin):
    """Feasible on either side, and every multiplier above its bound has a slope of zero."""
    g, past = lines[0].double(), lines[1:].double()
    products, start = past @ past.T, g + margin * past.sum(0)
    z = gem_multipliers(products, past @ start)
    slopes = past @ (start + past.T @ z)  # derivative of the dual
    assert (z >= 0).all()
    assert (slopes >= -1e-5 * past.norm(dim=1) * start.norm() - 1e-12).all()
    assert ((z * slopes).abs() <= 1e-5 * start.norm() ** 2 + 1e-12).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 8), st.sampled_from([0.0, 0.5]), st.sampled_from([1.0, 0.1, 1e-3]))
def test_multipliers_equal_those_of_every_active_set_tried(seed, t, margin, spread):
    """Directions in general position; a small spread makes them almost the same."""
    rng = np.random.default_rng(seed)
    past = spread * rng.normal(size=(t, 30)) + (spread < 1) * rng.normal(size=30)
    g = rng.normal(size=30) - rng.integers(2) * past.sum(0)
    products, slopes = past @ past.T, past @ g
    expected = g + past.T @ bounded_qp(products, slopes, margin)
    z = gem_multipliers(torch.from_numpy(products), torch.from_numpy(slopes + margin * products.sum(1))).numpy()
    np.testing.assert_allclose(g + past.T @ (margin + z), expected, atol=1e-6)


ALMOST_DEPENDENT = torch.tensor([[0.0, 1, 0, 0], [2, -1, -3, 0], [-1, 1, 2, 0], [0, -1, -1, 0]])


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5]))
@example(ALMOST_DEPENDENT, 0.0)
def test_the_projected_gradient_violates_nothing(lines, margin):
    lines = lines / lines.norm(dim=1, keepdim=True).clamp_min(1e-30)
    gradients, *past = ([line[:1], line[1:].unsqueeze(1), None] for line in lines)
    first, rest, nothing = project_on_past(gradients, past, margin)
    assert nothing is None
    projected = torch.cat([first, rest.squeeze(1)])
    if (lines[1:].double() @ lines[0].double() >= 0).all():
        assert torch.equal(projected, lines[0])
    else:  # directions that almost depend on each other have multipliers in the hundreds, and rounding grows with them
        assert (lines[1:] @ projected >= -5e-4).all()


def kept_batch(tasks, weights):
    n = len(tasks)
    images = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n) % 6
    return Batch((images,), labels, torch.zeros(n, 6), torch.tensor(weights), torch.tensor(tasks))


def test_empty_rows_and_rows_of_the_present_task_do_not_count():
    net, method = build("mlp", (1, 6, 6), 6, seed=0), Gem()
    parameters = list(net.parameters())
    gradients = [-torch.ones_like(p) for p in parameters]
    clean = kept_batch([0, 1, 0, 1], [1.0] * 4)
    more = kept_batch([0, 1, 0, 1, 2, 2, 0, 1], [1.0] * 6 + [0.0] * 2)
    ours, theirs = (method.project(gradients, parameters, net, (kept,), {}, 2) for kept in (more, clean))
    for a, b, g in zip(ours, theirs, gradients, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.equal(a, g)


def test_a_task_without_rows_constrains_nothing():
    net, method = build("mlp", (1, 6, 6), 6, seed=0), Gem(margin=0.0)
    parameters = list(net.parameters())
    gradients = [torch.ones_like(p) for p in parameters]
    kept, same = kept_batch([1, 1, 0, 0], [1.0, 1.0, 0.0, 0.0]), kept_batch([0, 0], [1.0, 1.0])
    same = replace(same, views=(kept.images[:2],))
    both = method.project(gradients, parameters, net, (kept,), {}, 2)
    alone = method.project(gradients, parameters, net, (same,), {}, 1)
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a, b)


def test_a_parameter_that_no_loss_reaches_keeps_no_gradient():
    net = build("mlp", (1, 6, 6), 6, seed=0)
    unused = torch.nn.Parameter(torch.ones(3))
    parameters = [*net.parameters(), unused]
    gradients = [*(torch.ones_like(p) for p in net.parameters()), None]
    projected = Gem().project(gradients, parameters, net, (kept_batch([0, 0], [1.0, 1.0]),), {}, 1)
    assert projected[-1] is None
    gradients[0] = None  # the new batch does not reach it, memory does
    assert Gem().project(gradients, parameters, net, (kept_batch([0, 0], [1.0, 1.0]),), {}, 1)[0] is not None


def test_a_buffer_smaller_than_the_number_of_tasks_is_refused(scenario):
    with pytest.raises(BadInput, match="buffer must be >= 3 for gem, the number of tasks, got 2; "):
        train(scenario, "mlp", Gem(), Policy(buffer=2, selector=ClassBalanced()), Training(epochs=1), 0)
    with pytest.raises(BadInput, match="buffer must be >= 10"):
        compose("seq-digits", "gem", overrides={"buffer": 4})
