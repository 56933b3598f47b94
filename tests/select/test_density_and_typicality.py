"""Rows by density of features, and typical rows, against plain versions."""

import math

import pytest
import torch
from scipy.stats import multivariate_normal

from gcr.select import Pool, Typicality
from gcr.select.density import Density, Mixture, fit, log_density, project
from gcr.select.typicality import pace, typical_rows

# --- Density


def normal(n, *shape, seed=0):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_class(features):
    return Pool(torch.zeros(len(features)).long(), torch.ones(len(features)), features)


def test_log_density_is_that_of_scipy():
    points, shares = normal(7, 3), torch.tensor([0.3, 0.7], dtype=torch.float64)
    means = normal(2, 3, seed=1)
    roots = normal(2, 3, 3, seed=2)
    covariances = roots @ roots.mT + torch.eye(3, dtype=torch.float64)
    found = log_density(points, Mixture(shares.log(), means, torch.linalg.cholesky(covariances)))
    for i in range(7):
        parts = [
            float(shares[k]) * multivariate_normal(means[k].numpy(), covariances[k].numpy()).pdf(points[i].numpy())
            for k in range(2)
        ]
        assert float(found[i]) == pytest.approx(math.log(sum(parts)))


def test_one_gaussian_is_fitted_in_closed_form():
    points = normal(50, 2)
    shares = torch.full((50,), 1 / 50, dtype=torch.float64)
    mixture = fit(points, shares, components=1, iterations=3, floor=0.0)
    covariance = mixture.factors[0] @ mixture.factors[0].T
    torch.testing.assert_close(mixture.means[0], points.mean(0))
    torch.testing.assert_close(covariance, points.T.cov(correction=0))


def test_em_finds_two_modes():
    left, right = normal(60, 2) * 0.5 - 4, normal(40, 2, seed=1) * 0.5 + 4
    points = torch.cat([left, right])
    mixture = fit(points, torch.full((100,), 0.01, dtype=torch.float64), components=2, iterations=20, floor=1e-6)
    order = mixture.means[:, 0].argsort()
    torch.testing.assert_close(mixture.means[order], torch.stack([left.mean(0), right.mean(0)]), atol=0.05, rtol=0)
    expected = torch.tensor([0.6, 0.4], dtype=torch.float64)
    torch.testing.assert_close(mixture.log_shares[order].exp(), expected, atol=0.01, rtol=0)


def test_weights_count_as_repeated_points():
    points = normal(10, 2)
    counts = torch.tensor([1, 2, 1, 3, 1, 1, 1, 2, 1, 1])
    weighted = project(points, counts.double(), 1)
    repeated = project(points.repeat_interleave(counts, 0), torch.ones(14, dtype=torch.float64), 1)
    torch.testing.assert_close(weighted.repeat_interleave(counts, 0).abs(), repeated.abs())


def test_projection_keeps_the_widest_directions():
    points = normal(200, 3) * torch.tensor([5.0, 0.1, 3.0])
    kept = project(points, torch.ones(200, dtype=torch.float64), 2)
    centred = points - points.mean(0)
    torch.testing.assert_close(kept.square().sum(1), centred[:, [0, 2]].square().sum(1), atol=0.5, rtol=0.1)


def test_of_a_gaussian_class_the_rows_nearest_its_mean_are_kept():
    features = normal(41, 1)
    chosen = Density(components=1)(one_class(features), 9, torch.zeros(41))
    nearest = (features - features.mean()).abs().flatten().argsort()[:9].sort().values
    assert chosen.rows.tolist() == nearest.tolist()


@pytest.mark.parametrize("components", [1, 2, 3, 5])
@pytest.mark.parametrize("outliers", [1, 3])
def test_far_outliers_are_never_chosen(components, outliers):
    modes = torch.cat([normal(40, 4) * 0.3 - 2, normal(40, 4, seed=1) * 0.3 + 2])
    features = torch.cat([40 + 20 * normal(outliers, 4, seed=2).abs(), modes])
    chosen = Density(components=components)(one_class(features), 40, torch.zeros(len(features)))
    assert chosen.rows.min() >= outliers


def test_two_modes_are_both_kept_by_two_components_and_their_middle_by_none():
    modes = torch.cat([normal(40, 2) * 0.3 - 4, normal(40, 2, seed=1) * 0.3 + 4])
    features = torch.cat([modes, torch.zeros(1, 2)])
    chosen = Density(components=2)(one_class(features), 40, torch.zeros(81)).rows
    assert 80 not in chosen.tolist()
    assert 10 <= int((chosen < 40).sum()) <= 30


def test_classes_have_equal_budgets_and_densities_of_their_own():
    features = torch.cat([normal(20, 1), 100 + 9 * normal(20, 1, seed=1)])
    pool = Pool(torch.arange(2).repeat_interleave(20), torch.full((40,), 0.4), features)
    chosen = Density(components=1)(pool, 10, torch.zeros(40))
    assert int((chosen.rows < 20).sum()) == 5
    assert chosen.weights.tolist() == [1.0] * 10


def test_equal_rows_are_taken_lowest_first():
    assert Density()(one_class(torch.ones(9, 3)), 4, torch.zeros(9)).rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("components", [1, 2, 4])
