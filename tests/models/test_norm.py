"""BatchNorm: several minibatches in one pass are the mathematics of passes in turn; statistics recomputed."""

import copy

import pytest
import torch
from torch import nn

import gcr
from gcr.models import build, recompute_bn, statistics
from gcr.models.norm import BatchNorm
from gcr.models.recompute_bn import statistics_layers
from gcr.training.numerics import computing

CASES = [((3, 2), True, True), ((4,), False, False), ((2, 3, 4), True, False), ((5, 5), False, True)]


def separate(module, x, sizes, add):
    """Batch normalisation of each minibatch by itself, in float64."""
    outs = []
    for part in x.split(sizes):
        mean, var = part.mean((0, 2, 3), keepdim=True), part.var((0, 2, 3), keepdim=True, correction=0)
        normal = (part - mean) / (var + module.eps).sqrt()
        outs.append(normal * module.weight.reshape(1, -1, 1, 1) + module.bias.reshape(1, -1, 1, 1))
    out = torch.cat(outs) if add is None else torch.cat(outs) + add
    return out.relu() if module.relu else out


def compare(device, dtype, sizes, relu, with_add, channels=24):
    generator = torch.Generator().manual_seed(0)
    module = BatchNorm(channels, relu).to(device)
    with torch.no_grad():
        module.weight.copy_(torch.rand(channels, generator=generator) + 0.5)
        module.bias.copy_(torch.randn(channels, generator=generator))
    reference = copy.deepcopy(module).double()
    x = (2 * torch.randn(sum(sizes), channels, 5, 7, generator=generator) + 3).to(device, dtype)
    add = torch.randn(x.shape, generator=generator).to(device, dtype) if with_add else None
    gradient = torch.randn(x.shape, generator=generator).to(device, dtype)
    ours = [t for t in (x.clone(memory_format=torch.channels_last), add) if t is not None]
    theirs = [t.double() for t in ours]
    for t in ours + theirs:
        t.requires_grad_()
    out = module(ours[0], sizes, ours[1] if with_add else None)
    expected = separate(reference, theirs[0], sizes, theirs[1] if with_add else None)
    tolerance = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 5e-2, "rtol": 5e-2}
    torch.testing.assert_close(out.double(), expected, **tolerance)
    if dtype != torch.float32:
        return  # where the ReLU cuts depends on rounding, and with it the gradient
    got = torch.autograd.grad(out, [*ours, module.weight, module.bias], gradient)
    wanted = torch.autograd.grad(expected, [*theirs, reference.weight, reference.bias], gradient.double())
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-3)
    mean, var = torch.zeros(channels, device=device).double(), torch.ones(channels, device=device).double()
    for part in x.double().split(sizes):
        mean = 0.9 * mean + 0.1 * part.mean((0, 2, 3))
        var = 0.9 * var + 0.1 * part.var((0, 2, 3))
    torch.testing.assert_close(module.running_mean.double(), mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(module.running_var.double(), var, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("sizes", "relu", "with_add"), CASES)
def test_minibatches_keep_their_own_statistics(sizes, relu, with_add):
    compare("cpu", torch.float32, sizes, relu, with_add)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("sizes", "relu", "with_add"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 24, 200])
def test_fused_kernels(sizes, relu, with_add, dtype, channels):
    compare("cuda", dtype, sizes, relu, with_add, channels)


def test_a_lone_value_has_no_statistics():
    with pytest.raises(ValueError, match="more than 1 value"):
        BatchNorm(3)(torch.zeros(1, 3, 1, 1))


