"""``gcr.select_coreset``: bad input, kinds of arrays, and properties that hold for every problem; budgets;
``explain``."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gcr
import gcr.select.matching as match
from gcr.select import Coreset, GradApprox, Pool, class_budgets, explain
from gcr.select.coreset import task_budgets
from gcr.settings import BadInput


def random_rows(n=30, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) + 0.3


def objective(rows, old, chosen, ridge):
    new = np.zeros(len(rows))
    new[chosen.rows] = chosen.weights
    return np.sum((rows.T @ (old - new)) ** 2) + ridge * np.sum(chosen.weights**2)


def test_numpy_in_numpy_out():
    chosen = gcr.select_coreset(random_rows(), 7)
    assert isinstance(chosen.rows, np.ndarray)
    assert chosen.rows.dtype == np.int64
    assert chosen.weights.dtype == np.float64
    assert len(chosen.rows) == 7


def test_torch_in_torch_out():
    chosen = gcr.select_coreset(torch.from_numpy(random_rows()).float(), 7, labels=torch.arange(30) % 3)
    assert isinstance(chosen.rows, torch.Tensor)
    assert chosen.weights.dtype == torch.float32
    assert torch.bincount(chosen.rows % 3).tolist() == [3, 2, 2]


def test_numpy_and_torch_agree():
    rows = random_rows()
    ours, theirs = gcr.select_coreset(rows, 9, ridge=0.1), gcr.select_coreset(torch.from_numpy(rows), 9, ridge=0.1)
    assert ours.rows.tolist() == theirs.rows.tolist()
    assert ours.weights.tolist() == theirs.weights.tolist()


def test_factors_give_the_same_as_the_long_vectors():
    rng = np.random.default_rng(1)
    features, residuals, labels = rng.normal(size=(40, 5)), rng.normal(size=(40, 4)), np.arange(40) % 4
    factors = gcr.LastLayerGradients(features, residuals)
    long = np.einsum("nc,nf->ncf", residuals, np.hstack([features, np.ones((40, 1))])).reshape(40, -1)
    for groups in (None, labels):
        ours, theirs = gcr.select_coreset(factors, 12, labels=groups), gcr.select_coreset(long, 12, labels=groups)
        assert ours.rows.tolist() == theirs.rows.tolist()
        np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-9)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(kind):
    rows = torch.from_numpy(random_rows()).to(kind)
    ours, theirs = gcr.select_coreset(rows, 7), gcr.select_coreset(rows.double(), 7)
    assert ours.rows.tolist() == theirs.rows.tolist()
    assert ours.weights.dtype == torch.float32


def test_numpy_float16():
    chosen = gcr.select_coreset(random_rows().astype(np.float16), 7)
    assert chosen.weights.dtype == np.float32


def test_all_zero_gradients_fall_back_to_class_balanced():
    chosen = gcr.select_coreset(np.zeros((9, 4)), 6, labels=[0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert chosen.rows.tolist() == [0, 1, 3, 4, 6, 7]
    assert chosen.weights.tolist() == [1.0] * 6
    assert "no gradient" in chosen.note


def test_a_class_with_fewer_rows_than_its_share_hands_the_rest_on():
    chosen = gcr.select_coreset(random_rows(10), 8, labels=[0] + [1] * 9)
    assert len(chosen.rows) == 8
    assert 0 in chosen.rows.tolist()


def test_top_up_is_said():
    rows = np.array([[2.0], [-1.0], [-1.0]])
    chosen = gcr.select_coreset(rows, 2, weights=[4.0, 1.0, 2.0], ridge=0.0)
    assert chosen.rows.tolist() == [0, 1]
    assert chosen.note == "1 of 2 rows topped up"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradients": [[1.0], [np.nan], [np.inf]], "budget": 1}, "NaN or infinity in 2 of 3 rows: 1, 2"),
        ({"gradients": [1.0, 2.0], "budget": 1}, "gradients must be a matrix"),
        ({"gradients": np.zeros((0, 3)), "budget": 1}, "at least one row"),
        ({"budget": 0}, "budget must be a whole number from 1 to 30, the number of rows, got 0"),
        ({"budget": 31}, "got 31"),
        ({"budget": 2.5}, "got 2.5"),
        ({"budget": float("nan")}, "budget must be a whole number"),
        ({"budget": None}, "budget must be a whole number"),
        ({"budget": 2, "replace": 1.5}, "replace must be a whole number"),
        ({"budget": 2, "ridge": "much"}, "ridge must be a number"),
        ({"budget": 2, "labels": ["a"] * 30}, "labels must be an array of numbers"),
        ({"gradients": np.ones((3, 2)) * 1j, "budget": 1}, "gradients must be real numbers"),
        ({"gradients": np.full((3, 2), 1e160), "budget": 1}, "scale them down"),
        ({"budget": 2, "weights": -np.ones(30)}, "weights must be >= 0 and finite, got -1.0 in row 0"),
        ({"budget": 2, "weights": np.ones(3)}, "weights must be one per row (30), got shape (3,)"),
        ({"budget": 2, "labels": np.zeros(29, int)}, "labels must be one per row (30), got shape (29,)"),
        ({"budget": 2, "labels": np.zeros(30)}, "labels must be whole numbers"),
        ({"budget": 2, "ridge": -1.0}, "ridge must be a number, >= 0 and finite, got -1.0"),
        ({"budget": 2, "tolerance": float("nan")}, "tolerance must be a number, >= 0 and finite"),
        (
            {"gradients": gcr.LastLayerGradients(np.zeros((3, 2)), np.zeros((4, 2))), "budget": 1},
            "features and residuals must have equally many rows, got 3 and 4",
        ),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(BadInput) as caught:
        gcr.select_coreset(**({"gradients": random_rows()} | arguments))
    assert message in str(caught.value)


problems = st.tuples(st.integers(2, 25), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from([0.01, 0.5, 3.0]))


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(1, 25), st.booleans())
def test_rows_are_unique_weights_positive_and_the_budget_spent(problem, budget, by_class):
    n, d, seed, ridge = problem
    assume(budget <= n)
    labels = np.random.default_rng(seed).integers(0, 3, n) if by_class else None
    chosen = gcr.select_coreset(random_rows(n, d, seed), budget, labels=labels, ridge=ridge)
    assert len(set(chosen.rows.tolist())) == len(chosen.rows) == budget
    assert (chosen.weights > 0).all()


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(1, 25), st.randoms())
def test_permuting_the_pool_permutes_the_answer(problem, budget, random):
    n, d, seed, ridge = problem
    assume(budget <= n)
    rows, order = random_rows(n, d, seed), list(range(n))
    random.shuffle(order)
    plain, shuffled = (
        gcr.select_coreset(rows, budget, ridge=ridge),
        gcr.select_coreset(rows[order], budget, ridge=ridge),
    )
    back = {order[row]: weight for row, weight in zip(shuffled.rows, shuffled.weights, strict=True)}
    assert sorted(back) == plain.rows.tolist()
    np.testing.assert_allclose([back[row] for row in plain.rows], plain.weights, rtol=1e-6, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(1, 25), st.floats(1e-3, 1e3))
def test_scaling_gradients_ridge_and_tolerance_together_changes_nothing(problem, budget, c):
    n, d, seed, ridge = problem
    assume(budget <= n)
    rows = random_rows(n, d, seed)
    plain = gcr.select_coreset(rows, budget, ridge=ridge, tolerance=0.01)
    scaled = gcr.select_coreset(c * rows, budget, ridge=c * c * ridge, tolerance=c * c * 0.01)
    assert plain.rows.tolist() == scaled.rows.tolist()
    np.testing.assert_allclose(plain.weights, scaled.weights, rtol=1e-6, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_a_budget_for_all_leaves_the_ridge_only(problem):
    n, d, seed, ridge = problem
    rows, old = random_rows(n, d, seed), np.random.default_rng(seed).random(n)
    chosen = gcr.select_coreset(rows, n, weights=old, ridge=ridge)
    assert objective(rows, old, chosen, ridge) <= ridge * np.sum(chosen.weights**2) * (1 + 1e-9) + 1e-9


def test_gram_matrices_and_factors_give_the_same_answer(monkeypatch):
    """Classes of 60 rows and 34 numbers go by Gram matrix; without room for one, by their factors."""
    rng = np.random.default_rng(0)
    factors, labels = gcr.LastLayerGradients(rng.random((180, 33)), rng.normal(size=(180, 3))), np.arange(180) % 3
    used = []
    for name in ("omp", "omp_factors"):
        solver = getattr(match, name)
        monkeypatch.setattr(match, name, SimpleNamespace(matching_pursuit=partial(spy, used, name, solver)))
    by_gram = gcr.select_coreset(factors, 40, labels=labels)
    monkeypatch.setattr(match, "BATCH_BYTES", 0)
    by_factors = gcr.select_coreset(factors, 40, labels=labels)
    assert used == ["omp"] + ["omp_factors"] * 3
    assert by_gram.rows.tolist() == by_factors.rows.tolist()
    np.testing.assert_allclose(by_gram.weights, by_factors.weights, rtol=1e-7)


def spy(used, name, solver, *arguments):
    used.append(name)
    return solver.matching_pursuit(*arguments)


def test_the_budget_is_spent_where_rounding_bites():
    """Nearly no ridge and an early stop: weights may round below zero, and their places must be filled."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(41, 3)) @ rng.normal(size=(3, 27))
        chosen = gcr.select_coreset(rows, 40, labels=np.arange(41) % 3, ridge=1e-15, tolerance=1.0 if seed % 2 else 0.0)
        assert len(chosen.rows) == 40
        assert (chosen.weights > 0).all()


