import pytest
import torch

from gcr.select.coreset import Pool
from gcr.select.ocs import Ocs, criteria


def cosine(a, b):
    lengths = (a.norm() * b.norm()).item()
    return (a @ b).item() / lengths if lengths > 0 else 0.0


def plain_criteria(pool):
    """Definitions 1 to 3 of the paper, on gradients written out."""
    inputs = torch.cat([pool.features, torch.ones(len(pool), 1)], 1).double()
    g = torch.einsum("nc,nf->ncf", pool.residuals.double(), inputs).flatten(1)
    kept = g[pool.kept] if pool.kept is not None and pool.kept.any() else None
    n = len(pool)
    similarity = [cosine(g[b], g.mean(0)) for b in range(n)]
    diversity = [-sum(cosine(g[b], g[p]) for p in range(n) if p != b) / max(n - 1, 1) for b in range(n)]
    affinity = [0.0 if kept is None else cosine(g[b], kept.mean(0)) for b in range(n)]
    return similarity, diversity, affinity


def random_pool(n, seed, kept=True, classes=3):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        labels=torch.randint(classes, (n,), generator=g),
        weights=torch.rand(n, generator=g),
        features=torch.randn(n, 4, generator=g),
        residuals=torch.randn(n, classes, generator=g),
        kept=torch.rand(n, generator=g) < 0.4 if kept else None,
    )


def one_class(residuals, kept=None):
    n = len(residuals)
    return Pool(torch.zeros(n).long(), torch.ones(n), torch.zeros(n, 1), residuals, kept)


@pytest.mark.parametrize("seed", range(10))
def test_criteria_are_those_of_the_paper(seed):
    pool = random_pool(12, seed, kept=seed % 2 == 0)
    for found, expected in zip(criteria(pool), plain_criteria(pool), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("criterion", ["similarity", "diversity", "affinity"])
@pytest.mark.parametrize("seed", range(5))
def test_one_criterion_alone_is_the_ranking_by_it(criterion, seed):
    pool = random_pool(24, seed)
    pool = Pool(torch.zeros(24).long(), pool.weights, pool.features, pool.residuals, pool.kept)
    names = ("similarity", "diversity", "affinity")
    value = plain_criteria(pool)[names.index(criterion)]
    alone = Ocs(**{name: float(name == criterion) for name in names})
    best = sorted(range(24), key=lambda row: -value[row])[:7]
    assert alone(pool, 7, torch.zeros(24)).rows.tolist() == sorted(best)


@pytest.mark.parametrize("tau", [0.0, 1.0, 1000.0])
def test_rows_are_the_best_of_each_class_by_the_sum(tau):
    pool = random_pool(30, 1)
    value = [s + v + tau * a for s, v, a in zip(*plain_criteria(pool), strict=True)]
    expected = []
    for label in range(3):  # 9 rows among 3 classes that all have more than 3
        rows = [row for row in range(30) if pool.labels[row] == label]
        expected += sorted(rows, key=lambda row: -value[row])[:3]
    assert Ocs(affinity=tau)(pool, 9, torch.zeros(30)).rows.tolist() == sorted(expected)


def test_by_hand():
    """Three gradients along x and one along y: x stands for the pool, y is the diverse one, kept decides affinity."""
    residuals = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pool = one_class(residuals, kept=torch.tensor([False, False, False, True]))
    similarity, diversity, affinity = criteria(pool)
    root = 10**0.5
    torch.testing.assert_close(similarity, torch.tensor([3, 3, 3, 1], dtype=torch.float64) / root)
    torch.testing.assert_close(diversity, -torch.tensor([2, 2, 2, 0], dtype=torch.float64) / 3)
    assert affinity.tolist() == [0, 0, 0, 1]
    draws = torch.zeros(4)
    assert Ocs(diversity=0, affinity=0)(pool, 1, draws).rows.tolist() == [0]
    assert Ocs(similarity=0, affinity=0)(pool, 1, draws).rows.tolist() == [3]
    assert Ocs(similarity=0, diversity=0)(pool, 1, draws).rows.tolist() == [3]


def test_nothing_kept_means_no_affinity():
    pool = random_pool(20, 2, kept=False)
    none_kept = Pool(pool.labels, pool.weights, pool.features, pool.residuals, torch.zeros(20, dtype=torch.bool))
    draws = torch.zeros(20)
    assert torch.equal(Ocs()(pool, 6, draws).rows, Ocs(affinity=0)(pool, 6, draws).rows)
    assert torch.equal(Ocs()(none_kept, 6, draws).rows, Ocs(affinity=0)(pool, 6, draws).rows)


def test_zero_gradients_have_cosine_zero():
    pool = one_class(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), kept=torch.tensor([True, False, False]))
    similarity, diversity, affinity = criteria(pool)
    assert similarity.tolist() == [0, 1, 1]
    assert diversity.tolist() == [0, -0.5, -0.5]
    assert affinity.tolist() == [0, 0, 0]
    assert Ocs()(one_class(torch.zeros(4, 2)), 2, torch.zeros(4)).rows.tolist() == [0, 1]


def test_gradients_that_cancel_have_no_mean_to_resemble():
    similarity, diversity, _ = criteria(one_class(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    assert similarity.tolist() == [0, 0]
    assert diversity.tolist() == [1, 1]


def test_duplicates_one_row_and_few_places():
    draws = torch.zeros(5)
    assert Ocs()(one_class(torch.ones(5, 2)), 3, draws).rows.tolist() == [0, 1, 2]
    chosen = Ocs()(one_class(torch.ones(1, 2)), 3, draws[:1])
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == [1.0]
    three_classes = Pool(torch.arange(3), torch.ones(3), torch.zeros(3, 1), torch.eye(3))
    assert Ocs()(three_classes, 2, draws[:3]).rows.tolist() == [0, 1]
