"""Weights cast together are those that autocast makes, and so are their gradients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from gcr.models import build, network
from gcr.models.cast_weights import cast_weights
from gcr.training.numerics import computing

CPU = torch.device("cpu")


def outputs_and_gradients(net):
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with computing("bf16", CPU):
        both = [
            *net.each(images[:2], images[2:]),
            *net.each(images),
        ]  # a weight used twice: gradients add up in float32
        value = sum(output.logits.square().sum() for output in both)
        return [
            *(o.logits for o in both),
            *torch.autograd.grad(value, [p for p in net.parameters() if p.requires_grad]),
        ]


@pytest.mark.parametrize("frozen", [False, True])
def test_as_autocast_casts(frozen, monkeypatch):
    net = build("convnet", (1, 8, 8), 10, 0)
    if frozen:
        next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d)).requires_grad_(False)
    ours = outputs_and_gradients(net)
    monkeypatch.setattr(network, "cast_weights", lambda trunk, device: {})
    for a, b in zip(ours, outputs_and_gradients(net), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_gradients_of_single_examples():
    """By torch's transforms, which know no casts of ours."""
    net = build("mlp", (1, 8, 8), 10, 0)
    stem = build("resnet18", (3, 8, 8), 10, 0).trunk[0]
    stem.forward = stem.on_eight  # as on a GPU
    for module, shape in ((net, (1, 8, 8)), (stem, (3, 8, 8))):
        weights = {name: parameter.detach() for name, parameter in module.named_parameters()}

        def value(weights, image, module=module):
            return functional_call(module, weights, (image.unsqueeze(0),)).square().sum()

        with computing("bf16", CPU):
            found = vmap(grad(value), (None, 0))(weights, torch.ones(2, *shape))
        assert all(gradient.shape == (2, *weights[name].shape) for name, gradient in found.items())


def test_every_weight_is_cast_once():
    trunk = build("convnet", (1, 8, 8), 10, 0).trunk
    assert cast_weights(trunk, "cpu") == {}  # outside autocast
    layers = [layer for layer in trunk.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    with computing("bf16", CPU):
        cast = cast_weights(trunk, "cpu")
        assert len(cast) == len(layers)
        assert {w.dtype for w in cast.values()} == {torch.bfloat16}
        layers[0].requires_grad_(False)
        assert len(cast_weights(trunk, "cpu")) == len(layers) - 1  # no gradient of a frozen layer is computed
        assert cast_weights(nn.Sequential(nn.ReLU()), "cpu") == {}