def test_replacement_never_raises_the_objective_even_nearly_without_ridge():
    for seed in range(100):
        rows = random_rows(30, 12, seed)
        plain, refined = (gcr.select_coreset(rows, 10, ridge=1e-9, replace=r) for r in (0, 3))
        assert objective(rows, np.ones(30), refined, 1e-9) <= objective(rows, np.ones(30), plain, 1e-9) * (1 + 1e-6)


def test_a_numpy_view_backwards():
    rows = random_rows()
    assert gcr.select_coreset(rows[::-1], 5).rows.tolist() == gcr.select_coreset(rows[::-1].copy(), 5).rows.tolist()


def test_gradients_that_carry_a_graph():
    chosen = gcr.select_coreset(torch.rand(9, 3, requires_grad=True), 4)
    assert not chosen.weights.requires_grad


@pytest.mark.parametrize(
    ("options", "shape", "calls"),
    [
        ({}, (3000, 600), 3),
        ({"labels": torch.arange(3000) % 3}, (3000, 99), 10),
        ({"labels": torch.arange(60) % 3}, (60, 600), 1),
        ({"keep": [5, 7]}, (300, 600), 2),
        ({"cost": torch.rand(300, generator=torch.Generator().manual_seed(2)) + 0.5}, (300, 600), 2),
        ({"target": [torch.ones(600), -torch.ones(600)]}, (300, 600), 2),
    ],
    ids=["blocks", "factors", "gram", "keep", "cost", "targets"],
)
def test_progress_goes_up_to_the_budget_and_changes_nothing(options, shape, calls):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    seen = []
    chosen = gcr.select_coreset(made, 50, **options, progress=lambda *done: seen.append(done))
    assert seen[-1] == (50, 50)
    assert all(0 <= done <= 50 == budget for done, budget in seen)
    assert len(seen) >= calls
    again = gcr.select_coreset(made, 50, **options)
    assert torch.equal(chosen.rows, again.rows)
    assert torch.equal(chosen.weights, again.weights)
    with pytest.raises(BadInput, match="progress must be a function of what is done and the budget, got True"):
        gcr.select_coreset(made, 50, **options, progress=True)


