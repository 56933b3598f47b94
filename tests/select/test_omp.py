"""Batched matching pursuit against the textbook algorithm with scipy's NNLS inside."""

import numpy as np
import pytest
import torch
from reference.matching_pursuit import matching_pursuit as textbook
from reference.matching_pursuit import objective

from gcr.select import omp, omp_factors
from gcr.select.batched_problems import Problems
from gcr.select.swap import replace_rows


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
