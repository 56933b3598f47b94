import pytest
import torch

from gcr.models import build
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


def test_the_stem_on_eight_channels_is_the_same_convolution():
    stem = build("resnet18", (3, 8, 8), 10, seed=0).trunk[0]
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        wide, plain = stem.on_eight(images), stem(images)
    torch.testing.assert_close(wide, plain, atol=2e-2, rtol=2e-2)
    gradients = [torch.autograd.grad(out.float().square().sum(), stem.weight)[0] for out in (wide, plain)]
    torch.testing.assert_close(*gradients, atol=1.0, rtol=5e-2)
    assert gradients[0].abs().mean() > 1.0


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
