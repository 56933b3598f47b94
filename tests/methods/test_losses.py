"""Losses against values worked out by hand or by plain loops."""

import math

import pytest
import torch
from reference.gcr_algorithm import hand_supcon

from gcr.methods import Batch, Der, DerPlusPlus, Er, Gcr, GcrPlus
from gcr.methods.losses import (
    distillation,
    distillation_residual,
    label_loss,
    label_residual,
    supervised_contrast,
    weighted_mean,
)
from gcr.models.network import Network
from gcr.models.norm import Trunk


def test_label_loss_by_hand():
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert label_loss(logits, torch.tensor([0])).item() == pytest.approx(math.log(4))
    assert label_loss(logits, torch.tensor([1])).item() == pytest.approx(math.log(4 / 3))


def test_distillation_is_the_mean_over_classes():
    assert distillation(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])).item() == pytest.approx(2.5)


@pytest.mark.parametrize("loss", ["label", "distillation"])
def test_residuals_are_derivatives(loss):
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels, stored = torch.tensor([0, 1, 2, 0]), torch.ones(4, 3)
    value = label_loss(logits, labels) if loss == "label" else distillation(logits, stored)
    (expected,) = torch.autograd.grad(value.sum(), logits)
    residual = label_residual(logits, labels) if loss == "label" else distillation_residual(logits, stored)
    torch.testing.assert_close(residual.detach(), expected)


def test_supcon_of_two_opposite_examples_by_hand():
    """Views a, b, a, b with a = -b, t = 1: every anchor has one positive at 1 and two others at -1."""
    a, b = torch.tensor([[3.0, 0.0], [-2.0, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    each_view = -math.log(math.e / (math.e + 2 / math.e))
    values = supervised_contrast(a, b, torch.tensor([0, 1]), temperature=1.0)
    assert values.tolist() == pytest.approx([2 * each_view] * 2)


def test_supcon_equals_the_double_loop():
    g = torch.Generator().manual_seed(2)
    first, second, labels = torch.randn(6, 4, generator=g), torch.randn(6, 4, generator=g), [0, 1, 0, 2, 1, 0]
    expected = hand_supcon(first.tolist(), second.tolist(), labels, 0.07)
    assert supervised_contrast(first, second, torch.tensor(labels)).tolist() == pytest.approx(expected, rel=1e-4)


def test_all_zero_weights_give_zero_and_zero_gradient():
    values = torch.tensor([3.0, 4.0], requires_grad=True)
    result = weighted_mean(values, torch.zeros(2))
    (gradient,) = torch.autograd.grad(result, values)
    assert result.item() == 0.0
    assert gradient.tolist() == [0.0, 0.0]


class Straight(Network):
    """A network whose logits are its two-pixel images."""

    def __init__(self):
        super().__init__(Trunk(torch.nn.Flatten()), 2, 2)
        self.head = torch.nn.Identity()


def batch(pixels, labels, logits=None, weights=None, second=None):
    views = [torch.tensor(p).reshape(-1, 1, 1, 2) for p in (pixels, second) if p is not None]
    n = len(labels)
    return Batch(
        tuple(views),
        torch.tensor(labels),
        torch.tensor(logits) if logits else torch.zeros(n, 2),
        torch.tensor(weights) if weights else torch.ones(n),
    )


LOG2 = math.log(2)  # cross-entropy of equal logits
NEW = batch([[0.0, 0.0]], [0])
FAR = batch([[1.0, 1.0], [0.0, 0.0]], [0, 1], logits=[[0.0, 0.0], [2.0, 2.0]], weights=[1.0, 3.0])  # distances 1, 4
TIED = batch([[5.0, 5.0]], [1])


def value(method, *replay):
    return method.loss(Straight(), NEW, replay, {}).value.item()


def test_er_by_hand():
    old = batch([[0.0, math.log(3.0)]], [1])  # cross-entropy log(4/3)
    assert value(Er()) == pytest.approx(LOG2)
    assert value(Er(), old) == pytest.approx((LOG2 + math.log(4 / 3)) / 2)
    assert value(Er(forward="separate"), old) == pytest.approx(LOG2 + math.log(4 / 3))


def test_der_by_hand():
    assert value(Der(alpha=0.5), FAR) == pytest.approx(LOG2 + 0.5 * (1 * 1 + 3 * 4) / 4)


def test_der_plus_plus_by_hand():
    expected = LOG2 + 0.5 * 13 / 4 + 0.25 * LOG2
    assert value(DerPlusPlus(alpha=0.5, beta=0.25), FAR, TIED) == pytest.approx(expected)


def test_gcr_by_hand():
    contrast = batch([[3.0, 0.0], [-2.0, 0.0]], [0, 1], weights=[1.0, 7.0], second=[[1.0, 0.0], [-1.0, 0.0]])
    each = -2 * math.log(math.e / (math.e + 2 / math.e))
    method = Gcr(alpha=0.5, beta=0.25, gamma=0.125, temperature=1.0)
    assert value(method, FAR, TIED, contrast) == pytest.approx(LOG2 + 0.5 * 13 / 4 + 0.25 * LOG2 + 0.125 * each)
    by_size = Gcr(alpha=0.5, beta=0.25, gamma=0.125, temperature=1.0, normalise="size")
    expected = LOG2 + 0.5 * 13 / 2 + 0.25 * LOG2 + 0.125 * each * (1 + 7) / 2
    assert value(by_size, FAR, TIED, contrast) == pytest.approx(expected)


def test_gcr_without_contrast_is_weighted_der_plus_plus():
    assert len(Gcr(gamma=0.0).replays) == 2
    ours = value(Gcr(alpha=0.3, beta=0.2, gamma=0.0), FAR, TIED)
    assert ours == pytest.approx(value(DerPlusPlus(alpha=0.3, beta=0.2), FAR, TIED))


@pytest.mark.parametrize("stored", [[1.0, 2.0], [1.0, torch.nan]], ids=["all classes", "a later class"])
@pytest.mark.parametrize(
    "method",
    [
        Er(forward="separate"),
        Der(alpha=0.3),
        DerPlusPlus(alpha=0.3, beta=0.7),
        Gcr(alpha=0.3, beta=0.7, gamma=0.0),
        GcrPlus(alpha=0.3, beta=0.7, gamma=0.0, keep=0.0),
    ],
    ids=lambda method: method.name,
)
def test_selection_sees_the_derivative_of_the_replay_loss(method, stored):
    """One example in every replay minibatch: the gradient of the replay terms by its logits is the residual."""
    old = batch([[0.3, -0.4]], [1], logits=[stored], second=[[0.3, -0.4]])
    image = old.views[0].clone().requires_grad_()
    replay = tuple(Batch((image, image), old.labels, old.logits, old.weights) for _ in method.replays)
    extras = {"seen": torch.zeros(2, dtype=torch.bool), "steps": torch.tensor(0)}
    loss = method.loss(Straight(), NEW, replay, extras).value
    (expected,) = torch.autograd.grad(loss, image)
    torch.testing.assert_close(method.residual(image.detach().flatten(1), old), expected.flatten(1))