@pytest.mark.parametrize(
    "pool",
    [
        Pool(torch.tensor([4]), torch.ones(1), torch.ones(1, 30)),
        Pool(torch.tensor([4]), torch.zeros(1), torch.zeros(1, 30)),
        Pool(torch.tensor([0, 7, 7, 0]), torch.zeros(4), torch.zeros(4, 30)),
        Pool(torch.tensor([2, 2, 2, 2]), torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.randn(4, 30)),
        Pool(torch.tensor([0, 1, 2, 3]), torch.ones(4), 1e4 * torch.eye(4)),
    ],
    ids=["one row", "one row of nothing", "zero features and weights", "one class", "one row a class"],
)
def test_edge_cases(pool, components):
    for budget in (1, 2, 3, 4):
        chosen = Density(components=components)(pool, budget, torch.zeros(len(pool)))
        assert len(chosen.rows.unique()) == min(budget, len(pool))
        assert chosen.weights.tolist() == [1.0] * len(chosen.rows)


# --- Typicality, against a plain version that chooses rows one after another


def distance(a, b):
    return math.dist(a, b)


def plain_clusters(points, draws, n_clusters):
    centres = [points[i] for i in sorted(range(len(points)), key=lambda i: (draws[i], i))[:n_clusters]]
    for _ in range(21):
        cluster = [min(range(len(centres)), key=lambda c: distance(point, centres[c])) for point in points]
        for c in range(len(centres)):
            members = [point for point, own in zip(points, cluster, strict=True) if own == c]
            if members:
                centres[c] = [sum(column) / len(members) for column in zip(*members, strict=True)]
    return cluster


def plain_rows(points, draws, picks, neighbours):
    chosen, n = [], len(points)
    for size in pace(picks):
        cluster = plain_clusters(points, draws, size if 5 * size < n else max(size // 5, 1))
        clusters = {c: [i for i in range(n) if cluster[i] == c] for c in set(cluster)}

        def spread(i, own):
            q = min(neighbours, len(own) // 2)
            near = sorted(distance(points[i], points[j]) for j in own if j != i)[:q]
            return sum(near) / q if q else math.inf

        while len(chosen) < size:
            free = {c: [i for i in own if i not in chosen] for c, own in clusters.items()}
            best = min(
                (c for c in clusters if free[c]),
                key=lambda c: (len(clusters[c]) <= 5, len(clusters[c]) - len(free[c]), -len(clusters[c]), c),
            )
            chosen.append(min(free[best], key=lambda i: (spread(i, clusters[best]), i)))
    return chosen


@pytest.mark.parametrize("seed", range(12))
def test_order_is_that_of_the_plain_version(seed):
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 70, (1,), generator=g))
    picks = int(torch.randint(1, n + 1, (1,), generator=g))
    neighbours = int(torch.randint(1, 8, (1,), generator=g))
    features = torch.randn(n, 2, generator=g, dtype=torch.float64) + 4 * torch.randint(3, (n, 1), generator=g)
    draws = torch.rand(n, generator=g, dtype=torch.float64)
    expected = plain_rows(features.tolist(), draws.tolist(), picks, neighbours)
    assert typical_rows(features, draws, picks, neighbours).tolist() == expected


def test_every_class_is_chosen_from_alone():
    g = torch.Generator().manual_seed(0)
    features, labels, draws = torch.randn(60, 3, generator=g), torch.arange(60) % 2 * 5, torch.rand(60, generator=g)
    expected = []
    for label, share in ((0, 6), (5, 5)):
        rows = torch.nonzero(labels == label).flatten()
        expected += rows[plain_rows(features[rows].double().tolist(), draws[rows].tolist(), share, 20)].tolist()
    chosen = Typicality()(Pool(labels, torch.ones(60), features), 11, draws)
    assert chosen.rows.tolist() == expected
    assert torch.equal(chosen.weights, torch.ones(11))


def test_clumps_are_covered_before_any_is_taken_from_twice_and_outliers_are_left():
    """Four clumps of 25 and two rows far from all: four rows are one of each clump, from its middle."""
    g = torch.Generator().manual_seed(1)
    middles = torch.tensor([[0.0, 0.0], [30.0, 0.0], [0.0, 30.0], [30.0, 30.0]]).repeat_interleave(25, 0)
    features = torch.cat([middles + torch.randn(100, 2, generator=g), torch.tensor([[500.0, 500.0], [-500.0, 0.0]])])
    draws = torch.rand(102, generator=g)
    draws[[3, 30, 60, 80]] = 0.0  # k-means begins with a row of each clump
    rows = Typicality()(Pool(torch.zeros(102).long(), torch.ones(102), features), 4, draws).rows
    assert sorted((rows // 25).tolist()) == [0, 1, 2, 3]
    assert (features[rows] - middles[rows]).norm(dim=1).max() < 1


def test_a_class_without_candidates_gives_up_the_last_of_its_rows():
    g = torch.Generator().manual_seed(2)
    features, draws = torch.randn(30, 3, generator=g), torch.rand(30, generator=g)
    first = Typicality()(Pool(torch.zeros(30).long(), torch.ones(30), features, kept=torch.zeros(30).bool()), 9, draws)
    kept = Pool(torch.zeros(9).long(), torch.ones(9), features[first.rows], kept=torch.ones(9).bool())
    assert Typicality()(kept, 4, draws[:9]).rows.tolist() == [0, 1, 2, 3]


def test_equal_rows_are_taken_in_their_order():
    pool = Pool(torch.zeros(8).long(), torch.ones(8), torch.ones(8, 2))
    assert Typicality()(pool, 3, torch.rand(8, generator=torch.Generator().manual_seed(3))).rows.tolist() == [0, 1, 2]
