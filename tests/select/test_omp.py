"""Batched matching pursuit against the textbook algorithm with scipy's NNLS inside, and as the released code has it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from reference.gcr_algorithm import matching_pursuit as textbook
from reference.gcr_algorithm import objective

from gcr.experiments.experiment import compose
from gcr.select import GradApprox, omp, omp_factors
from gcr.select.batched_problems import Problems
from gcr.select.coreset import Pool
from gcr.select.omp_released import Dropping
from gcr.select.swap import replace_rows
from gcr.settings import BadInput


def random_problem(seed):
    """Odd seeds have rows that mostly agree; even ones have rows in all directions and targets outside their cone, so
    that many constraints are active."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 40)), int(rng.integers(2, 20))
    rows = rng.normal(size=(n, d)) + (0.5 if seed % 2 else 0.0)
    return (
        rows,
        rng.random(n) if seed % 2 else rng.normal(size=n),
        int(rng.integers(1, n + 1)),
        float(rng.choice([0.01, 0.5, 5.0])),
    )


def padded(problems, dense):
    """Explicit rows and target weights of several problems, as one batch."""
    n = max(len(rows) for rows, _ in problems)
    d = max(rows.shape[1] for rows, _ in problems)
    left, weights = torch.zeros(len(problems), n, d).double(), torch.zeros(len(problems), n).double()
    valid = torch.zeros(len(problems), n).bool()
    for i, (rows, target) in enumerate(problems):
        left[i, : len(rows), : rows.shape[1]] = torch.from_numpy(rows)
        weights[i, : len(rows)] = torch.from_numpy(target)
        valid[i, : len(rows)] = True
    right = valid.double().unsqueeze(2)
    return Problems(left, right, valid, weights, left @ left.transpose(1, 2) if dense else None)


def matching_pursuit(batch, budgets, ridge, tolerance=0.0):
    solver = omp if batch.gram is not None else omp_factors
    return solver.matching_pursuit(batch, budgets, ridge, tolerance)


@pytest.mark.parametrize("dense", [True, False])
def test_two_hundred_problems_equal_the_textbook(dense):
    left_the_support = 0
    for seed in range(200):
        rows, target_weights, budget, ridge = random_problem(seed)
        target = rows.T @ target_weights
        support, expected = textbook(rows, target, budget, ridge)
        weights = matching_pursuit(padded([(rows, target_weights)], dense), torch.tensor([budget]), ridge)[0].numpy()
        assert sorted(np.flatnonzero(weights)) == sorted(support)
        np.testing.assert_allclose(weights, expected, rtol=1e-7, atol=1e-9)
        ours, theirs = objective(rows, target, weights, ridge), objective(rows, target, expected, ridge)
        assert ours <= theirs * (1 + 1e-9) + 1e-12
        left_the_support += len(support) < budget
    assert left_the_support > 50  # constraints were active often enough to matter


@pytest.mark.parametrize("dense", [True, False])
def test_problems_of_any_size_advance_together(dense):
    drawn = [random_problem(seed) for seed in range(40)]
    batch = padded([(rows, target) for rows, target, _, _ in drawn], dense)
    together = matching_pursuit(batch, torch.tensor([budget for _, _, budget, _ in drawn]), ridge=0.5)
    for (rows, target_weights, budget, _), weights in zip(drawn, together, strict=True):
        _, expected = textbook(rows, rows.T @ target_weights, budget, 0.5)
        np.testing.assert_allclose(weights[: len(rows)], expected, rtol=1e-7, atol=1e-9)
        assert float(weights[len(rows) :].abs().sum()) == 0


def test_it_stops_at_the_tolerance():
    rows = np.eye(3)
    batch = padded([(rows, np.array([3.0, 2.0, 1.0]))], dense=True)
    weights = matching_pursuit(batch, torch.tensor([3]), ridge=0.0, tolerance=1.0)
    assert weights[0].tolist() == [3.0, 2.0, 0.0]  # what is left has squared length 1


def test_ties_go_to_the_lowest_row():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    batch = padded([(rows, np.ones(3))], dense=True)
    assert matching_pursuit(batch, torch.tensor([1]), ridge=0.0)[0].tolist() == [2.0, 0.0, 0.0]


