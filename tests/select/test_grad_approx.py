import numpy as np
import pytest
import torch
from reference.gcr_algorithm import matching_pursuit
from scipy.optimize import nnls

from gcr.select import ClassBalanced, GradApprox, LastLayerGradients, Pool
from gcr.select.grad_approx import longest
from gcr.select.matching import match


def random_pool(n, n_classes=3, f=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        labels=torch.arange(n) % n_classes,
        weights=torch.rand(n, generator=g) + 0.5,
        features=torch.randn(n, f, generator=g),
        residuals=torch.randn(n, n_classes, generator=g),
    )


def long_vectors(features, residuals):
    """The last-layer gradients written out."""
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    return torch.einsum("nc,nf->ncf", residuals, torch.cat([features, ones], 1)).flatten(1)


def test_last_layer_gradients_are_those_of_autograd():
    net = torch.nn.Linear(5, 3)
    pool = random_pool(4)
    logits = net(pool.features)
    residuals = logits.softmax(1) - torch.nn.functional.one_hot(pool.labels, 3)
    for i in range(4):
        loss = torch.nn.functional.cross_entropy(net(pool.features[i]), pool.labels[i])
        weight, bias = torch.autograd.grad(loss, [net.weight, net.bias])
        expected = torch.cat([weight, bias[:, None]], 1).flatten()
        torch.testing.assert_close(long_vectors(pool.features[i : i + 1], residuals[i : i + 1])[0], expected)


def test_old_weights_scale_the_target_only():
    """One direction: rows of length 1 and 3; the old weights 5 and 2 ask for 5 * 1 + 2 * 3 = 11."""
    pool = Pool(
        labels=torch.zeros(2).long(),
        weights=torch.tensor([5.0, 2.0]),
        features=torch.zeros(2, 1),
        residuals=torch.tensor([[1.0], [3.0]]),
    )
    chosen = GradApprox(ridge=0.0)(pool, 1, torch.zeros(2))
    assert chosen.rows.tolist() == [1]
    assert chosen.weights.tolist() == pytest.approx([11 / 3])


def test_classes_share_the_budget_and_the_buffer_is_full():
    pool = random_pool(31, n_classes=3)
    chosen = GradApprox()(pool, 10, torch.zeros(31))
    assert len(set(chosen.rows.tolist())) == 10
    assert torch.bincount(pool.labels[chosen.rows]).tolist() == [4, 3, 3]
    assert bool((chosen.weights > 0).all())


def test_top_up_fills_the_share_where_no_row_helps():
    """Rows that point away from the target get no weight by matching; they fill up with their own weight."""
    pool = Pool(
        labels=torch.zeros(3).long(),
        weights=torch.tensor([4.0, 1.0, 2.0]),
        features=torch.zeros(3, 1),
        residuals=torch.tensor([[2.0], [-1.0], [-1.0]]),
    )
    chosen = GradApprox(ridge=0.0)(pool, 2, torch.zeros(3))
    assert chosen.rows.tolist() == [0, 1]
    assert chosen.weights.tolist() == pytest.approx([2.5, 1.0])  # 2 * 2.5 = 4 * 2 - 1 - 2
    assert chosen.note == "1 of 2 rows topped up"


def test_a_budget_for_everything_keeps_everything_as_it_is():
    pool = random_pool(9)
    chosen = GradApprox()(pool, 20, torch.zeros(9))
    assert chosen.rows.tolist() == list(range(9))
    assert torch.equal(chosen.weights, pool.weights)


def test_it_matches_the_gradient_better_than_random_rows():
    pool = random_pool(60, n_classes=3, f=8)
    gradients = long_vectors(pool.features.double(), pool.residuals.double())

    def error(rows, weights):
        return sum(
            float(
                (
                    gradients[pool.labels == c].T @ pool.weights[pool.labels == c].double()
                    - gradients[rows[mine]].T @ weights[mine].double()
                )
                .square()
                .sum()
            )
            for c in range(3)
            if (mine := pool.labels[rows] == c) is not None
        )

    chosen = GradApprox()(pool, 15, torch.zeros(60))
    random_errors = []
    for seed in range(20):
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:15]
        random_errors.append(error(rows, torch.full((15,), float(pool.weights.sum()) / 15)))
    assert error(chosen.rows, chosen.weights) < 0.2 * min(random_errors)


