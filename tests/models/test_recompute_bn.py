import copy

import pytest
import torch
from torch import nn

import gcr
from gcr.models import build, recompute_bn, statistics
from gcr.models.recompute_bn import statistics_layers


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
