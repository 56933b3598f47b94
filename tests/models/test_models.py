import pytest
import torch
from torch import nn

from gcr.models import Network, attach, build, order_weights
from gcr.models.norm import Trunk
from gcr.models.resnet18 import Conv3x3
from gcr.settings import BadInput


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [("convnet", (1, 8, 8), 256), ("mlp", (1, 8, 8), 100), ("resnet18", (3, 32, 32), 512)],
)
def test_image_to_features_to_logits(name, shape, features):
    net = build(name, shape, 10, seed=0)
    images = torch.rand(2, *shape)
    net.eval()
    assert net.features(images).shape == (2, features)
    torch.testing.assert_close(net(images), net.head(net.features(images)))


def test_resnet18_is_the_papers():
    """3x3 stem, full size until the first stride, and the 11.17 million weights of ResNet-18 with 10 classes."""
    net = build("resnet18", (3, 32, 32), 10, seed=0)
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    assert net.trunk[:4](torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)


@pytest.mark.parametrize(("stride", "height", "width"), [(1, 4, 4), (2, 8, 7), (2, 3, 5), (1, 1, 1)])
def test_a_convolution_as_a_product_of_matrices(stride, height, width, monkeypatch):
    """Where pixels are few: outputs and gradients are those of torch's convolution."""
    torch.manual_seed(0)
    conv = Conv3x3(260, 6, stride).double()
    order_weights(Network(Trunk(conv), 6, 2))
    x = torch.randn(3, 260, height, width, dtype=torch.float64, requires_grad=True)
    expected = nn.functional.conv2d(x, conv.weight, stride=stride, padding=1)
    monkeypatch.delattr(nn.Conv2d, "forward")
    found = conv(x)
    gradient = torch.randn_like(expected)
    pairs = [(out, *torch.autograd.grad(out, (x, conv.weight), gradient)) for out in (found, expected)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


def test_only_our_own_models_are_channels_last_on_a_cpu():
    """A user's network may ``view`` activations as [batch, channels * height * width]."""
    ours = build("convnet", (3, 8, 8), 10, seed=0)
    theirs = attach(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)), torch.zeros(2, 3, 8, 8))
    for net, last in ((ours, True), (theirs, False)):
        order_weights(net)
        weight = next(net.parameters())
        assert weight.is_contiguous(memory_format=torch.channels_last) is last


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    first = build("convnet", (1, 8, 8), 10, seed=1)
    before = torch.get_rng_state()
    second, other = build("convnet", (1, 8, 8), 10, seed=1), build("convnet", (1, 8, 8), 10, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_unknown_model_says_what_exists():
    with pytest.raises(BadInput, match='did you mean "resnet18"'):
        build("resnet", (3, 32, 32), 10, seed=0)


def test_a_plain_dict_of_tensors_loads():
    """As a file of tensors gives it, without torch's metadata."""
    ours, other = (build("convnet", (1, 8, 8), 10, seed) for seed in (0, 1))
    ours.load_state_dict(dict(other.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))