def test_factors_equal_the_long_vectors():
    pool = random_pool(9)
    gradients, explicit = LastLayerGradients(pool.features, pool.residuals), long_vectors(pool.features, pool.residuals)
    torch.testing.assert_close(gradients.explicit().float(), explicit)
    torch.testing.assert_close(gradients.squared_norms().float(), explicit.square().sum(1))
    torch.testing.assert_close(gradients.weighted_sum(pool.weights).flatten().float(), explicit.T @ pool.weights)


def test_the_longest_of_each_class_are_barred_unless_the_budget_needs_them():
    gradients = LastLayerGradients(torch.zeros(6, 1), torch.tensor([[1.0], [2.0], [8.0], [3.0], [100.0], [4.0]]))
    classes = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5])]
    assert longest(gradients, classes, trim=0.5, budgets=[1, 1]).tolist() == [False, False, True, True, True, False]
    assert longest(gradients, classes, trim=0.5, budgets=[3, 2]).tolist() == [False, False, True, False, False, False]


def test_an_outlier_is_not_chosen_where_the_longest_are_trimmed():
    """Nine rows along one direction, one row a hundred times as long across it; there is room for one."""
    residuals = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 100.0]])
    pool = Pool(torch.zeros(10).long(), torch.ones(10), torch.zeros(10, 1), residuals)
    plain, robust = (GradApprox(ridge=0.0, trim=t)(pool, 1, torch.zeros(10)) for t in (0.0, 0.1))
    assert plain.rows.tolist() == [9]
    assert robust.rows.tolist() == [0]
    assert robust.weights.tolist() == pytest.approx([9.0])


def test_trimmed_rows_still_count_in_the_target():
    residuals = torch.tensor([[1.0], [1.0], [4.0]])
    pool = Pool(torch.zeros(3).long(), torch.ones(3), torch.zeros(3, 1), residuals)
    chosen = GradApprox(ridge=0.0, trim=0.4)(pool, 1, torch.zeros(3))
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == pytest.approx([6.0])


def test_unit_weights_are_a_matter_of_the_same_rows():
    torch.manual_seed(4)
    pool = Pool(torch.arange(60) % 3, torch.rand(60) + 0.5, torch.randn(60, 5), torch.randn(60, 3))
    fitted, unit = (GradApprox(weights=weights)(pool, 12, torch.zeros(60)) for weights in ("fitted", "unit"))
    assert torch.equal(fitted.rows, unit.rows)
    assert torch.equal(unit.weights, torch.ones_like(fitted.weights))
    assert not torch.allclose(fitted.weights, unit.weights)


def test_random_rows_are_those_of_class_balanced_with_the_weights_that_match_best():
    torch.manual_seed(5)
    labels, weights, draws = torch.arange(60) % 3, torch.rand(60) + 0.5, torch.rand(60)
    pool = Pool(labels, weights, torch.rand(60, 5), torch.randn(60, 3))
    chosen = GradApprox(rows="random")(pool, 12, draws)
    assert torch.equal(chosen.rows, ClassBalanced()(pool, 12, draws).rows)
    explicit = long_vectors(pool.features, pool.residuals).double()
    for label in range(3):
        mine = chosen.rows[pool.labels[chosen.rows] == label]
        target = (explicit * weights[:, None])[labels == label].sum(0)
        ridge = 0.5**0.5 * torch.eye(4, dtype=torch.float64)
        expected, _ = nnls(torch.cat([explicit[mine].T, ridge]).numpy(), torch.cat([target, torch.zeros(4)]).numpy())
        found = chosen.weights[pool.labels[chosen.rows] == label].double().numpy()
        assert (expected > 0).sum() >= 2
        np.testing.assert_allclose(found[expected > 0], expected[expected > 0], rtol=1e-5)
        np.testing.assert_allclose(found[expected == 0], weights[mine].numpy()[expected == 0])  # topped up


