"""GEM, A-GEM and MIR against their plain forms: what projections promise, gradients as vectors, what is retrieved."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_scenario
from hypothesis import example, given, settings
from hypothesis import strategies as st
from named import Training, train
from reference.driving import follow, fresh, smooth
from reference.gradient_methods import PlainAGem, PlainGem, PlainMir, bounded_qp
from torch.nn import functional as F

from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.methods import AGem, Batch, Gem, Mir
from gcr.methods.a_gem import project_on
from gcr.methods.flat_gradients import parts, vectors
from gcr.methods.gem import inner_products, project_on_past
from gcr.methods.gem_qp import RIDGE, gem_multipliers
from gcr.models import build
from gcr.select import ClassBalanced
from gcr.settings import BadInput

# --- GEM

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


@settings(max_examples=60, deadline=None)
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


def test_the_ridge_bounds_how_negative_a_slope_is_and_not_how_far_the_point_moves():
    past = torch.tensor([[1e-7, 1.0], [1e-7, -1.0], [-1.0, 0.0]]).double()  # only 0 has no negative slope
    g = torch.tensor([-1.0, 0.0]).double()
    point = g + past.T @ gem_multipliers(past @ past.T, past @ g)
    assert (past @ point).min() >= -((RIDGE / 2) ** 0.5)
    assert point.norm() > 0.9


@settings(max_examples=50, deadline=None)
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


@settings(max_examples=60, deadline=None)
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


# --- A-GEM


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


# --- Gradients as vectors, and back

SHAPES = ((3, 2, 3, 3), (5,), (4, 2), (1,))


def made(seed, n):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(n)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.sets(st.integers(0, 15)), st.sets(st.integers(0, 3)))
def test_sums_of_vectors_are_sums_of_parts(seed, n, absent, channels_last):
    lines = made(seed, n)
    for place, line in enumerate(lines):
        if place in channels_last:
            line[0] = line[0].contiguous(memory_format=torch.channels_last)
        for part in range(len(SHAPES) - 1):  # the last one is always there
            if 4 * place + part in absent:
                line[part] = None
    whole = vectors(lines)
    for total, same in zip(parts(sum(whole), lines), zip(*lines, strict=True), strict=True):
        there = [part for part in same if part is not None]
        if there:
            torch.testing.assert_close(total, sum(there))
            assert total.stride() == there[0].stride()
        else:
            assert total is None
    long = torch.stack(whole).double()
    torch.testing.assert_close(inner_products(torch.stack(whole)), long @ long.T)


# --- MIR: it retrieves the true maximum and leaves no trace of the virtual step


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("criterion", ["loss", "logits"])
def test_two_tasks_equal_plain_mir(model, criterion):
    scenario, policy = make_scenario(n_per_class=20), Policy(buffer=12, replay_batch=4)
    method = Mir(search=4, criterion=criterion, virtual_lr=0.1)
    state = fresh(scenario, model, method, policy)
    smooth(state.net.trunk)
    plain = PlainMir(state.net, scenario, lr=0.05, capacity=12, virtual_lr=0.1, retrieved=4, criterion=criterion)
    follow(state, plain, scenario, method, policy, n_stages=2)


def some(n, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 6, (n,), generator=generator)
    return Batch((images,), labels, torch.zeros(n, 6), torch.ones(n))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["loss", "logits"]), st.integers(1, 6))
def test_it_retrieves_the_true_top(seed, criterion, retrieved):
    """Each candidate goes alone through a network that has taken the step; the loss shows which were retrieved."""
    net, new, drawn = build("mlp", (1, 6, 6), 6, seed), some(8, seed + 1), some(3 * retrieved, seed + 2)
    moved = copy.deepcopy(net)
    F.cross_entropy(moved(new.images), new.labels).backward()
    with torch.no_grad():
        for p in moved.parameters():
            p -= 0.5 * p.grad
    scores, losses = [], []
    for image, label in zip(drawn.images, drawn.labels, strict=True):
        before, after = (at(image[None])[0].detach() for at in (net, moved))
        losses.append(float(F.cross_entropy(before, label)))
        rise = float(F.cross_entropy(after, label)) - losses[-1]
        scores.append(rise if criterion == "loss" else float((after - before).square().sum()))
    top = sorted(range(len(scores)), key=lambda i: -scores[i])[:retrieved]
    method = Mir(search=3, criterion=criterion, virtual_lr=0.5)
    value = method.loss(net, new, (drawn,), {}).value - method.loss(net, new, (), {}).value
    assert value.item() == pytest.approx(sum(losses[i] for i in top) / retrieved, abs=1e-4)


def test_the_virtual_step_leaves_no_trace():
    net = build("convnet", (1, 6, 6), 6, seed=0).train()
    before = copy.deepcopy(net.state_dict())
    gradients = [torch.ones_like(p) for p in net.parameters()]
    scores = Mir().interference(net, gradients, some(10, 0))
    assert not scores.requires_grad
    assert float(scores.abs().min()) > 0
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_weight_of_zero_is_retrieved_in_vain():
    drawn = some(4, 0)
    nothing = Batch(drawn.views, drawn.labels, drawn.logits, torch.zeros(4))
    net, new = build("mlp", (1, 6, 6), 6, seed=0), some(8, 1)
    assert Mir(search=2).loss(net, new, (nothing,), {}).value == Mir().loss(net, new, (), {}).value


def test_no_example_is_retrieved_twice(monkeypatch):
    """Memory has 12 rows, 20 are asked for, 5 of them retrieved."""
    scenario, policy, seen = make_scenario(n_per_class=20), Policy(buffer=12, replay_batch=5), []
    loss = Mir.loss

    def watched(self, net, new, replay, extras):
        if replay:
            (drawn,) = replay
            different = {tuple(image.flatten().tolist()) for image in drawn.images[drawn.weights > 0]}
            seen.append((len(different), int((drawn.weights > 0).sum())))
        return loss(self, net, new, replay, extras)

    monkeypatch.setattr(Mir, "loss", watched)
    train(scenario, "mlp", Mir(search=4), policy, Training(epochs=1, lr=0.05, batch=8), 0)
    assert seen[0][1] == 8  # of the first batch
    assert seen[-1][1] == 12
    assert all(different == counted for different, counted in seen)
