"""``select_coreset`` with targets, groups, kept rows and costs, and the blocks of rounds that solve them."""

import os

import numpy as np
import pytest
import torch
from reference.gcr_algorithm import matching_pursuit as textbook
from scipy.optimize import nnls

import gcr
from gcr.select import Coreset, matching, omp_blocks
from gcr.settings import BadInput


def random_rows(n=60, d=8, seed=0, shift=0.3):
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


def weights_of(chosen, n):
    full = np.zeros(n)
    full[chosen.rows] = chosen.weights
    return full


@pytest.mark.parametrize("precision", ["highest", "high"], ids=["float32", "float64"])  # of the check
@pytest.mark.parametrize("held", [True, False], ids=["lines held", "by factors"])
@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_a_target_is_matched_as_by_the_textbook(seed, shift, held, precision, monkeypatch):
    """Few rounds and candidates, so that guesses fail; few columns, so that rows leave."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(omp_blocks, "ROUNDS", 3 + seed)
    monkeypatch.setattr(omp_blocks, "CANDIDATES", 4 + seed)
    monkeypatch.setattr(omp_blocks, "SUMMED", 5 + seed)
    monkeypatch.setattr(omp_blocks, "FRESH", 2)
    monkeypatch.setattr(omp_blocks, "LINE_BYTES", 2**30 if held else 0)
    d = 400 if held and seed % 2 else 12
    rows = random_rows(150, d, seed, shift)
    target = np.random.default_rng(seed + 100).normal(size=d) * 5
    chosen = gcr.select_coreset(rows, 40, target=target, ridge=0.1)
    support, weights = textbook(rows, target, 40, 0.1)
    assert chosen.rows.tolist() == sorted(support)
    np.testing.assert_allclose(weights_of(chosen, 150), weights, rtol=1e-7, atol=1e-9)
    assert bool(chosen.note) == (len(support) < 40)


def test_large_pools_give_the_same_as_small_ones(monkeypatch):
    rng = np.random.default_rng(0)
    factors, labels = gcr.LastLayerGradients(rng.random((240, 20)), rng.normal(size=(240, 5))), np.arange(240) % 2
    for divided in (None, labels):
        plain = gcr.select_coreset(factors, 70, labels=divided)
        with monkeypatch.context() as patch:
            patch.setattr(matching, "BLOCKS_FROM", 0)
            by_blocks = gcr.select_coreset(factors, 70, labels=divided)
        assert by_blocks.rows.tolist() == plain.rows.tolist()
        np.testing.assert_allclose(by_blocks.weights, plain.weights, rtol=1e-8)


@pytest.mark.parametrize(("d", "blocks"), [(511, False), (512, True)])
def test_one_pool_of_wide_gradients_is_solved_by_blocks(d, blocks, monkeypatch):
    rows, used, solve = random_rows(1100, d), [], matching._by_blocks
    monkeypatch.setattr(matching, "_by_blocks", lambda *args: (used.append(1), solve(*args))[1])
    chosen = gcr.select_coreset(rows, 20)
    assert bool(used) == blocks
    support, weights = textbook(rows, rows.sum(0), 20, 0.5)
    assert chosen.rows.tolist() == sorted(support)
    np.testing.assert_allclose(weights_of(chosen, 1100), weights, rtol=1e-7, atol=1e-9)


def test_rows_that_float32_cannot_tell_apart(monkeypatch):
    """Five copies of each row, shifted by 1e-10, and lengths from 1e-6 to 1e6: float64 decides."""
    monkeypatch.setattr(omp_blocks, "ROUNDS", 5)
    monkeypatch.setattr(omp_blocks, "CANDIDATES", 6)
    monkeypatch.setattr(omp_blocks, "BLOCK", 50)
    exact, update = [], omp_blocks.Matching.update_now
    monkeypatch.setattr(omp_blocks.Matching, "update_now", lambda self: (exact.append(self.age), update(self))[1])
    rng = np.random.default_rng(5)
    rows = np.tile(rng.normal(size=(40, 300)), (5, 1)) + 1e-10 * rng.normal(size=(200, 300))
    for scale in (1.0, 10.0 ** rng.uniform(-6, 6, (200, 1)), 1e-60):
        scaled, ridge = rows * scale, 0.1 * float(np.min(scale)) ** 2
        target = scaled[:60].sum(0)
        chosen = gcr.select_coreset(scaled, 25, target=target, ridge=ridge)
        assert chosen.rows.tolist() == sorted(textbook(scaled, target, 25, ridge)[0])
    assert max(exact) > 0  # the first row of a block was in doubt


def test_large_groups_solved_together_as_on_a_gpu_give_the_same(monkeypatch):
    """Groups of 150, 140, 130, 120 and 20 rows: the four large ones are one batch."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(5), [150, 140, 130, 120, 20])
    factors = gcr.LastLayerGradients(rng.random((560, 20)), rng.normal(size=(560, 4)))
    monkeypatch.setattr(matching, "BLOCKS_FROM", 100)
    monkeypatch.setattr(matching, "BATCH_BYTES", 0)
    sizes, solve = [], matching._solve
    monkeypatch.setattr(matching, "_solve", lambda *args: (sizes.append(len(args[1])), solve(*args))[1])
    alone = gcr.select_coreset(factors, 90, labels=labels)
    monkeypatch.setattr(matching, "_room_for_large", lambda _: 2**20)
    together = gcr.select_coreset(factors, 90, labels=labels)
    assert sizes == [1] * 5 + [4, 1]
    assert together.rows.tolist() == alone.rows.tolist()
    np.testing.assert_allclose(together.weights, alone.weights, rtol=1e-8)