# --- Budgets of classes and tasks


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 100))
def test_budgets_fill_the_buffer_and_never_ask_too_much(counts, budget):
    shares = class_budgets(counts, budget)
    assert sum(shares) == min(budget, sum(counts))
    assert all(0 <= share <= count for share, count in zip(shares, counts, strict=True))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 100))
def test_budgets_equal_dealing_one_place_at_a_time(counts, budget):
    shares, left = [0] * len(counts), min(budget, sum(counts))
    while left:
        for c, count in enumerate(counts):
            if left and shares[c] < count:
                shares[c] += 1
                left -= 1
    assert class_budgets(counts, budget) == shares


@pytest.mark.parametrize(
    ("counts", "budget", "shares"),
    [([50, 50], 100, [50, 50]), ([9, 9, 9], 10, [4, 3, 3]), ([3, 10, 10], 11, [3, 4, 4]), ([2, 2], 100, [2, 2])],
)
def test_budgets_by_hand(counts, budget, shares):
    assert class_budgets(counts, budget) == shares


def test_task_budgets_are_equal_for_tasks_and_proportional_inside():
    labels = torch.tensor([3] * 30 + [1] * 10 + [0] * 7 + [2] * 33)
    tasks = torch.tensor([0] * 40 + [1] * 40)
    assert task_budgets(labels, tasks, 40) == [4, 5, 16, 15]  # classes 0, 1, 2, 3
    assert sum(task_budgets(labels, tasks, 33)) == 33
    assert task_budgets(labels, tasks, 80) == [7, 10, 33, 30]


