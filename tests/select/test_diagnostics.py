import pytest
import torch

from gcr.select import Coreset, GradApprox, Pool, explain
from gcr.settings import BadInput


def pool(seed=0):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        torch.arange(60) % 3,
        torch.rand(60, generator=g) + 0.5,
        torch.randn(60, 5, generator=g),
        torch.randn(60, 3, generator=g),
    )


def test_numbers_by_hand():
    made = Pool(torch.tensor([0, 0, 1]), torch.ones(3), torch.zeros(3, 1), torch.tensor([[3.0], [1.0], [5.0]]))
    report = explain(Coreset(torch.tensor([0, 2]), torch.tensor([1.0, 3.0])), made)
    assert report.gradient_error == pytest.approx((1**2 + 10**2) ** 0.5)  # 3 + 1 - 3, and 5 - 3 * 5
    assert report.gradient_length == pytest.approx((4**2 + 5**2) ** 0.5)
    assert (report.total_weight, report.smallest_weight, report.largest_weight) == (4.0, 1.0, 3.0)
    assert report.effective_size == pytest.approx(16 / 10)
    assert report.per_class == {0: 1, 1: 1}


def test_everything_kept_has_no_error():
    report = explain(Coreset(torch.arange(60), pool().weights), pool())
    assert report.gradient_error == pytest.approx(0, abs=1e-4)
    assert report.per_class == {0: 20, 1: 20, 2: 20}


def test_grad_approx_beats_chance():
    assert explain(GradApprox()(pool(), 15, torch.zeros(60)), pool()).relative_to_uniform < 0.5


def test_without_classes_the_error_is_that_of_the_whole_pool():
    made = Pool(torch.tensor([0, 1]), torch.ones(2), torch.zeros(2, 1), torch.tensor([[1.0], [1.0]]))
    chosen = Coreset(torch.tensor([0]), torch.tensor([2.0]))
    assert explain(chosen, made, by_class=False).gradient_error == pytest.approx(0)
    assert explain(chosen, made).gradient_error == pytest.approx(2**0.5)
    assert explain(chosen, made, by_class=False).per_class == {0: 1, 1: 0}


def test_a_pool_without_gradients_is_refused():
    with pytest.raises(BadInput, match="features and residuals"):
        explain(Coreset(torch.tensor([0]), torch.ones(1)), Pool(torch.tensor([0]), torch.ones(1)))
