import warnings

import pytest
import torch
from torch import nn

import gcr
from gcr.settings import BadInput


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def batches():
    g = torch.Generator().manual_seed(1)
    return [(torch.rand(n, 2, 2, generator=g), torch.randint(3, (n,), generator=g)) for n in (5, 3)]


def test_gradients_are_those_of_autograd():
    net = make_net()
    pool = gcr.collect(net, batches())
    inputs, labels = (torch.cat(column) for column in zip(*batches(), strict=True))
    net.eval()
    explicit = gcr.LastLayerGradients(pool.features, pool.residuals).explicit().float()
    for i in range(8):
        loss = nn.functional.cross_entropy(net(inputs[i : i + 1]), labels[i : i + 1])
        weight, bias = torch.autograd.grad(loss, [net[-1].weight, net[-1].bias])
        torch.testing.assert_close(explicit[i], torch.cat([weight, bias[:, None]], 1).flatten())
    assert torch.equal(pool.labels, labels)
    assert pool.weights.tolist() == [1.0] * 8


def test_a_last_layer_that_is_called_by_keyword():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(input=x)

    net, x = Named(), torch.randn(6, 4)
    pool = gcr.collect(net, [(x, torch.arange(6) % 3)])
    assert torch.equal(pool.features.float(), x)


def test_the_network_is_left_as_it_was():
    net = make_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gcr.collect(net, batches())
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert not net[-1]._forward_pre_hooks


def test_modes_of_single_layers_are_kept():
    net = make_net().train()
    net[4].eval()
    gcr.collect(net, batches())
    assert net.training
    assert not net[4].training


class HeadFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(6, 3), nn.Linear(4, 6)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


@pytest.mark.parametrize("gradients", ["last-layer", "projected"])
def test_progress_counts_batches(gradients):
    seen = []
    gcr.collect(make_net(), batches(), gradients=gradients, progress=lambda *done: seen.append(done))
    gcr.collect(make_net(), iter(batches()), gradients=gradients, progress=lambda *done: seen.append(done))
    assert seen == [(1, 2), (2, 2), (1, 0), (2, 0)]
    with pytest.raises(BadInput, match="progress must be a function of batches done and their number, got True"):
        gcr.collect(make_net(), batches(), gradients=gradients, progress=True)


def test_a_loader_that_shuffles_is_warned_of():
    data = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in zip(*batches(), strict=True)))
    with pytest.warns(UserWarning, match="loader shuffles: rows are in its order"):
        gcr.collect(make_net(), torch.utils.data.DataLoader(data, 4, shuffle=True))
    with warnings.catch_warnings(action="error"):
        gcr.collect(make_net(), torch.utils.data.DataLoader(data, 4))


def test_a_layer_that_does_not_make_the_logits_is_refused():
    net = HeadFirst()
    with pytest.raises(BadInput, match="the output of last_layer must be the output of net"):
        gcr.collect(net, batches())
    assert gcr.collect(net, batches(), last_layer=net.head).features.shape == (8, 6)
    with pytest.raises(BadInput, match="move what comes after it into the loss"):
        gcr.collect(nn.Sequential(make_net(), nn.ReLU()), batches())


def test_any_loss_with_one_value_per_example():
    net = make_net()
    pool = gcr.collect(net, batches(), loss=lambda logits, labels: 3 * logits[:, 0])
    assert torch.equal(pool.residuals, torch.tensor([3.0, 0.0, 0.0]).repeat(8, 1))


def test_from_loader_to_coreset():
    pool = gcr.collect(make_net(), batches())
    chosen = gcr.select_coreset(gcr.LastLayerGradients(pool.features, pool.residuals), 4, labels=pool.labels)
    assert len(chosen.rows) == 4


@pytest.mark.parametrize(
    ("net", "loader", "loss", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), batches(), None, "net has no nn.Linear"),
        (make_net(), [], None, "loader is empty"),
        (make_net(), [{"x": 1}], None, "loader must give pairs of tensors"),
        (make_net(), batches(), nn.functional.cross_entropy, 'use reduction="none"'),
    ],
)
def test_bad_input(net, loader, loss, message):
    with pytest.raises(BadInput, match=message):
        gcr.collect(net, loader, **({"loss": loss} if loss else {}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(value):
    data = batches()
    data[1][0][1, 0, 0] = value
    with pytest.raises(BadInput, match="features must be finite, got NaN or infinity in 1 of 8 rows: 6"):
        gcr.collect(make_net(), data)
    with pytest.raises(BadInput, match="residuals must be finite, got NaN or infinity in 8 of 8 rows: 0, 1"):
        gcr.collect(make_net(), batches(), loss=lambda logits, labels: value * logits[:, 0])
