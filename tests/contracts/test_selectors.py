"""What holds for every selector."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.select import SELECTORS, Pool

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
def test_rows_are_unique_and_as_many_as_asked(selector, n, n_classes, budget, seed):
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
def test_it_needs_no_columns_but_those_it_names(selector):
    pool, draws = make_pool(30, 3, seed=2)
    bare = Pool(pool.labels, pool.weights, **{name: getattr(pool, name) for name in selector.needs})
    assert torch.equal(selector()(bare, 10, draws).rows, selector()(pool, 10, draws).rows)


@every_selector
def test_names_and_help(selector):
    assert selector.name == selector.name.lower()
    assert 10 < len(selector.summary) < 100
