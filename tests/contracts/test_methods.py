"""What holds for every method, under every policy that can serve it, and for every selector."""

import json
from functools import cache

import pytest
import torch
from conftest import make_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from named import Training, new_run, train

from gcr.experiments.experiment import Experiment, compose, owners_of
from gcr.memory import POLICIES, Policy
from gcr.methods import METHODS
from gcr.select import SELECTORS, Pool
from gcr.settings import setting_names
from gcr.training import Checkpoints, How, Stopped

PAIRS = [(method, policy) for method in METHODS for policy in (POLICIES if method().replays else POLICIES[:1])]
# Every method with its own policy, and every policy under GCR: for what takes several runs.
CORE = [(m, p) for m, p in PAIRS if p.name == m.default_selector or m.name == "gcr"]
core_pairs = pytest.mark.parametrize(("method", "policy"), CORE, ids=[f"{m.name}+{p.name}" for m, p in CORE])
# Of the others the quick tests have every third: some policies for each method, and some methods for each policy.
every_pair = pytest.mark.parametrize(
    ("method", "policy"),
    [
        pytest.param(*pair, id="+".join(part.name for part in pair), marks=[pytest.mark.slow] * later)
        for number, pair in enumerate(PAIRS)
        for later in [pair not in CORE and number % 3 > 0]
    ],
)
every_method = pytest.mark.parametrize("method", METHODS, ids=[m.name for m in METHODS])


QUICK = {"gdumb": {"fitting_epochs": 2}}  # after each task; its default of 64 takes most of the time here


def made(method):
    return method(**QUICK.get(method.name, {}))


def run(method, policy, sampling="coin", seed=0, model="convnet", epochs=2):
    memory = Policy(buffer=12, selector=policy(), sampling=sampling, replay_batch=8)
    training = Training(epochs=epochs, lr=0.05, batch=8)
    return train(make_scenario(), model, made(method), memory, training, seed)


@cache
def once(method, policy):
    """The same run for all tests that only look at it. A small and short one where none compares it with another."""
    return run(method, policy) if (method, policy) in CORE else run(method, policy, model="mlp", epochs=1)


@every_pair
def test_tiny_run(method, policy):
    outcome = once(method, policy)
    assert all(torch.isfinite(p).all() for p in outcome.state.net.parameters())
    assert 0 <= outcome.class_il["accuracy"] <= outcome.task_il["accuracy"] <= 100
    if method().replays:
        assert int(outcome.state.memory.kept) == 12


@core_pairs
def test_tiny_run_with_the_other_sampling(method, policy):
    assert 0 <= run(method, policy, "split", model="mlp").class_il["accuracy"] <= 100


@every_method
def test_another_seed_gives_other_bits(method):
    policy = next(policy for each, policy in CORE if each is method)
    nets = [run(method, policy, seed=seed, model="mlp").state.net for seed in (0, 1)]
    assert not torch.equal(nets[0].head.weight, nets[1].head.weight)


@core_pairs
def test_the_same_experiment_gives_the_same_bits_in_one_piece_or_three(method, policy, tmp_path):
    """Stopped within the first stage's epochs, and in the middle of the second's."""
    whole = once(method, policy)

    def part(stop):
        memory = Policy(buffer=12, selector=policy(), replay_batch=8)
        training = Training(epochs=2, lr=0.05, batch=8)
        saved = Checkpoints(tmp_path, {"a": 1})
        parts = "convnet", made(method), memory, training, 0, How()
        return new_run(make_scenario(), *parts, checkpoints=saved, stop=stop)

    first = part(lambda: first.state.steps == 3)
    with pytest.raises(Stopped):
        list(first.advance())
    second = part(lambda: second.state.steps == 11)
    assert second.state.steps == 3
    with pytest.raises(Stopped):
        list(second.advance())
    third = part(lambda: False)
    assert third.state.steps == 11
    list(third.advance())
    outcome = third.outcome()
    assert (outcome.class_il, outcome.task_il) == (whole.class_il, whole.task_il)
    assert json.dumps(outcome.state.selections) == json.dumps(whole.state.selections)
    for (name, ours), (_, theirs) in zip(outcome.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name


def test_json_both_ways():
    for method, policy in PAIRS:
        experiment = compose("seq-digits", method.name, seed=3, selector=policy.name if method().replays else None)
        assert Experiment.from_json(experiment.to_json()) == experiment, (method.name, policy.name)


@every_method
def test_names_and_help(method):
    assert method.name == method.name.lower()
    assert 10 < len(method.summary) < 100
    assert hash(method()) == hash(method())


def test_plain_names_of_settings_have_one_owner():
    for method, policy in PAIRS:
        names = [name for part in owners_of(method, policy).values() for name in setting_names(part)]
        assert len(set(names)) == len(names), (method.name, policy.name)


every_selector = pytest.mark.parametrize("selector", SELECTORS, ids=[s.name for s in SELECTORS])


def make_pool(n, n_classes, seed):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        labels=torch.randint(n_classes, (n,), generator=g),
        weights=torch.rand(n, generator=g) + 0.1,
        features=torch.randn(n, 4, generator=g),
        residuals=torch.randn(n, n_classes, generator=g),
        kept=torch.rand(n, generator=g) < 0.5,
        reducible=torch.randn(n, generator=g),
    ), torch.rand(n, generator=g, dtype=torch.float64)


@every_selector
@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), n_classes=st.integers(1, 5), budget=st.integers(1, 45), seed=st.integers(0, 1000))
def test_rows_of_a_selector_are_unique_and_as_many_as_asked(selector, n, n_classes, budget, seed):
    pool, draws = make_pool(n, n_classes, seed)
    chosen = selector()(pool, budget, draws)
    rows = chosen.rows.tolist()
    assert len(rows) == min(n, budget)
    assert sorted(rows) == sorted(set(rows))
    assert rows == sorted(rows) or selector.name in ("herding", "typicality")  # given in the order of choice
    assert all(0 <= row < n for row in rows)
    assert chosen.weights.shape == chosen.rows.shape
    assert chosen.weights.dtype == pool.weights.dtype
    assert bool((chosen.weights > 0).all())
    assert bool(torch.isfinite(chosen.weights).all())


@every_selector
def test_the_same_pool_and_draws_give_the_same_rows(selector):
    pool, draws = make_pool(30, 3, seed=1)
    first, second = selector()(pool, 10, draws), selector()(pool, 10, draws)
    assert torch.equal(first.rows, second.rows)
    assert torch.equal(first.weights, second.weights)


@every_selector
def test_a_selector_needs_no_columns_but_those_it_names(selector):
    pool, draws = make_pool(30, 3, seed=2)
    bare = Pool(pool.labels, pool.weights, **{name: getattr(pool, name) for name in selector.needs})
    assert torch.equal(selector()(bare, 10, draws).rows, selector()(pool, 10, draws).rows)


@every_selector
def test_names_and_help_of_selectors(selector):
    assert selector.name == selector.name.lower()
    assert 10 < len(selector.summary) < 100
