import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcr.select import class_budgets
from gcr.select.coreset import task_budgets


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
