import pytest
import torch
from conftest import make_scenario

from gcr.experiments.experiment import compose
from gcr.experiments.optimizers import OptimizerSpec
from gcr.settings import BadInput
from gcr.training.sgd import Sgd


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, Sgd),
        ({"momentum": 0.9}, torch.optim.SGD),
        ({"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}, torch.optim.AdamW),
        ({"optimizer.name": "adam", "optimizer.lr": "0.001"}, torch.optim.Adam),
    ],
)
def test_an_experiment_makes_its_network_and_optimizer(given, kind):
    experiment = compose("seq-digits", "gcr", seed=5, overrides={"model": "mlp"} | given)
    net = experiment.make_net(make_scenario())
    again = experiment.make_net(make_scenario())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    optimizer = experiment.make_optimizer(net)
    assert type(optimizer) is kind
    if isinstance(optimizer, torch.optim.Optimizer):
        group = optimizer.param_groups[0]
        assert [group["lr"], group["weight_decay"]] == [experiment.optimizer.lr, experiment.optimizer.weight_decay]
        assert len(group["params"]) == len(list(net.parameters()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "adamm"}, 'unknown optimizer "adamm" .did you mean "adam'),
        ({"lr": -1}, "lr must be >= 0.0, got -1"),
        ({"name": "adam", "momentum": 0.9}, "momentum is for optimizer sgd, got optimizer adam; leave out"),
        ({"momentum": 1.0}, "momentum must be <= 0.9999"),
    ],
)
def test_bad_optimizers_are_refused(given, said):
    with pytest.raises(BadInput, match=said):
        OptimizerSpec(**given)
