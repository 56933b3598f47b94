"""``gcr.collect(…, gradients="projected")``: rows, their error, files that go on, and bad input."""

import os

import numpy as np
import pytest
import torch
from torch import nn

import gcr
from gcr.select import projected
from gcr.settings import BadInput


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Dropout(0.5), nn.Linear(30, 3)
    )


def batches(sizes=(5, 4, 6), seed=1):
    g = torch.Generator().manual_seed(seed)
    return [(torch.rand(n, 4, 4, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]


def by_autograd(net, data, names):
    net.eval()
    rows = []
    for inputs, labels in data:
        for x, y in zip(inputs, labels, strict=True):
            loss = nn.functional.cross_entropy(net(x.unsqueeze(0)), y.unsqueeze(0))
            found = torch.autograd.grad(loss, [dict(net.named_parameters())[name] for name in names])
            rows.append(torch.cat([part.flatten() for part in found]))
    return torch.stack(rows).numpy()


def test_few_parameters_are_not_projected():
    net = make_net().train()
    found = gcr.collect(net, batches(), gradients="projected", parameters="5.")
    np.testing.assert_allclose(found.gradients, by_autograd(net, batches(), ["5.weight", "5.bias"]), atol=1e-6)
    assert found.stated_error == 0
    assert found.error < 1e-6
    assert torch.equal(found.labels, torch.cat([labels for _, labels in batches()]))


def test_the_network_is_left_as_it_was():
    net = make_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gcr.collect(net, batches(), gradients="projected", width=64)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.filterwarnings("error")
def test_inner_products_hold_to_the_stated_error():
    """Over seeds: no bias, no warning, and a root mean square below sqrt(2 / m) of the lengths."""
    net, data = make_net(), batches()
    names = [name for name, _ in net.named_parameters()]
    exact = by_autograd(net, data, names).astype(np.float64)
    scale = np.linalg.norm(exact, axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    deviations, pairs = [], np.triu_indices(5)
    for seed in range(40):
        found = gcr.collect(net, data, gradients="projected", width=128, seed=seed)
        deviations.append(
            (found.gradients.double().numpy() @ found.gradients.double().numpy().T - exact @ exact.T) / scale
        )
        assert found.stated_error == pytest.approx((2 / 128) ** 0.5)
        assert found.checked == 5
        assert found.error == pytest.approx(np.sqrt(np.mean(np.square(deviations[-1][pairs]))), rel=1e-3)
    assert np.sqrt(np.mean(np.square(deviations))) < (2 / 128) ** 0.5
    assert np.abs(np.mean(deviations, 0)).max() < 4 * (2 / 128 / 40) ** 0.5


def test_inner_products_that_do_not_hold_are_warned_of(monkeypatch):
    plain = projected.Projector.project
    monkeypatch.setattr(projected.Projector, "project", lambda *a: 1.5 * plain(*a))
    with pytest.warns(UserWarning, match=r"in root mean square over 15 pairs of 5 examples; 0.12 is stated") as caught:
        found = gcr.collect(make_net(), batches(), gradients="projected", width=128)
    assert found.error > 4 * found.stated_error
    assert caught[0].filename == __file__


def test_the_check_holds_as_many_gradients_as_the_pass(monkeypatch):
    whole = gcr.collect(make_net(), batches((12,)), gradients="projected", width=128)
    assert whole.checked == 8
    for gradients, checked in ((3, 3), (0.1, 2)):
        monkeypatch.setattr(projected, "HELD", int(gradients * sum(p.numel() for p in make_net().parameters())))
        monkeypatch.setattr(projected, "SLICE", 100)
        found = gcr.collect(make_net(), batches((12,)), gradients="projected", width=128)
        assert found.checked == checked
        exact = by_autograd(make_net(), batches((12,)), [n for n, _ in make_net().named_parameters()])[:checked]
        rows, scale = found.gradients[:checked].numpy(), np.linalg.norm(exact, axis=1)
        off = (rows @ rows.T - exact @ exact.T) / (scale[:, None] * scale)
        assert found.error == pytest.approx(np.sqrt(np.mean(off[np.triu_indices(checked)] ** 2)), rel=1e-3)


def test_parameters_by_list_and_small_pieces(monkeypatch):
    net = make_net()
    whole = gcr.collect(net, batches(), gradients="projected", parameters=[net[1].weight, "5."], width=50)
    monkeypatch.setattr(projected, "HELD", 1)
    pieces = gcr.collect(net, batches(), gradients="projected", parameters=[net[1].weight, "5."], width=50)
    np.testing.assert_allclose(whole.gradients, pieces.gradients, atol=1e-6)


@pytest.mark.filterwarnings("error")  # a file that is left open too
def test_a_file_goes_on_where_it_ended(tmp_path, monkeypatch):
    net, file = make_net(), tmp_path / "gradients.npy"
    whole = gcr.collect(net, batches(), gradients="projected", width=50)

    def broken():
        yield from batches()[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gcr.collect(net, broken(), gradients="projected", width=50, to=file)
    assert np.load(file).shape == (9, 50)
    with file.open("ab") as stream:
        stream.write(b"half a row")
    computed, plain = [], projected.Projector.rows
    monkeypatch.setattr(projected.Projector, "rows", lambda *a: computed.append(len(a[1])) or plain(*a))
    found = gcr.collect(net, batches(), gradients="projected", width=50, to=file)
    assert computed == [1, 1, 1, 1, 6]  # the ends of what is there, to compare, then the rest
    np.testing.assert_allclose(found.gradients, whole.gradients, atol=1e-6)
    assert np.array_equal(np.load(file, mmap_mode="r"), found.gradients)
    chosen = gcr.select_coreset(found.gradients, 4)
    assert chosen.rows.tolist() == gcr.select_coreset(found.gradients.clone(), 4).rows.tolist()


@pytest.mark.parametrize("row", [0, 7])
def test_rows_that_are_not_finite_are_named_and_not_written(tmp_path, row):
    net, data, file = make_net(), batches(), tmp_path / "gradients.npy"
    batch, place, size = (0, 0, 5) if row == 0 else (1, 2, 4)
    data[batch][0][place, 0, 0] = torch.nan
    message = f"gradients must be finite, got NaN or infinity in 1 of {size} rows: {row}$"
    with pytest.raises(BadInput, match=message):
        gcr.collect(net, data, gradients="projected", width=50)
    with pytest.raises(BadInput, match=message):
        gcr.collect(net, data, gradients="projected", width=50, to=file)
    assert np.load(file).shape == (0 if row == 0 else 5, 50)
    found = gcr.collect(net, batches(), gradients="projected", width=50, to=file)  # goes on from the good rows
    assert found.gradients.shape == (15, 50)
    assert found.gradients.isfinite().all()


def test_files_that_do_not_fit(tmp_path):
    net, file = make_net(), tmp_path / "gradients.npy"
    gcr.collect(net, batches(), gradients="projected", width=50, to=file)
    with pytest.raises(BadInput, match="has other gradients in row 0: another net, seed, parameters or order"):
        gcr.collect(net, batches(seed=2), gradients="projected", width=50, to=file)
    with pytest.raises(BadInput, match="has 15 rows, but loader gives 9"):
        gcr.collect(net, batches((5, 4)), gradients="projected", width=50, to=file)
    with pytest.raises(BadInput, match=r"must have float32 rows of 60 numbers, got \(15, 50\)"):
        gcr.collect(net, batches(), gradients="projected", width=60, to=file)
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(BadInput, match="is cut short: 15 rows by its header, 13 in it"):
        gcr.collect(net, batches(), gradients="projected", width=50, to=file)
    file.write_text("something else")
    with pytest.raises(BadInput, match="is not a file of projected gradients"):
        gcr.collect(net, batches(), gradients="projected", width=50, to=file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradients": "all"}, "gradients must be 'last-layer' or 'projected', got 'all'"),
        ({"parameters": "lora_"}, "parameters must name some of the net's, such as 1.weight"),
        (
            {"parameters": ["5.", "lora_"]},
            "parameters must be the net's, such as 1.weight, 1.bias, 2.weight; got 'lora_'",
        ),
        ({"parameters": nn.Parameter(torch.zeros(2, 3))}, "got another tensor of shape (2, 3)"),
        ({"net": make_net().requires_grad_(False)}, "no parameter of net requires a gradient"),
        ({"seed": "a"}, "seed must be a whole number >= 0, got 'a'"),
        (
            {"loss": lambda logits, labels: logits.sum(1) * labels.item()},
            "ones that torch.func can batch over examples",
        ),
        ({"width": 0}, "width must be a whole number >= 1, got 0"),
        ({"to": "no-such-folder/rows.npy"}, "cannot write no-such-folder/rows.npy (No such file or directory)"),
        ({"last_layer": nn.Linear(2, 2)}, "last_layer goes with gradients='last-layer'"),
        (
            {"gradients": "last-layer", "parameters": "5."},
            "parameters, width, seed and to go with gradients='projected'",
        ),
        ({"gradients": "last-layer", "width": 16}, "parameters, width, seed and to go with gradients='projected'"),
        ({"loader": []}, "loader is empty"),
        ({"loader": [torch.zeros(2)]}, "loader must give pairs of tensors"),
        ({"loss": lambda logits, labels: logits.sum()}, "loss must give one value per example"),
    ],
)
def test_bad_input_of_collect(arguments, message):
    with pytest.raises(BadInput) as caught:
        gcr.collect(**({"net": make_net(), "loader": batches(), "gradients": "projected"} | arguments))
    assert message in str(caught.value)


def test_a_file_cut_short_after_it_was_made(tmp_path):
    """Reading beyond its end would end the process."""
    found = gcr.collect(
        make_net(), batches((2000, 2000)), gradients="projected", parameters="5.", to=tmp_path / "g.npy"
    )
    size = (tmp_path / "g.npy").stat().st_size
    os.truncate(tmp_path / "g.npy", 10_000)
    try:
        with pytest.raises(BadInput, match=r"g.npy has 10,000 bytes, and .* were mapped"):
            gcr.select_coreset(found.gradients, 5)
    finally:
        os.truncate(tmp_path / "g.npy", size)