def test_random_rows_are_drawn_among_those_that_are_not_trimmed():
    lengths = torch.tensor([9.0, 1.0, 2.0, 1.0, 8.0])
    pool = Pool(torch.zeros(5).long(), torch.ones(5), torch.zeros(5, 1), lengths[:, None])
    chosen = GradApprox(rows="random", trim=0.4)(pool, 2, torch.tensor([0.1, 0.9, 0.5, 0.6, 0.2]))
    assert chosen.rows.tolist() == [2, 3]


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_tempered_matching_is_matching_of_residuals_of_tempered_length(power):
    pool = random_pool(60, n_classes=3, f=6, seed=8)
    pool.residuals[:4] = 0.0
    pool.residuals[4:8] *= 1e-3
    chosen = GradApprox(power=power)(pool, 12, torch.zeros(60))
    residuals = pool.residuals.double().numpy().copy()
    for row in residuals:
        length = np.sqrt((row**2).sum())
        row *= length**power / length if length else 0.0
    explicit = long_vectors(pool.features.double(), torch.from_numpy(residuals)).numpy()
    weights = pool.weights.double().numpy()
    for label in range(3):
        members = np.flatnonzero(pool.labels.numpy() == label)
        support, expected = matching_pursuit(explicit[members], explicit[members].T @ weights[members], 4, 0.5)
        mine = pool.labels[chosen.rows] == label
        assert len(support) == 4
        assert chosen.rows[mine].tolist() == members[sorted(support)].tolist()
        np.testing.assert_allclose(chosen.weights[mine].numpy(), expected[sorted(support)], rtol=1e-5)


def test_an_untempered_choice_is_that_of_before_to_the_bit():
    pool = random_pool(60, seed=9)
    ours, other = GradApprox(power=1.0, shrink=0.0)(pool, 12, torch.zeros(60)), random_pool(60, seed=9)
    plain = match(LastLayerGradients(other.features, other.residuals), other.labels, other.weights, 12, 0.5, 0.0)
    assert torch.equal(ours.rows, plain.rows)
    assert torch.equal(ours.weights, plain.weights)


def test_tempering_takes_the_outlier_its_lead():
    """Nine rows along one direction, one row a hundred times as long across it; there is room for one."""
    residuals = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 100.0]])
    pool = Pool(torch.zeros(10).long(), torch.ones(10), torch.zeros(10, 1), residuals)
    rows = [GradApprox(ridge=0.0, power=p)(pool, 1, torch.zeros(10)).rows.tolist() for p in (1.0, 0.3, 0.2, 0.0)]
    assert rows == [[9], [9], [0], [0]]  # 100 ** (2 p) against 9


@pytest.mark.parametrize("settings", [{}, {"atoms": "weighted"}, {"shares": "task"}])
def test_shrunk_weights_lie_between_their_own_and_the_mean_of_their_class(settings):
    pool = random_pool(44, n_classes=3, seed=10)
    labels = torch.where(torch.arange(44) < 42, pool.labels % 2, 2)  # two rows of class 2, which are kept whole
    pool = Pool(labels, pool.weights, pool.features, pool.residuals, tasks=torch.zeros(44).long())
    plain, half, whole = (GradApprox(shrink=share, **settings)(pool, 12, torch.zeros(44)) for share in (0.0, 0.5, 1.0))
    assert torch.equal(plain.rows, half.rows)
    for label in (0, 1):
        mine = labels[plain.rows] == label
        expected = [0.5 * float(w) + 0.5 * float(plain.weights[mine].mean()) for w in plain.weights[mine]]
        assert half.weights[mine].tolist() == pytest.approx(expected)
        assert whole.weights[mine].std() < 1e-5 < plain.weights[mine].std()
    kept = plain.rows >= 42
    if "shares" not in settings:
        assert kept.sum() == 2
        assert torch.equal(whole.weights[kept], pool.weights[42:])
