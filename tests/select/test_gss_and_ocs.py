"""GSS and OCS against plain versions on gradients written out."""

from collections import Counter
from itertools import combinations

import pytest
import torch

from gcr.select import Pool
from gcr.select.gss import Gss, random_subsets, seed_of
from gcr.select.ocs import Ocs, criteria
from gcr.settings import BadInput

# --- GSS


def long_gradients(pool):
    """The last-layer gradients written out, scaled to length 1 where they have a length."""
    inputs = torch.cat([pool.features, torch.ones(len(pool), 1)], 1).double()
    gradients = torch.einsum("nc,nf->ncf", pool.residuals.double(), inputs).flatten(1)
    lengths = gradients.norm(dim=1, keepdim=True)
    return gradients / torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def arrivals(pool, draws):
    kept = [False] * len(pool) if pool.kept is None else pool.kept.tolist()
    return sorted(range(len(pool)), key=lambda row: (not kept[row], draws[row].item()))


def plain_greedy(pool, budget, draws, neighbours):
    """Algorithm 2 of the paper, a row at a time. Returns the rows and how many were replaced."""
    gradients, k = long_gradients(pool), min(neighbours, budget)
    generator = torch.Generator().manual_seed(seed_of(draws))
    uniforms = torch.rand(len(pool), k + 2, generator=generator, dtype=torch.float64)
    memory, scores, replaced = [], [], 0
    for row, u in zip(arrivals(pool, draws), uniforms, strict=True):
        subset = random_subsets(torch.tensor([len(memory)]), u[None, :k])[0].tolist()
        cosines = [float(gradients[row] @ gradients[memory[slot]]) for slot in subset if slot >= 0]
        c = 1 + max(cosines, default=0.0)
        if len(memory) < budget:
            memory.append(row)
            scores.append(c)
        elif c < 1:
            threshold, running, slot = u[k].item() * sum(scores), 0.0, -1
            while running <= threshold:
                slot += 1
                running += scores[slot]
            if u[k + 1] < scores[slot] / (scores[slot] + c):
                memory[slot], scores[slot] = row, c
                replaced += 1
    return sorted(memory), replaced


def plain_clusters(pool, budget, draws):
    cosine = long_gradients(pool) @ long_gradients(pool).T
    order = arrivals(pool, draws)
    centres = order[:1]
    while len(centres) < budget:
        nearest = {row: max(cosine[row, c].item() for c in centres) for row in order if row not in centres}
        centres.append(min(nearest, key=nearest.get))
    return sorted(centres)


def random_pool(n, seed, kept=True, features=3, classes=4):
    g = torch.Generator().manual_seed(seed)
    pool = Pool(
        labels=torch.randint(classes, (n,), generator=g),
        weights=torch.ones(n),
        features=torch.randn(n, features, generator=g),
        residuals=torch.randn(n, classes, generator=g),
        kept=torch.rand(n, generator=g) < 0.3 if kept else None,
    )
    return pool, torch.rand(n, generator=g, dtype=torch.float64)


def of_directions(angles, kept=None):
    """Gradients in a plane, at these angles in degrees."""
    radians = torch.deg2rad(torch.tensor(angles, dtype=torch.float64))
    n = len(angles)
    return Pool(
        labels=torch.zeros(n).long(),
        weights=torch.ones(n),
        features=torch.zeros(n, 1),
        residuals=torch.stack([radians.cos(), radians.sin()], 1),
        kept=kept,
    )


def test_greedy_equals_the_row_by_row_algorithm():
    """The rounds of replacements end as the plain loop does; many of these runs replace rows."""
    replacements = 0
    for seed in range(60):
        pool, draws = random_pool(40, seed, kept=seed % 2 == 0, features=1, classes=2 + seed % 3)
        budget, neighbours = 2 + seed % 7, 1 + seed % 4
        expected, replaced = plain_greedy(pool, budget, draws, neighbours)
        assert Gss(neighbours=neighbours)(pool, budget, draws).rows.tolist() == expected
        replacements += replaced
    assert replacements > 100


@pytest.mark.parametrize("seed", range(20))
def test_clustering_equals_the_plain_loop(seed):
    pool, draws = random_pool(25, seed, kept=seed % 2 == 0)
    budget = 1 + seed
    assert Gss(form="clustering")(pool, budget, draws).rows.tolist() == plain_clusters(pool, budget, draws)


def test_a_row_that_resembles_the_memory_does_not_enter_when_it_is_full():
    pool = of_directions([0, 90, 45, 10, 80], kept=torch.tensor([True, True, False, False, False]))
    for seed in range(20):
        draws = torch.rand(5, generator=torch.Generator().manual_seed(seed))
        assert Gss()(pool, 2, draws).rows.tolist() == [0, 1]


def test_a_row_opposed_to_all_of_the_memory_always_enters():
    """Its score is 0, so it wins against any slot that is drawn."""
    pool = of_directions([0, 0, 180], kept=torch.tensor([True, True, False]))
    for seed in range(20):
        draws = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        assert 2 in Gss()(pool, 2, draws).rows