def test_dependent_rows_without_ridge():
    """Rank 2: after two rows the target is matched; a third within their span must not break the factor."""
    rng = np.random.default_rng(0)
    rows = rng.random((6, 2)) @ rng.random((2, 5))
    target_weights = rng.random(6)
    weights = matching_pursuit(padded([(rows, target_weights)], True), torch.tensor([5]), ridge=0.0)[0].numpy()
    assert np.isfinite(weights).all()
    assert (
        objective(rows, rows.T @ target_weights, weights, 0.0)
        < 1e-18 * (rows.T @ target_weights).dot(rows.T @ target_weights) + 1e-20
    )


def test_replacing_rows_never_raises_the_objective():
    lowered = 0
    for seed in range(60):
        rows, target_weights, _, ridge = random_problem(seed)
        budget = max(1, len(rows) // 3)
        batch = padded([(rows, target_weights)], dense=seed % 2 == 0)
        greedy = matching_pursuit(batch, torch.tensor([budget]), ridge)
        refined = replace_rows(batch, greedy, ridge, passes=3)
        before, after = (objective(rows, rows.T @ target_weights, w[0].numpy(), ridge) for w in (greedy, refined))
        assert bool((refined >= 0).all())
        assert int((refined > 0).sum()) == int((greedy > 0).sum())
        assert after <= before * (1 + 1e-9) + 1e-12
        lowered += after < before * (1 - 1e-6)
    assert lowered > 15


def test_replacing_finds_the_better_pair():
    """Greedy takes the diagonal first and is stuck with it; the two axes match exactly."""
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.7, 0.7, 0.3]])
    batch = padded([(rows, np.array([1.0, 1.0, 0.0]))], dense=True)
    greedy = matching_pursuit(batch, torch.tensor([2]), 1e-6)
    assert float(greedy[0, 2]) > 0
    assert replace_rows(batch, greedy, 1e-6, passes=1)[0].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-4)


# --- Matching as the released code has it, against the same in NumPy on explicit gradients


def plain_pursuit(gradients, target, budget, ridge):
    """[n, d], [d] -> rows and weights. Also how often a row was dropped."""
    support, fitted, dropped = [], np.zeros(0), 0

    def solve():
        a = gradients[support]
        return np.linalg.lstsq(a @ a.T + ridge * np.eye(len(a)), a @ target, rcond=None)[0]

    while len(support) < budget:
        best = int(np.argmax(gradients @ (target - gradients[support].T @ fitted)))
        if best in support:
            break
        support.append(best)
        fitted = solve()
        while len(support) and min(fitted) < 0:
            support.pop(int(np.argmin(fitted)))
            dropped += 1
            fitted = solve()
    return support, fitted, dropped


@pytest.mark.parametrize("ridge", [0.5, 0.01])
def test_it_is_plain_ridge_regression_that_drops_negative_rows(ridge):
    """Problems of 20 to 25 rows that ask for 10 to 12, all at once."""
    gradients, target_weights = torch.zeros(30, 25, 8).double(), torch.zeros(30, 25).double()
    valid, budgets = torch.arange(25) < 20 + torch.arange(30).unsqueeze(1) % 6, 10 + torch.arange(30) % 3
    for seed, n in enumerate(valid.sum(1)):
        rng = np.random.default_rng(seed)
        gradients[seed, :n] = torch.from_numpy(rng.normal(size=(n, 8)) + rng.normal(size=8))
        target_weights[seed, :n] = torch.from_numpy(rng.uniform(0.1, 2.0, size=n))
    gram = gradients @ gradients.transpose(1, 2)
    problems = Problems(gradients, torch.ones(30, 25, 1).double(), valid, target_weights, gram)
    found = Dropping.start(problems, budgets, ridge).run()

    ended_short = all_dropped = 0
    for ours, rows, weights, inside, budget in zip(found, gradients, target_weights, valid, budgets, strict=True):
        rows, weights = rows[inside].numpy(), weights[inside].numpy()
        support, fitted, dropped = plain_pursuit(rows, rows.T @ weights, int(budget), ridge)
        expected = np.zeros(25)
        expected[support] = fitted
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6)
        ended_short += len(support) < budget
        all_dropped += dropped
    assert ended_short > 0
    assert all_dropped > 0


