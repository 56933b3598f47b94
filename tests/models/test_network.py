"""Any classifier as a network: its head is found, and minibatches never touch each other, in one pass or several;
networks by name."""

import copy

import pytest
import torch
from made_learners import SmallViT
from torch import nn
from torch.func import functional_call, grad, vmap

from gcr.models import attach, build, network, order_weights
from gcr.models.cast_weights import cast_weights
from gcr.models.network import takes
from gcr.models.norm import BatchNorm, Trunk, keeps_minibatches_apart
from gcr.models.resnet18 import Conv3x3
from gcr.settings import BadInput
from gcr.training.numerics import computing

CPU = torch.device("cpu")


def classifier(norm, width=8):
    """A block with the norm nested two levels down."""
    inner = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), norm(width), nn.ReLU())
    return nn.Sequential(nn.Sequential(inner), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 6))


class Whitening(nn.Module):
    """A normalisation layer of a user's own, over the batch."""

    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-3)


class WhiteningNorm(Whitening):
    def __init__(self, width):
        super().__init__()


class OwnTrunk(nn.Module):
    """Takes a BatchNorm of ours, and does not give it the sizes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), BatchNorm(8)

    def forward(self, x):
        return self.norm(self.conv(x))


def trunk_with(layer):
    return network.Network(Trunk(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 8, 6)


NETS = {
    "nested batch norm": (lambda: classifier(nn.BatchNorm2d), False),
    "nested batch norm in our trunk": (lambda: trunk_with(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))), False),
    "our batch norm in a module that hides the sizes": (lambda: trunk_with(OwnTrunk()), False),
    "a norm nobody knows": (lambda: classifier(WhiteningNorm), False),
    "instance norm with running statistics": (
        lambda: classifier(lambda width: nn.InstanceNorm2d(width, track_running_stats=True)),
        False,
    ),
    "group norm": (lambda: classifier(lambda width: nn.GroupNorm(2, width)), True),
    "layer norm": (lambda: classifier(lambda width: nn.LayerNorm([width, 6, 6])), True),
    "vision transformer": (SmallViT, True),
    "our convnet": (lambda: build("convnet", (1, 6, 6), 6, seed=0), True),
    "our resnet18": (lambda: build("resnet18", (1, 6, 6), 6, seed=0), True),
}


@pytest.mark.parametrize("name", NETS)
def test_one_pass_is_taken_where_it_is_right(name, monkeypatch):
    """Outputs, gradients and running statistics on the branch that a GPU takes equal those of passes in turn.

    In float64: statistics of 3 examples, one pixel each, magnify the rounding of products of another size.
    """
    make, apart = NETS[name]
    torch.manual_seed(0)
    batches = [torch.randn(n, 1, 6, 6, dtype=torch.float64) for n in (5, 3, 4)]
    ours = attach(make().double().train(), batches[0], n_classes=6)
    theirs = copy.deepcopy(ours)
    assert ours.apart is apart
    passes = []
    monkeypatch.setattr(network, "ONE_PASS_ON", ("cpu",))
    whole = type(ours)._pass
    monkeypatch.setattr(type(ours), "_pass", lambda self, *given: passes.append(len(given[0])) or whole(self, *given))
    outputs = ours.each(*batches)
    assert passes == ([12] if apart else [5, 3, 4])
    monkeypatch.setattr(network, "ONE_PASS_ON", ())
    expected = theirs.each(*batches)
    for a, b in zip(outputs, expected, strict=True):
        torch.testing.assert_close(a.features, b.features, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(a.logits, b.logits, atol=1e-5, rtol=1e-4)
    for found in (outputs, expected):
        sum((o.logits * torch.arange(6)).square().mean() for o in found).backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-3)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_mixing_would_be_seen():
    """The comparison above can fail: a batch norm that mixes minibatches gives other outputs."""
    torch.manual_seed(0)
    batches = [torch.randn(5, 1, 6, 6), 3 + torch.randn(4, 1, 6, 6)]
    net = classifier(nn.BatchNorm2d).train()
    mixed = net(torch.cat(batches))[:5]
    assert not torch.allclose(mixed, net(batches[0]), atol=1e-2)


def test_sync_batch_norm_is_not_trusted():
    assert not keeps_minibatches_apart(nn.Sequential(nn.SyncBatchNorm(4)))


@pytest.mark.parametrize("make", [SmallViT, lambda: classifier(nn.BatchNorm2d), lambda: build("mlp", (1, 6, 6), 6, 0)])
def test_features_are_what_enters_the_head(make):
    images = torch.randn(4, 1, 6, 6)
    net = make().eval()
    attached = attach(net, images, n_classes=6)
    torch.testing.assert_close(attached.head(attached.features(images)), net(images))
    torch.testing.assert_close(attached(images), net(images))


def test_the_network_is_left_as_it_was():
    net = classifier(nn.BatchNorm2d).train()
    before = copy.deepcopy(net.state_dict())
    attach(net, torch.randn(4, 1, 6, 6), n_classes=6)
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


class Softmaxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Flatten(), nn.Linear(36, 6)

    def forward(self, x):
        return self.last(self.body(x)).softmax(1)


class Pair(Softmaxed):
    def forward(self, x):
        return self.last(self.body(x)), x


class Again(Softmaxed):
    """What enters its head last does not make what it returns."""

    def forward(self, x):
        logits = self.last(self.body(x))
        self.last(2 * self.body(x))
        return logits


@pytest.mark.parametrize(
    ("net", "head", "message"),
    [
        (Softmaxed(), None, "the head of net cannot be found: .* head=.*its linear layers: last"),
        (Softmaxed(), "last", "net must return the output of last; move what follows it"),
        (Softmaxed(), "body", 'head must name an nn.Linear of net, got "body"; its linear layers: last'),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(inplace=True)), None, "the head of net cannot be found"),
        (Again(), None, "the head of net cannot be found"),
        (Pair(), None, "net must give logits .* got tuple; wrap it in a module that returns them"),
        (nn.Sequential(nn.Flatten()), None, "cannot be found.*its linear layers: none"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), None, "net must give a logit per class, 6, got 4"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(36, 1000)),
            None,
            r"got 1000; replace its last layer by nn.Linear\(36, 6",
        ),
        ("convnet", None, "net must be a torch.nn.Module, got str"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused(net, head, message):
    with pytest.raises(BadInput, match=message):
        attach(net, torch.randn(4, 1, 6, 6), n_classes=6, head=head)


class Twice(Softmaxed):
    """Two layers whose outputs are equal: only the user knows which is the head."""

    def __init__(self):
        super().__init__()
        self.other = copy.deepcopy(self.last)

    def forward(self, x):
        return (self.last(self.body(x)) + self.other(self.body(x))) / 2


def test_a_named_head_is_taken():
    images = torch.randn(2, 1, 6, 6)
    assert attach(SmallViT(), images, 6, head="classifier").head.out_features == 6
    with pytest.raises(BadInput, match='several heads with equal outputs; name one by head="last"'):
        attach(Twice(), images, 6)
    assert attach(Twice(), images, 6, head="other").head_name == "other"


def test_a_head_behind_a_cast_is_found():
    class Cast(Softmaxed):
        def forward(self, x):
            return nn.functional.dropout(self.last(self.body(x)).double(), 0.5, self.training)

    assert attach(Cast(), torch.randn(2, 1, 6, 6), 6).head_name == "last"


# --- Networks by name


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


@pytest.mark.parametrize(("stride", "height", "width"), [(1, 4, 4), (2, 8, 7), (2, 3, 5), (1, 1, 1)])
def test_a_convolution_as_a_product_of_matrices(stride, height, width, monkeypatch):
    """Where pixels are few: outputs and gradients are those of torch's convolution."""
    torch.manual_seed(0)
    conv = Conv3x3(260, 6, stride).double()
    conv.to(memory_format=torch.channels_last)
    x = torch.randn(3, 260, height, width, dtype=torch.float64, requires_grad=True)
    expected = nn.functional.conv2d(x, conv.weight, stride=stride, padding=1)
    monkeypatch.delattr(nn.Conv2d, "forward")
    found = conv(x)
    gradient = torch.randn_like(expected)
    pairs = [(out, *torch.autograd.grad(out, (x, conv.weight), gradient)) for out in (found, expected)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


class Viewing(nn.Module):
    """As in many tutorials: it wants activations as they lie by default."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 5)

    def forward(self, x):
        x = self.conv(x)
        return self.head(x.view(len(x), -1))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_channels_last_is_for_our_models_and_for_those_that_can_be_so(device):
    example = torch.zeros(2, 3, 8, 8, device=device)
    flattening = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    cases = (build("convnet", (3, 8, 8), 10, seed=0), True), (flattening, device == "cuda"), (Viewing(), False)
    for net, last in cases:
        network = attach(net.to(device), example)
        order_weights(network, example)
        assert next(network.parameters()).is_contiguous(memory_format=torch.channels_last) is last
        assert network(example).shape[0] == 2


def test_a_network_that_views_activations_cannot_be_channels_last():
    example, network = torch.zeros(2, 3, 8, 8), attach(Viewing(), torch.zeros(2, 3, 8, 8))
    network.net.conv.eval()
    assert takes(network, example)
    network.to(memory_format=torch.channels_last)
    assert not takes(network, example)
    network.to(memory_format=torch.contiguous_format)
    assert takes(network, example)
    assert network.net.head.training
    assert not network.net.conv.training


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


# Weights cast together are those that autocast makes, and so are their gradients.


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