def test_slots_are_taken_over_as_often_as_the_paper_says():
    """Buffer: row 0 (C = 1, the first), row 1 (C = 1 + cos 60). Newcomer at 210: c = 1 + max(cos 210, cos 150)."""
    pool = of_directions([0, 60, 210], kept=torch.tensor([True, True, False]))
    draws = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws[:, 0] *= draws[:, 1]  # row 0 arrives before row 1
    outcomes = Counter(tuple(Gss()(pool, 2, d).rows.tolist()) for d in draws)
    c = 1 - 3**0.5 / 2
    out0, out1 = 1 / 2.5 * 1 / (1 + c), 1.5 / 2.5 * 1.5 / (1.5 + c)
    for rows, probability in (((1, 2), out0), ((0, 2), out1), ((0, 1), 1 - out0 - out1)):
        assert outcomes[rows] / 2000 == pytest.approx(probability, abs=0.04)


def test_both_forms_are_more_diverse_than_random_rows():
    def similarity(pool, rows):
        gradients = long_gradients(pool)[rows]
        return float((gradients @ gradients.T).sum())

    total = Counter()
    for seed in range(20):
        pool, draws = random_pool(200, seed, kept=False, features=1, classes=2)
        total["random"] += similarity(pool, draws.argsort()[:6])
        for form in ("greedy", "clustering"):
            total[form] += similarity(pool, Gss(form=form)(pool, 6, draws).rows)
    assert total["greedy"] < total["random"]
    assert total["clustering"] < total["random"]


def test_clustering_keeps_one_row_of_each_direction():
    pool = of_directions([0, 1, 2, 120, 121, 240, 241, 242])
    for seed in range(10):
        rows = Gss(form="clustering")(pool, 3, torch.rand(8, generator=torch.Generator().manual_seed(seed))).rows
        assert [sum(row in clump for row in rows.tolist()) for clump in ((0, 1, 2), (3, 4), (5, 6, 7))] == [1, 1, 1]


def test_clustering_starts_from_a_kept_row():
    pool = of_directions([0, 10, 180], kept=torch.tensor([False, True, False]))
    assert Gss(form="clustering")(pool, 1, torch.tensor([0.1, 0.9, 0.2])).rows.tolist() == [1]


def test_no_rows_kept_is_the_same_as_no_column():
    pool, draws = random_pool(30, 3, kept=False)
    none_kept = Pool(pool.labels, pool.weights, pool.features, pool.residuals, torch.zeros(30, dtype=torch.bool))
    assert torch.equal(Gss()(pool, 5, draws).rows, Gss()(none_kept, 5, draws).rows)


@pytest.mark.parametrize("form", ["greedy", "clustering"])
def test_zero_gradients_duplicates_and_one_row(form):
    zeros = Pool(torch.zeros(6).long(), torch.ones(6), features=torch.zeros(6, 2), residuals=torch.zeros(6, 2))
    draws = torch.tensor([0.5, 0.1, 0.9, 0.2, 0.7, 0.6])
    assert Gss(form=form)(zeros, 2, draws).rows.tolist()[0] == 1  # the first to arrive; none opposes it
    assert len(Gss(form=form)(zeros, 5, draws).rows.unique()) == 5
    same = of_directions([30] * 6)
    assert Gss(form=form)(same, 4, draws).rows.tolist() == [0, 1, 3, 5]  # the first to arrive
    chosen = Gss(form=form)(of_directions([0]), 3, torch.zeros(1))
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == [1.0]


def test_random_subsets_are_uniform_and_without_repeats():
    uniforms = torch.rand(6000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    subsets = random_subsets(torch.full((6000,), 4), uniforms)
    counts = Counter(tuple(sorted(subset)) for subset in subsets.tolist())
    assert set(counts) == set(combinations(range(4), 2))
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_a_subset_larger_than_the_memory_is_all_of_it():
    uniforms = torch.rand(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for subset in random_subsets(torch.full((50,), 3), uniforms).tolist():
        assert sorted(subset) == [-1, -1, 0, 1, 2]


def test_bad_settings_are_refused():
    with pytest.raises(BadInput, match='form must be one of greedy, clustering, got "iqp"'):
        Gss(form="iqp")
    with pytest.raises(BadInput, match="neighbours must be >= 1, got 0"):
        Gss(neighbours=0)


# --- OCS


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


def pool_for_ocs(n, seed, kept=True, classes=3):
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
    pool = pool_for_ocs(12, seed, kept=seed % 2 == 0)
    for found, expected in zip(criteria(pool), plain_criteria(pool), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("criterion", ["similarity", "diversity", "affinity"])
@pytest.mark.parametrize("seed", range(5))
def test_one_criterion_alone_is_the_ranking_by_it(criterion, seed):
    pool = pool_for_ocs(24, seed)
    pool = Pool(torch.zeros(24).long(), pool.weights, pool.features, pool.residuals, pool.kept)
    names = ("similarity", "diversity", "affinity")
    value = plain_criteria(pool)[names.index(criterion)]
    alone = Ocs(**{name: float(name == criterion) for name in names})
    best = sorted(range(24), key=lambda row: -value[row])[:7]
    assert alone(pool, 7, torch.zeros(24)).rows.tolist() == sorted(best)


@pytest.mark.parametrize("tau", [0.0, 1.0, 1000.0])
def test_rows_are_the_best_of_each_class_by_the_sum(tau):
    pool = pool_for_ocs(30, 1)
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
    pool = pool_for_ocs(20, 2, kept=False)
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