def some_pool(n=40):
    g = torch.Generator().manual_seed(3)
    labels = torch.arange(n) % 3
    return Pool(
        labels, torch.rand(n, generator=g) + 0.5, torch.randn(n, 2, generator=g), torch.randn(n, 3, generator=g)
    )


def test_what_is_missing_is_drawn_with_weight_one():
    pool, draws = some_pool(), torch.rand(40, generator=torch.Generator().manual_seed(4))
    chosen = GradApprox(negative="dropped")(pool, 30, draws)
    assert len(chosen.rows) == 30
    assert chosen.rows.tolist() == sorted(set(chosen.rows.tolist()))
    topped_up = chosen.rows[chosen.weights == 1.0]
    assert chosen.note == f"{len(topped_up)} of 30 rows topped up at random"
    assert len(topped_up) > 3
    left = sorted(set(range(40)) - set(chosen.rows.tolist()))
    for label in range(3):  # none that was left out had a smaller draw than one that was taken
        taken = [draws[row] for row in topped_up if pool.labels[row] == label]
        assert max(taken, default=0.0) < min(draws[row] for row in left if pool.labels[row] == label)
    assert GradApprox()(pool, 30, draws).note != chosen.note
    unit = GradApprox(negative="dropped", weights="unit")(pool, 30, draws)
    assert torch.equal(unit.rows, chosen.rows)
    assert unit.weights.unique().tolist() == [1.0]


@pytest.mark.parametrize("negative", ["dropped", "excluded"])
def test_atoms_may_be_scaled_by_the_weights_of_before(negative):
    """It is a pool of unit weights whose gradients are that much longer; the new weights stand alone."""
    pool, draws = some_pool(), torch.rand(40, generator=torch.Generator().manual_seed(4))
    longer = replace(pool, weights=torch.ones(40), residuals=pool.residuals * pool.weights.unsqueeze(1))
    chosen = GradApprox(negative=negative, atoms="weighted")(pool, 20, draws)
    same = GradApprox(negative=negative)(longer, 20, draws)
    assert torch.equal(chosen.rows, same.rows)
    assert torch.equal(chosen.weights, same.weights)
    assert not torch.equal(chosen.weights, GradApprox(negative=negative)(pool, 20, draws).weights)


def test_shares_may_go_by_task():
    pool = replace(some_pool(), tasks=torch.arange(40) % 3 // 2)  # classes 0 and 1 are a task, class 2 another
    counts = [
        pool.labels[GradApprox(negative="dropped", shares=shares)(pool, 12, torch.rand(40)).rows].bincount().tolist()
        for shares in ("class", "task")
    ]
    assert counts == [[4, 4, 4], [3, 3, 6]]


@pytest.mark.parametrize("negative", ["excluded", "dropped"])
def test_weighted_atoms_leave_the_weights_of_a_class_that_is_wholly_kept(negative):
    pool = some_pool()
    rare = torch.where(torch.arange(40) < 2, 7, 0)  # rows 0 and 1 are a class, with a share of 10
    chosen = GradApprox(negative=negative, atoms="weighted")(replace(pool, labels=rare), 20, torch.rand(40))
    assert chosen.rows[:2].tolist() == [0, 1]
    assert torch.equal(chosen.weights[:2], pool.weights[:2])


@pytest.mark.parametrize("negative", ["excluded", "dropped"])
def test_shares_by_task_choose_each_task_alone_though_they_have_a_class_in_common(negative):
    pool, draws = replace(some_pool(), tasks=torch.arange(40) // 20), torch.rand(40)
    select = GradApprox(negative=negative, shares="task")
    both = select(pool, 14, draws)
    for rows in torch.arange(40).split(20):
        part = Pool(*(column[rows] for column in (pool.labels, pool.weights, pool.features, pool.residuals)))
        alone = select(replace(part, tasks=pool.tasks[rows]), 7, draws[rows])
        inside = (both.rows >= rows[0]) & (both.rows <= rows[-1])
        assert torch.equal(both.rows[inside], rows[alone.rows])
        torch.testing.assert_close(both.weights[inside], alone.weights)


def test_options_that_change_how_rows_are_found_are_not_for_it():
    with pytest.raises(BadInput, match="trim is not part of the released matching"):
        compose("seq-digits", "gcr", overrides={"negative": "dropped", "trim": 0.1})
