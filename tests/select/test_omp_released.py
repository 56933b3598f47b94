"""Matching as the released code has it, against the same in NumPy on explicit gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gcr.experiments.experiment import compose
from gcr.select import GradApprox
from gcr.select.batched_problems import Problems
from gcr.select.coreset import Pool
from gcr.select.omp_released import Dropping
from gcr.settings import BadInput


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
