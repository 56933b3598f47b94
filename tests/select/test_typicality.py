"""Typical rows against a plain version that chooses them one after another."""

import math

import pytest
import torch

from gcr.select import Pool, Typicality
from gcr.select.typicality import pace, typical_rows


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