@pytest.mark.parametrize("model", ["mlp", "convnet", "resnet18"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_pass_over_minibatches_equals_passes_in_turn(model, device):
    net = build(model, (3, 8, 8), 5, seed=0).to(device)
    in_turn, by_each = copy.deepcopy(net), copy.deepcopy(net)
    batches = [torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(n)).to(device) for n in (4, 6, 5)]
    with computing("fp32", torch.device(device)):
        together = net.trunk(torch.cat(batches), (4, 6, 5)).split([4, 6, 5])
        outputs = by_each.each(*batches)
        expected = [in_turn.features(images) for images in batches]
    for got, output, wanted in zip(together, outputs, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(output.features, wanted, atol=1e-3, rtol=1e-3)
    for name, wanted in in_turn.named_buffers():
        torch.testing.assert_close(net.get_buffer(name), wanted, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(by_each.get_buffer(name), wanted, atol=1e-4, rtol=1e-3)


def test_weights_can_be_loaded_by_name():
    net, other = (build("resnet18", (3, 8, 8), 5, seed=s) for s in (0, 1))
    other.load_state_dict(net.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


# --- BatchNorm statistics recomputed


def images(n, seed=0):
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) + 3


def test_statistics_are_the_means_over_the_batches():
    net = build("convnet", (1, 8, 8), 10, seed=0)
    first, batches = statistics_layers(net)[0], [images(6, 1), images(9, 2)]
    recompute_bn(net, iter(batches))
    with torch.no_grad():
        seen = [net.trunk[0](batch) for batch in batches]
    mean = (6 * seen[0].mean((0, 2, 3)) + 9 * seen[1].mean((0, 2, 3))) / 15
    variance = (6 * seen[0].var((0, 2, 3)) + 9 * seen[1].var((0, 2, 3))) / 15
    torch.testing.assert_close(first.running_mean, mean)
    torch.testing.assert_close(first.running_var, variance)


def test_a_network_settled_on_a_batch_predicts_as_in_training():
    """Of that batch; but for the variance, which divides by n - 1 where it is kept."""
    net = build("convnet", (1, 8, 8), 10, seed=0)
    batch = images(200)
    with torch.no_grad():
        wanted = copy.deepcopy(net).train()(batch)
        recompute_bn(net.eval(), [batch])
        torch.testing.assert_close(net(batch), wanted, atol=2e-3, rtol=1e-3)


def test_nothing_else_changes():
    net = nn.Sequential(build("convnet", (1, 8, 8), 10, seed=0), nn.Dropout(0.5), nn.BatchNorm1d(10)).train()
    net[1].eval()
    before = copy.deepcopy(net)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    recompute_bn(net, [images(8), images(8, 1)])
    assert torch.equal(torch.random.get_rng_state(), state)  # dropout stays out of it
    assert [m.training for m in net.modules()] == [m.training for m in before.modules()]
    assert [m.momentum for m in statistics_layers(net)] == [m.momentum for m in statistics_layers(before)]
    for (name, ours), (_, theirs) in zip(net.named_parameters(), before.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert ours.requires_grad
    assert net[2].num_batches_tracked == 0


def test_statistics_that_are_no_numbers_are_replaced():
    net = build("convnet", (1, 8, 8), 10, seed=0)
    statistics(net)[0].fill_(torch.inf)
    recompute_bn(net, [images(8)])
    assert all(kept.isfinite().all() for kept in statistics(net))


def test_without_batches_or_statistics_nothing_happens():
    net = build("convnet", (1, 8, 8), 10, seed=0)
    before = copy.deepcopy(net.state_dict())
    recompute_bn(net, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert statistics(build("mlp", (1, 8, 8), 10, seed=0)) == []
    assert statistics_layers(nn.BatchNorm2d(3, track_running_stats=False)) == []


def test_an_error_leaves_all_as_it_was():
    net = build("convnet", (1, 8, 8), 10, seed=0).train()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(RuntimeError):
        gcr.recompute_bn(net, [images(8), torch.zeros(8, 3, 8, 8)])
    assert all(module.training for module in net.modules())
    assert {layer.momentum for layer in statistics_layers(net)} == {0.1}
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_it_is_the_same():
    ours = build("resnet18", (3, 32, 32), 10, seed=0)
    theirs = copy.deepcopy(ours).cuda()
    batches = [torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    recompute_bn(ours, batches)
    recompute_bn(theirs, [batch.cuda() for batch in batches])
    for a, b in zip(statistics(ours), statistics(theirs), strict=True):
        torch.testing.assert_close(b.cpu(), a, atol=1e-3, rtol=1e-2)