@pytest.mark.parametrize("ridge", [0.0, 1e-9])
def test_duplicates_and_rows_in_the_span_of_others(ridge):
    rows = np.repeat(random_rows(10, 4), 5, axis=0)
    chosen = gcr.select_coreset(rows, 20, target=rows.sum(0), ridge=ridge)
    assert (chosen.weights > 0).all()
    assert gcr.explain(chosen, rows).gradient_error < 1e-4 * np.linalg.norm(rows.sum(0))


def test_a_set_of_gradients_stands_for_its_sum():
    rng = np.random.default_rng(3)
    pool = gcr.LastLayerGradients(rng.normal(size=(50, 6)), rng.normal(size=(50, 3)))
    other = gcr.LastLayerGradients(rng.normal(size=(9, 6)), rng.normal(size=(9, 3)))
    long = gcr.LastLayerGradients(torch.tensor(other.features), torch.tensor(other.residuals)).explicit().numpy()
    by_set, by_matrix, by_vector = (gcr.select_coreset(pool, 12, target=t) for t in (other, long, long.sum(0)))
    assert by_set.rows.tolist() == by_matrix.rows.tolist() == by_vector.rows.tolist()
    np.testing.assert_allclose(by_set.weights, by_vector.weights, rtol=1e-9)


def test_several_targets_each_have_their_rows():
    rows, first, second = random_rows(shift=0.0), np.eye(8)[0] * 9, np.eye(8)[5] * 9
    chosen = gcr.select_coreset(rows, 11, target=[first, second], ridge=0.01)
    assert len(set(chosen.rows.tolist())) == len(chosen.rows)
    assert chosen.serves.tolist().count(0) <= 6
    for number, target in enumerate((first, second)):
        mine = chosen.serves == number
        reached = chosen.weights[mine] @ rows[chosen.rows[mine]]
        assert np.linalg.norm(target - reached) < 0.3 * 9
    alone = gcr.select_coreset(rows, 6, target=first, ridge=0.01)
    assert chosen.rows[chosen.serves == 0].tolist() == alone.rows.tolist()
    about = gcr.explain(chosen, rows, target=[first, second])
    assert about.per_class == {0: int((chosen.serves == 0).sum()), 1: int((chosen.serves == 1).sum())}
    assert about.relative_to_uniform < 0.5
    for number, target in enumerate((first, second)):
        mine = chosen.serves == number
        reached = chosen.weights[mine] @ rows[chosen.rows[mine]]
        cosine = reached @ target / np.linalg.norm(reached) / np.linalg.norm(target)
        assert about.by_target[number] == pytest.approx((np.linalg.norm(target - reached), cosine))


