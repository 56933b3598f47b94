from itertools import combinations

import pytest
import torch

from gcr.select.coreset import Pool
from gcr.select.k_centre import KCentre, farthest_first


def plain_walk(features, picks):
    """Farthest-first, a row at a time."""
    rows = list(features.double())
    mean = sum(rows) / len(rows)
    chosen = [min(range(len(rows)), key=lambda i: (rows[i] - mean).norm().item())]
    while len(chosen) < picks:
        far = {i: min((rows[i] - rows[c]).norm().item() for c in chosen) for i in range(len(rows)) if i not in chosen}
        chosen.append(max(far, key=far.get))
    return chosen


def radius(features, centres):
    return torch.cdist(features, features[list(centres)]).amin(1).amax().item()


def pool_of(features, labels=None):
    n = len(features)
    return Pool(labels=torch.zeros(n).long() if labels is None else labels, weights=torch.ones(n), features=features)


@pytest.mark.parametrize("seed", range(20))
def test_order_is_that_of_the_plain_walk(seed):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(15, 4, generator=g, dtype=torch.float64)
    picks = int(torch.randint(1, 16, (1,), generator=g))
    assert farthest_first(features, picks).tolist() == plain_walk(features, picks)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_radius_is_at_most_twice_the_best(seed, k):
    features = torch.randn(10, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    best = min(radius(features, centres) for centres in combinations(range(10), k))
    assert radius(features, farthest_first(features, k).tolist()) <= 2 * best + 1e-12


def test_every_class_is_covered_alone():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(20, 3, generator=g), torch.arange(20) % 2 * 5
    expected = []
    for label, share in ((0, 4), (5, 3)):
        rows = torch.nonzero(labels == label).flatten()
        expected += rows[plain_walk(features[rows], share)].tolist()
    assert KCentre()(pool_of(features, labels), 7, torch.rand(20, generator=g)).rows.tolist() == sorted(expected)


def test_one_row_of_each_clump():
    features = torch.tensor([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1]])
    rows = KCentre()(pool_of(features), 3, torch.zeros(6)).rows
    assert (rows // 2).tolist() == [0, 1, 2]


def test_duplicates_come_last_and_lowest_row_first():
    features = torch.tensor([[1.0], [1.0], [1.0], [4.0]])
    assert KCentre()(pool_of(features), 2, torch.zeros(4)).rows.tolist() == [0, 3]
    assert KCentre()(pool_of(features), 3, torch.zeros(4)).rows.tolist() == [0, 1, 3]


def test_one_row_and_a_budget_beyond_the_pool():
    chosen = KCentre()(pool_of(torch.zeros(1, 2)), 9, torch.zeros(1))
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == [1.0]


def test_a_budget_below_the_number_of_classes():
    assert KCentre()(pool_of(torch.eye(3), torch.arange(3)), 2, torch.zeros(3)).rows.tolist() == [0, 1]
