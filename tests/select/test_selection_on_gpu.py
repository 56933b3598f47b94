"""Selection on a GPU gives what it gives on a CPU: pytest -m gpu."""

import pytest
import torch

import gcr
from gcr.select import SELECTORS, GradApprox, Pool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def make_pool(device, n=300, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 5
    columns = {
        "labels": labels,
        "weights": torch.rand(n, generator=g) + 0.5,
        "features": torch.randn(n, 16, generator=g).relu(),
        "residuals": torch.randn(n, 5, generator=g).softmax(1) - torch.nn.functional.one_hot(labels, 5),
        "kept": torch.rand(n, generator=g) < 0.5,
        "reducible": torch.randn(n, generator=g),
    }
    return Pool(**{name: column.to(device) for name, column in columns.items()}), torch.rand(n, generator=g).to(device)


@pytest.mark.parametrize("selector", SELECTORS, ids=[s.name for s in SELECTORS])
def test_selectors_choose_the_same_rows(selector):
    (pool, draws), (gpu_pool, gpu_draws) = make_pool("cpu"), make_pool("cuda")
    ours, theirs = selector()(pool, 60, draws), selector()(gpu_pool, 60, gpu_draws)
    assert theirs.rows.device.type == theirs.weights.device.type == "cuda"
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        *({"replace": 2}, {"trim": 0.5}, {"ridge": 0.01}, {"rows": "random"}, {"negative": "dropped"}),
        {"power": 0.3, "shrink": 0.5},
    ],
)
def test_options_of_grad_approx(settings):
    (pool, draws), (gpu_pool, gpu_draws) = make_pool("cpu"), make_pool("cuda")
    ours, theirs = GradApprox(**settings)(pool, 60, draws), GradApprox(**settings)(gpu_pool, 60, gpu_draws)
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("width", [12, 64])  # by factors, and by Gram matrix with captured rounds
def test_matching_agrees_on_random_problems(seed, width):
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(60, width, generator=g, dtype=torch.float64) + 0.3 * (seed % 2)
    ours, theirs = gcr.select_coreset(rows, 20), gcr.select_coreset(rows.cuda(), 20)
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_matching_that_drops_agrees_on_random_problems(seed):
    """Few features, so that rows come and go."""
    g = torch.Generator().manual_seed(seed)
    pool = {
        "labels": torch.arange(120) % 4,
        "weights": torch.rand(120, generator=g) + 0.5,
        "features": torch.randn(120, 3, generator=g),
        "residuals": torch.randn(120, 4, generator=g),
    }
    draws, select = torch.rand(120, generator=g), GradApprox(negative="dropped")
    ours = select(Pool(**pool), 80, draws)
    theirs = select(Pool(**{name: column.cuda() for name, column in pool.items()}), 80, draws.cuda())
    assert ours.note == theirs.note
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-5, atol=1e-6)


def test_large_classes_are_solved_together():
    """On a GPU round by round, on a CPU one after another by blocks of rounds."""
    g = torch.Generator().manual_seed(0)
    features, residuals = torch.rand(50_000, 24, generator=g), torch.randn(50_000, 5, generator=g)
    labels = torch.arange(50_000) % 5
    ours = gcr.select_coreset(gcr.LastLayerGradients(features, residuals), 200, labels=labels)
    there = gcr.LastLayerGradients(features.cuda(), residuals.cuda())
    theirs = gcr.select_coreset(there, 200, labels=labels.cuda())
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [300, 6000])  # all rows at once, and in blocks
def test_k_centre_on_a_gpu(n):
    features = torch.randn(n, 24, generator=torch.Generator().manual_seed(n))
    ours, theirs = gcr.k_centre(features, 250, start=3), gcr.k_centre(features.cuda(), 250, start=3)
    assert ours.rows.tolist() == theirs.rows.tolist()
    assert theirs.rows.is_cuda


@pytest.mark.parametrize("options", [{}, {"keep": [1, 5, 9]}, {"cost": torch.arange(1, 401) / 100.0}])
def test_targets_on_a_gpu(options):
    g = torch.Generator().manual_seed(0)
    rows, target = torch.randn(400, 30, generator=g, dtype=torch.float64), torch.ones(30, dtype=torch.float64) * 9
    ours = gcr.select_coreset(rows, 40, target=target, **options)
    theirs = gcr.select_coreset(rows.cuda(), 40, target=target.cuda(), **options)
    assert ours.rows.tolist() == theirs.rows.tolist()
    torch.testing.assert_close(ours.weights, theirs.weights.cpu(), rtol=1e-7, atol=1e-9)


def test_projected_gradients_on_a_gpu():
    net = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    loader = [(torch.rand(20, 8), torch.randint(3, (20,)))]
    ours = gcr.collect(net, loader, gradients="projected", width=64).gradients
    theirs = gcr.collect(net.cuda(), loader, gradients="projected", width=64).gradients
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