# --- What `explain` says of a coreset


def pool(seed=0):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        torch.arange(60) % 3,
        torch.rand(60, generator=g) + 0.5,
        torch.randn(60, 5, generator=g),
        torch.randn(60, 3, generator=g),
    )


def test_numbers_by_hand():
    made = Pool(torch.tensor([0, 0, 1]), torch.ones(3), torch.zeros(3, 1), torch.tensor([[3.0], [1.0], [5.0]]))
    report = explain(Coreset(torch.tensor([0, 2]), torch.tensor([1.0, 3.0])), made)
    assert report.gradient_error == pytest.approx((1**2 + 10**2) ** 0.5)  # 3 + 1 - 3, and 5 - 3 * 5
    assert report.gradient_length == pytest.approx((4**2 + 5**2) ** 0.5)
    assert (report.total_weight, report.smallest_weight, report.largest_weight) == (4.0, 1.0, 3.0)
    assert report.effective_size == pytest.approx(16 / 10)
    assert report.per_class == {0: 1, 1: 1}


def test_everything_kept_has_no_error():
    report = explain(Coreset(torch.arange(60), pool().weights), pool())
    assert report.gradient_error == pytest.approx(0, abs=1e-4)
    assert report.per_class == {0: 20, 1: 20, 2: 20}


def test_grad_approx_beats_chance():
    assert explain(GradApprox()(pool(), 15, torch.zeros(60)), pool()).relative_to_uniform < 0.5


def test_without_classes_the_error_is_that_of_the_whole_pool():
    made = Pool(torch.tensor([0, 1]), torch.ones(2), torch.zeros(2, 1), torch.tensor([[1.0], [1.0]]))
    chosen = Coreset(torch.tensor([0]), torch.tensor([2.0]))
    assert explain(chosen, made, by_class=False).gradient_error == pytest.approx(0)
    assert explain(chosen, made).gradient_error == pytest.approx(2**0.5)
    assert explain(chosen, made, by_class=False).per_class == {0: 1, 1: 0}


def test_a_pool_without_gradients_is_refused():
    with pytest.raises(BadInput, match="features and residuals"):
        explain(Coreset(torch.tensor([0]), torch.ones(1)), Pool(torch.tensor([0]), torch.ones(1)))