def test_explain_measures_the_distance_to_the_target():
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    chosen = gcr.select_coreset(rows, 1, target=[4.0, 3.0], ridge=0.0)
    about = gcr.explain(chosen, rows, target=[4.0, 3.0])
    assert (about.gradient_error, about.gradient_length) == pytest.approx((3.0, 5.0))
    assert about.cosine == pytest.approx(0.8)
    assert about.uniform_error == pytest.approx(np.mean([3.0] * 10), abs=1.0)
    assert gcr.explain(gcr.select_coreset(rows, 2), rows).gradient_error == pytest.approx(0, abs=1e-9)


def test_explain_compares_with_what_was_matched():
    rows, groups = random_rows(), np.arange(60) % 2
    old = np.random.default_rng(1).random(60) * 9
    chosen = gcr.select_coreset(rows, 20, weights=old, groups=groups)
    apart = [(groups == g) @ np.diag(old - weights_of(chosen, 60)) @ rows for g in (0, 1)]
    about = gcr.explain(chosen, rows, weights=old, groups=groups)
    assert about.gradient_error == pytest.approx(np.linalg.norm(apart))
    assert about.gradient_error < 0.1 * gcr.explain(chosen, rows).gradient_error
    assert about.per_class == {0: 10, 1: 10}
    unit = gcr.select_coreset(rows, 20, weights="unit")
    about, goal, reached = gcr.explain(unit, rows, weights="unit"), rows.sum(0), rows[unit.rows].sum(0)
    assert about.relative_to_uniform < 1
    assert about.cosine == pytest.approx(goal @ reached / np.linalg.norm(goal) / np.linalg.norm(reached))


def test_the_cosine_of_a_short_sum_is_right():
    """By the lengths of sums and of their difference it would be lost in rounding."""
    rows = np.concatenate([np.ones((1000, 2)), [[0.0, 1e-9]]])
    chosen = Coreset(torch.tensor([1000]), torch.ones(1))
    assert gcr.explain(chosen, rows).cosine == pytest.approx(np.sqrt(0.5))


def test_explain_refuses_what_does_not_fit():
    rows, targets = random_rows(), [np.eye(8)[0], np.eye(8)[1]]
    several, one = gcr.select_coreset(rows, 8, target=targets), gcr.select_coreset(rows, 8, target=targets[0])
    for call, message in (
        (lambda: gcr.explain(several, rows), "target must be given"),
        (lambda: gcr.explain(several, rows, target=targets[0]), "matched to, 2 of them, got 1"),
        (lambda: gcr.explain(one, rows, target=targets), "matched to, 1 of them, got 2"),
        (lambda: gcr.explain(one, rows[: one.rows.max()]), "pool must be the one that was chosen from"),
        (lambda: gcr.explain(one, rows, weights=np.ones(59)), "weights must be one per row"),
    ):
        with pytest.raises(BadInput, match=message):
            call()


def test_unit_weights_keep_the_rows():
    rows = random_rows()
    fitted, unit = gcr.select_coreset(rows, 9), gcr.select_coreset(rows, 9, weights="unit")
    assert unit.rows.tolist() == fitted.rows.tolist()
    assert unit.weights.tolist() == [1.0] * 9
    assert gcr.select_coreset(rows, 9, weights="fitted").weights.tolist() == fitted.weights.tolist()


def test_groups_have_budgets_of_their_own():
    rows, groups = random_rows(), np.arange(60) % 3 * 7
    chosen = gcr.select_coreset(rows, {0: 2, 7: 0, 14: 9}, groups=groups)
    assert np.unique(groups[chosen.rows], return_counts=True)[1].tolist() == [2, 9]
    equal = gcr.select_coreset(rows, 12, groups=groups)
    assert equal.rows.tolist() == gcr.select_coreset(rows, 12, labels=groups).rows.tolist()


