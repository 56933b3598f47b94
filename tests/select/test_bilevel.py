import pytest
import torch

from gcr.select.bilevel import SMALLEST_WEIGHT, Bilevel, Problem, descend, proxy_kernel
from gcr.select.coreset import Pool

each_kernel = pytest.mark.parametrize("kernel", ["linear", "rbf"])


def random_pool(n, n_classes=3, f=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=g)
    centres = torch.randn(n_classes, f, generator=g)
    features = centres[labels] + torch.randn(n, f, generator=g)
    return Pool(labels, torch.rand(n, generator=g) + 0.5, features)


def problem_for(pool, rows=(), kernel="linear", ridge=0.05):
    targets = torch.nn.functional.one_hot(pool.labels).double()
    p = pool.weights.double() / pool.weights.double().sum()
    problem = Problem(proxy_kernel(pool.features.double(), kernel), targets, p, ridge, len(pool))
    for row in rows:
        choose(problem, row)
    return problem


def choose(problem, row):
    wish = torch.zeros(len(problem.kernel), dtype=torch.float64)
    wish[row] = -1.0
    problem.add(wish)


def plain_loss(problem, all_weights):
    """The outer loss, the inner problem solved in full: (W K + ridge) a = W y has the solution for any weights."""
    kernel = problem.kernel
    system = all_weights[:, None] * kernel + problem.ridge * torch.eye(len(kernel), dtype=kernel.dtype)
    a = torch.linalg.solve(system, all_weights[:, None] * problem.targets)
    return (problem.pool_weights[:, None] * (kernel @ a - problem.targets).square()).sum()


@each_kernel
@pytest.mark.parametrize("rows", [(), (3,), (8, 1, 5)])
def test_loss_and_implicit_gradient_are_those_of_autograd(kernel, rows):
    problem = problem_for(random_pool(12), rows, kernel)
    weights = torch.linspace(0.3, 1.7, len(rows), dtype=torch.float64)
    all_weights = torch.zeros(12, dtype=torch.float64)
    all_weights[list(rows)] = weights
    all_weights.requires_grad_()
    loss = plain_loss(problem, all_weights)
    loss.backward()
    found = problem.evaluate(weights)
    assert found.loss == pytest.approx(loss.item())
    torch.testing.assert_close(found.gradient, all_weights.grad)


def test_the_fit_minimises_the_inner_problem():
    problem = problem_for(random_pool(12))
    weights = torch.rand(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel, y = problem.kernel, problem.targets
    ridge = problem.ridge * torch.eye(12, dtype=torch.float64)
    a = torch.linalg.solve(weights[:, None] * kernel + ridge, weights[:, None] * y)
    a.requires_grad_()
    inner = (weights[:, None] * (kernel @ a - y).square()).sum() + problem.ridge * (a * (kernel @ a)).sum()
    inner.backward()
    torch.testing.assert_close(a.grad, torch.zeros_like(a.grad), atol=1e-10, rtol=0)


@each_kernel
def test_each_row_is_the_one_whose_small_weight_lowers_the_loss_most(kernel):
    pool = random_pool(15, seed=3)
    problem = problem_for(pool, kernel=kernel, ridge=0.01)
    weights, tiny = torch.zeros(15, dtype=torch.float64), 1e-7
    expected = []
    for _ in range(5):
        losses = [plain_loss(problem, weights + tiny * torch.eye(15, dtype=torch.float64)[i]).item() for i in range(15)]
        best = min((i for i in range(15) if i not in expected), key=losses.__getitem__)
        expected.append(best)
        weights[best] = 1.0
    chosen = Bilevel(ridge=0.01, kernel=kernel, weight_steps=0)(pool, 5, torch.zeros(15))
    assert chosen.rows.tolist() == sorted(expected)


@each_kernel
def test_the_coreset_beats_random_rows(kernel):
    pool = random_pool(80, f=8)
    k = 12
    chosen = Bilevel(kernel=kernel, ridge=0.05)(pool, k, torch.zeros(80))
    scaled = chosen.weights.double() * k / chosen.weights.double().sum()
    own = problem_for(pool, chosen.rows.tolist(), kernel).evaluate(scaled).loss
    g = torch.Generator().manual_seed(5)
    rows = [torch.randperm(80, generator=g)[:k].tolist() for _ in range(30)]
    others = [problem_for(pool, r, kernel).evaluate(torch.ones(k, dtype=torch.float64)).loss for r in rows]
    assert own < min(others)


def test_a_weight_step_lowers_the_loss_and_stays_above_the_floor():
    problem = problem_for(random_pool(30), range(6))
    weights = torch.ones(6, dtype=torch.float64)
    here = problem.evaluate(weights)
    _, there = descend(problem, weights, here, 0.01)
    assert there.loss < here.loss
    far, _ = descend(problem, weights, here, 100.0)
    assert far.min() >= SMALLEST_WEIGHT


def test_weights_stand_for_the_whole_pool():
    pool = random_pool(40)
    chosen = Bilevel()(pool, 10, torch.zeros(40))
    torch.testing.assert_close(chosen.weights.sum(), pool.weights.sum())


def test_a_heavy_row_is_chosen_before_a_light_one():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for heavy in (0, 1):
        weights = torch.ones(2)
        weights[heavy] = 3.0
        pool = Pool(torch.tensor([0, 1]), weights, features)
        assert Bilevel()(pool, 1, torch.zeros(2)).rows.tolist() == [heavy]


def test_equal_rows_are_taken_lowest_first():
    pool = Pool(torch.zeros(9).long(), torch.ones(9), torch.full((9, 3), 0.7))
    assert Bilevel()(pool, 4, torch.zeros(9)).rows.tolist() == [0, 1, 2, 3]


@each_kernel
@pytest.mark.parametrize(
    "pool",
    [
        Pool(torch.tensor([4]), torch.ones(1), torch.ones(1, 3)),
        Pool(torch.tensor([4]), torch.zeros(1), torch.zeros(1, 3)),
        Pool(torch.tensor([0, 7, 7, 0]), torch.zeros(4), torch.zeros(4, 2)),
        Pool(torch.tensor([2, 2, 2, 2]), torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.randn(4, 2)),
        Pool(torch.tensor([0, 1, 2, 3]), torch.ones(4), 1e4 * torch.eye(4)),
    ],
    ids=["one row", "one row of nothing", "zero features and weights", "one class", "large features"],
)
def test_edge_cases(pool, kernel):
    for budget in (1, 2, 3, 4):
        chosen = Bilevel(kernel=kernel)(pool, budget, torch.zeros(len(pool)))
        assert len(chosen.rows.unique()) == min(budget, len(pool))
        assert bool((chosen.weights > 0).all())
        assert bool(torch.isfinite(chosen.weights).all())
