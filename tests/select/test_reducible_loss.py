"""Reducible loss: the rule, and the column that it needs, against plain versions."""

import math

import pytest
import torch
from conftest import make_scenario
from named import Training, train

from gcr.memory import Policy
from gcr.methods import GcrPlus
from gcr.methods.losses import reducible_loss
from gcr.select import Pool, ReducibleLoss
from gcr.settings import BadInput


def plain_loss(logits, label):
    known = [logit for logit in logits if not math.isnan(logit)]
    return math.log(sum(math.exp(logit) for logit in known)) - logits[label]


def test_the_loss_then_less_the_loss_now():
    g = torch.Generator().manual_seed(0)
    stored, logits = (torch.randn(7, 5, generator=g, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(3, (7,), generator=g)
    stored[:4, 3:] = torch.nan  # stored when there were three classes
    expected = [
        plain_loss(then, label) - plain_loss(now, label)
        for then, now, label in zip(stored.tolist(), logits.tolist(), labels.tolist(), strict=True)
    ]
    assert reducible_loss(stored, logits, labels).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_each_class_keeps_its_highest(seed):
    g = torch.Generator().manual_seed(seed)
    labels, fallen = torch.randint(3, (30,), generator=g), torch.randn(30, generator=g)
    fallen[[3, 4, 5]] = fallen[2].item()  # the lowest row on ties
    chosen = ReducibleLoss()(Pool(labels, torch.ones(30), reducible=fallen), 10, torch.zeros(30))
    expected = []
    for label, share in ((0, 4), (1, 3), (2, 3)):
        members = [i for i in range(30) if labels[i] == label]
        assert len(members) >= share
        expected += sorted(members, key=lambda i: (-fallen[i].item(), i))[:share]
    assert chosen.rows.tolist() == sorted(expected)
    assert torch.equal(chosen.weights, torch.ones(10))


def test_selection_sees_the_stored_logits_and_those_of_now():
    """After the last selection nothing is trained: what was kept has the reducible loss that it was kept for."""
    pools = []

    class Recording(ReducibleLoss):
        def __call__(self, pool, budget, draws):
            pools.append(pool)
            return super().__call__(pool, budget, draws)

    scenario = make_scenario()
    policy = Policy(buffer=12, selector=Recording(), replay_batch=8)
    state = train(scenario, "convnet", GcrPlus(), policy, Training(epochs=2, batch=8, lr=0.05), 0).state
    stored = state.memory.read(state.memory.filled_rows())
    logits = state.net.eval()(scenario.views.plain(stored["image"])).detach()
    chosen = ReducibleLoss()(pools[-1], 12, torch.zeros(len(pools[-1])))
    for then, now, label, found in zip(
        stored["logits"].tolist(),
        logits.tolist(),
        stored["label"].tolist(),
        pools[-1].reducible[chosen.rows],
        strict=True,
    ):
        assert found.item() == pytest.approx(plain_loss(then, label) - plain_loss(now, label), abs=1e-4)


def test_what_replaces_the_stored_logits_is_refused():
    with pytest.raises(BadInput, match="reducible-loss compares with logits from when an example came"):
        Policy(buffer=12, selector=ReducibleLoss(), pool="selector")