def test_groups_match_their_shares_of_a_target():
    rows, groups, target = random_rows(200, 5, shift=0.0), np.arange(200) % 2, np.arange(5.0) + 3
    chosen = gcr.select_coreset(rows, {0: 30, 1: 10}, groups=groups, target=target, ridge=0.0)
    for group, share in ((0, 0.75), (1, 0.25)):
        mine = groups[chosen.rows] == group
        np.testing.assert_allclose(chosen.weights[mine] @ rows[chosen.rows[mine]], share * target, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_kept_rows_are_in_and_all_weights_are_the_best(seed):
    rows, keep = random_rows(80, 15, seed, 0.1), [3, 11, 40]
    chosen = gcr.select_coreset(rows, 12, keep=keep, ridge=0.2)
    assert set(keep) <= set(chosen.rows.tolist())
    assert len(chosen.rows) == 12
    mine = rows[chosen.rows]
    stacked = np.vstack([mine.T, np.sqrt(0.2) * np.eye(12)])
    best = nnls(stacked, np.concatenate([rows.sum(0), np.zeros(12)]))[0]
    np.testing.assert_allclose(chosen.weights, best, rtol=1e-6, atol=1e-8)


def test_a_budget_that_is_not_spent_is_noted():
    rows, price, away = abs(random_rows()), np.full(60, 3.0), -np.ones(8)
    assert gcr.select_coreset(rows, 30, target=away, cost=price).note == (
        "matching left 30 of 30 unspent: no other row comes nearer"
    )
    own = gcr.select_coreset(rows, {0: 2, 1: 9}, cost=price, groups=np.arange(60) % 2)
    assert own.note == "1 shares of the budget are below the cost of any row; no row for group 0"
    assert gcr.select_coreset(rows, 8, cost=price).note == ""


def test_costs_are_shared_among_groups_as_rows_are():
    rows, groups = random_rows(202), np.repeat([0, 1, 2], [2, 100, 100])
    for budget, counts in ((40, [2, 19, 19]), (2, [1, 1, 0]), (7, [2, 2, 3])):
        chosen = gcr.select_coreset(rows, budget, groups=groups, cost=np.ones(202), ridge=0.01)
        assert np.bincount(groups[chosen.rows], minlength=3).tolist() == counts
        assert ("no row for group 2" in chosen.note) == (counts[2] == 0)
    dear = gcr.select_coreset(abs(random_rows()), 8, cost=np.full(60, 3.0), groups=np.arange(60) % 4)
    assert sorted(np.arange(60)[dear.rows] % 4) == [0, 1]
    assert dear.note == "no row for group 2, 3"


def test_classes_without_a_row_are_named():
    chosen = gcr.select_coreset(random_rows(), 4, labels=np.arange(60) % 12)
    assert chosen.note == "no row for class 4, 5, 6, 7, 8 and 3 more"


@pytest.mark.parametrize(("scale", "ridge"), [(1.0, 0.0), (1e8, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_kept_rows_in_each_others_span_have_weights_too(seed, scale, ridge):
    rows = scale * random_rows(60, 8, seed, 0.3)
    chosen = gcr.select_coreset(rows, 30, keep=np.arange(20), ridge=ridge)
    assert set(range(20)) <= set(chosen.rows.tolist())
    np.testing.assert_allclose(chosen.weights @ rows[chosen.rows], rows.sum(0), rtol=1e-4, atol=1e-4 * scale)


def test_a_kept_row_of_zeros_has_no_weight():
    assert gcr.select_coreset([[0.0, 0], [1, 2], [0, 0]], 2, keep=[0], ridge=0.0).weights.tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(40, 60))
def test_matching_ends_below_its_budget_only_where_no_row_helps(seed):
    rng = np.random.default_rng(seed)
    rows, target, keep = rng.normal(size=(40, 5)) + 0.5, 3 * rng.normal(size=5), rng.permutation(40)[:12]
    chosen = gcr.select_coreset(rows, 18, ridge=0.01, target=target, keep=keep)
    if len(chosen.rows) < 18:
        left = np.setdiff1d(np.arange(40), chosen.rows)
        assert (rows[left] @ (target - chosen.weights @ rows[chosen.rows])).max() < 1e-6


def test_a_target_may_be_a_list_of_scalars_and_bytes_in_any_order():
    rows, target = random_rows(), np.arange(8.0)
    expected = gcr.select_coreset(rows, 5, target=target).rows.tolist()
    assert gcr.select_coreset(rows, 5, target=list(torch.tensor(target))).rows.tolist() == expected
    assert gcr.select_coreset(rows.astype(">f8"), 5, target=target).rows.tolist() == expected


@pytest.mark.parametrize("scale", [1.0, 1e-2])
def test_a_ridge_that_outweighs_the_rows_is_noted(scale):
    note = gcr.select_coreset(scale * random_rows(), 10, target=scale * np.ones(8)).note
    assert ("ridge 0.5 outweighs the rows, of squared length" in note) == (scale < 1)
    assert gcr.select_coreset(scale * random_rows(), 10, ridge=0.5 * scale**2).note == ""


def test_kept_rows_may_be_a_mask():
    rows, kept = random_rows(), [3, 50]
    mask = np.isin(np.arange(60), kept)
    for choose in (gcr.select_coreset, gcr.k_centre):
        assert choose(rows, 9, keep=mask).rows.tolist() == choose(rows, 9, keep=kept).rows.tolist()


def test_a_kept_row_that_does_not_help_has_no_weight():
    chosen = gcr.select_coreset(np.array([[1.0], [-1.0], [2.0]]), 2, keep=[1], target=[5.0], ridge=0.0)
    assert chosen.rows.tolist() == [1, 2]
    np.testing.assert_allclose(chosen.weights, [0.0, 2.5], rtol=1e-8)  # a ridge of 1e-8 keeps kept rows apart


@pytest.mark.parametrize("seed", range(4))
def test_cost_is_never_above_the_budget_and_a_cost_of_1_counts_rows(seed):
    rng, rows = np.random.default_rng(seed), random_rows(80, 30, seed)
    cost = rng.uniform(1, 10, 80)
    chosen = gcr.select_coreset(rows, 60.0, cost=cost)
    assert cost[chosen.rows].sum() <= 60
    equal = gcr.select_coreset(rows, 12, cost=np.ones(80))
    assert equal.rows.tolist() == gcr.select_coreset(rows, 12).rows.tolist()


def test_cost_follows_the_plain_greedy_choice():
    rows, cost = random_rows(50, 40, 1), np.random.default_rng(1).uniform(1, 4, 50)
    target, left, support, weights = rows.sum(0), 25.0, [], np.zeros(50)
    while True:
        score = rows @ (target - rows.T @ weights) / cost
        score[[*support, *np.nonzero(cost > left)[0]]] = -np.inf
        if score.max() <= 0:
            break
        support.append(int(score.argmax()))
        left -= cost[support[-1]]
        stacked = np.vstack([rows[support].T, np.sqrt(0.5) * np.eye(len(support))])
        weights[support] = nnls(stacked, np.concatenate([target, np.zeros(len(support))]))[0]
        assert (weights[support] > 0).all()  # else this plain loop is too plain
    assert gcr.select_coreset(rows, 25.0, cost=cost).rows.tolist() == sorted(support)


def test_mapped_files_are_accepted(tmp_path):
    np.save(tmp_path / "f.npy", random_rows().astype(np.float32))
    np.save(tmp_path / "d.npy", random_rows(60, 3, 1).astype(np.float32))
    features, residuals = (np.load(tmp_path / name, mmap_mode="r") for name in ("f.npy", "d.npy"))
    labels = np.arange(60) % 3
    mapped = gcr.select_coreset(gcr.LastLayerGradients(features, residuals), 9, labels=labels)
    held = gcr.select_coreset(gcr.LastLayerGradients(np.array(features), np.array(residuals)), 9, labels=labels)
    assert mapped.rows.tolist() == held.rows.tolist()
    assert mapped.weights.tolist() == held.weights.tolist()


def test_numbers_of_numpy_are_numbers():
    rows, cost = random_rows(), np.ones(60)
    for given, plain in (
        ({"budget": np.int64(5), "ridge": np.float32(0.5)}, {"budget": 5}),
        ({"budget": np.int64(5), "cost": cost}, {"budget": 5, "cost": cost}),
        ({"budget": np.float32(5), "cost": cost}, {"budget": 5, "cost": cost}),
        ({"budget": 5, "target": list(rows.sum(0))}, {"budget": 5, "target": rows.sum(0)}),
    ):
        ours, theirs = gcr.select_coreset(rows, **given), gcr.select_coreset(rows, **plain)
        assert (ours.rows.tolist(), ours.weights.tolist()) == (theirs.rows.tolist(), theirs.weights.tolist())
        assert ours.serves is None
    by_number = gcr.k_centre(rows, np.int64(5), projection=np.int64(4), start=np.int64(1))
    assert by_number.rows.tolist() == gcr.k_centre(rows, 5, projection=4, start=1).rows.tolist()


def test_a_target_without_rows_is_named():
    targets = [np.eye(8)[0], np.eye(8)[1], np.eye(8)[2]]
    assert gcr.select_coreset(random_rows(), 1, target=targets).note == "no row for target 1, 2"
    assert gcr.select_coreset(random_rows(), 3, target=targets).note == ""
    assert gcr.BadInput is BadInput


def test_a_mapped_file_cut_short_afterwards(tmp_path):
    """Reading beyond its end would end the process, so the error comes first."""
    np.save(tmp_path / "rows.npy", random_rows(4000, 8))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    tensor = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    calls = (
        lambda: gcr.select_coreset(mapped, 5),
        lambda: gcr.select_coreset(tensor, 5),
        lambda: gcr.k_centre(tensor[:, 1:], 5),
        lambda: gcr.select_coreset(gcr.LastLayerGradients(np.asarray(mapped)[2000:], np.ones((2000, 1))), 5),
        lambda: gcr.select_coreset(random_rows(), 5, target=mapped),
        lambda: gcr.k_centre(mapped[3000:], 5),
        lambda: gcr.explain(gcr.Coreset(np.arange(2), np.ones(2)), mapped),
        lambda: gcr.Buffer(5).add(mapped, np.zeros(4000, int)),
        lambda: gcr.CoresetSelector(5).fit(mapped, np.zeros(4000, int)),
    )
    os.truncate(tmp_path / "rows.npy", 10_000)
    try:
        for call in calls:
            with pytest.raises(BadInput, match=r"rows.npy has 10,000 bytes, and 256,128 were mapped"):
                call()
    finally:
        os.truncate(tmp_path / "rows.npy", 256_128)  # so that a report may print the array


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": np.ones(7)}, "target must have 8 numbers a row, as the gradients have, got 7"),
        ({"target": [np.ones(8), np.ones(9)]}, "target must have 8 numbers a row, as the gradients have, got 9"),
        ({"target": np.full(8, np.nan)}, "target must be finite, got NaN"),
        (
            {"target": np.ones((2, 2, 8))},
            "target must be a vector, a matrix, or several in a list, got shape (2, 2, 8)",
        ),
        (
            {"gradients": gcr.LastLayerGradients(np.ones((9, 2)), np.full((9, 1), np.nan), bias=False)},
            "residuals must be finite, got NaN or infinity in 9 of 9 rows",
        ),
        ({"budget": "5"}, "budget must be a whole number from 1 to 60, the number of rows, got '5'"),
        ({"target": np.full(8, 1e200)}, "target or gradients are too long"),
        (
            {"target": gcr.LastLayerGradients(np.ones((3, 7)), np.ones((3, 1)))},
            "target must have gradients of the width",
        ),
        ({"target": np.ones(8), "weights": np.ones(60)}, "which a target replaces"),
        ({"target": np.ones(8), "replace": 1}, "leave it out with target, keep or cost"),
        ({"target": [np.ones(8), np.ones(8)], "keep": [1]}, "keep goes with one target, got 2"),
        ({"keep": list(range(10))}, "budget must be at least the number of kept rows, 10, got 5"),
        (
            {"budget": 4, "groups": np.arange(60) % 4, "keep": [0, 4]},
            "each group at least the number of kept rows, 2, but the share of group 0 is 1 of 4; a dict",
        ),
        (
            {"groups": np.array(["a", "b"] * 30)},
            "numbers, got text or objects; np.unique(groups",
        ),
        ({"gradients": gcr.Pool(torch.zeros(3), torch.ones(3))}, "got a Pool; gcr.LastLayerGradients(pool.features"),
        (
            {"budget": {0: "1", 1: 2}, "groups": np.arange(60) % 2, "cost": np.ones(60)},
            "must be a finite number >= 0, got '1'",
        ),
        ({"keep": [60]}, "keep must have row numbers from 0 to 59, got 60"),
        ({"keep": [1], "cost": np.full(60, 9.0), "budget": 9.5}, None),
        ({"keep": [1, 2], "cost": np.full(60, 9.0), "budget": 9.5}, "at least the cost of the kept rows, 18, got 9.5"),
        ({"cost": np.zeros(60)}, "cost must be above 0, got 0 in row 0"),
        ({"cost": -np.ones(60)}, "cost must be >= 0 and finite, got -1.0 in row 0"),
        ({"cost": np.full(60, 9.0)}, "budget must be a finite number, at least the least cost, 9, got 5"),
        ({"weights": "best"}, "weights must be 'fitted', 'unit' or one number per row, got 'best'"),
        ({"labels": np.zeros(60, int), "groups": np.zeros(60, int)}, "labels and groups both divide the rows"),
        ({"groups": np.zeros(59, int)}, "groups must be one per row (60), got shape (59,)"),
        ({"budget": {0: 3}}, "budget must be a number where there are no groups"),
        ({"budget": {0: 3}, "groups": np.arange(60) % 2}, "a number for each group, [0, 1], got [0]"),
        ({"budget": {0: 31, 1: 1}, "groups": np.arange(60) % 2}, "budget of group 0 must be from 0 to 30, its rows"),
        ({"budget": {0: 0, 1: 0}, "groups": np.arange(60) % 2}, "budget must be above 0 for one group at least"),
    ],
)
def test_bad_input_of_targets(arguments, message):
    call = {"gradients": random_rows(), "budget": 5} | arguments
    if message is None:
        assert gcr.select_coreset(**call).rows.tolist() == [1]
        return
    with pytest.raises(BadInput) as caught:
        gcr.select_coreset(**call)
    assert message in str(caught.value)


def test_kept_rows_of_very_different_lengths_do_not_hurt():
    """A kept row has its place; what it costs is no accuracy."""
    from scipy.optimize import nnls

    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = random_rows(60, 12, seed, 0.3) * 10 ** rng.uniform(-3, 3, size=(60, 1))
        chosen = gcr.select_coreset(rows, 20, keep=np.arange(15), ridge=0.0)
        taken, total = rows[chosen.rows], rows.sum(0)
        lengths = np.linalg.norm(taken, axis=1, keepdims=True)
        _, least = nnls((taken / lengths).T, total)
        error = np.linalg.norm(total - chosen.weights @ taken)
        assert error**2 - least**2 < 1e-9 * (total @ total), seed


@pytest.mark.parametrize(("d", "blocks"), [(50, False), (51, True)])
def test_where_rows_leave_all_the_time_rounds_are_taken_one_by_one(d, blocks, monkeypatch):
    monkeypatch.setattr(matching, "BLOCKS_FROM", 100)
    seen, solve = [], matching._by_blocks
    monkeypatch.setattr(matching, "_by_blocks", lambda *args: (seen.append(1), solve(*args))[1])
    gcr.select_coreset(random_rows(200, d), 40)
    assert bool(seen) == blocks


class Frame:
    """As of pandas: rows are not found by their place."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        raise KeyError(key)

    def to_numpy(self):
        return self.values


def test_frames_are_taken_by_place():
    rows, labels = random_rows(), np.arange(60) % 3
    framed = gcr.select_coreset(Frame(rows), 9, labels=Frame(labels))
    assert framed.rows.tolist() == gcr.select_coreset(rows, 9, labels=labels).rows.tolist()
