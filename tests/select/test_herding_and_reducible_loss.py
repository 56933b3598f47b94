"""Herding and reducible loss: each class keeps its best rows, against plain versions."""

import math

import pytest
import torch
from conftest import make_scenario
from named import Training, train

from gcr.memory import Policy
from gcr.methods import GcrPlus
from gcr.methods.losses import reducible_loss
from gcr.select import Pool, ReducibleLoss
from gcr.select.herding import Herding, herd
from gcr.settings import BadInput

# --- Herding


def plain_herding(features, picks):
    """Algorithm 4 of iCaRL, a row at a time."""
    phi = [row / row.norm() if row.norm() > 0 else row for row in features.double()]
    mean = sum(phi) / len(phi)
    chosen = []
    for k in range(1, picks + 1):
        earlier = sum((phi[i] for i in chosen), torch.zeros_like(mean))
        distance = {i: (mean - (phi[i] + earlier) / k).norm().item() for i in range(len(phi)) if i not in chosen}
        chosen.append(min(distance, key=distance.get))
    return chosen


def pool_of(features, labels=None):
    n = len(features)
    return Pool(labels=torch.zeros(n).long() if labels is None else labels, weights=torch.ones(n), features=features)


@pytest.mark.parametrize("seed", range(20))
def test_order_is_that_of_the_algorithm(seed):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(15, 4, generator=g, dtype=torch.float64) + 0.5
    picks = int(torch.randint(1, 16, (1,), generator=g))
    assert herd(features, picks).tolist() == plain_herding(features, picks)


def test_every_class_is_herded_alone():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(20, 3, generator=g), torch.arange(20) % 2 * 5
    expected = []
    for label, share in ((0, 4), (5, 3)):
        rows = torch.nonzero(labels == label).flatten()
        expected += rows[plain_herding(features[rows], share)].tolist()
    assert Herding()(pool_of(features, labels), 7, torch.rand(20, generator=g)).rows.tolist() == expected


def test_a_class_with_nothing_new_gives_up_the_last_of_its_list():
    """Algorithm 5; another class, which has candidates, is herded."""
    g = torch.Generator().manual_seed(2)
    features, labels = torch.randn(18, 3, generator=g), torch.tensor([0] * 8 + [1] * 10)
    kept = torch.arange(18) < 8
    rows = Herding()(Pool(labels, torch.ones(18), features, kept=kept), 10, torch.zeros(18)).rows.tolist()
    assert rows[:5] == [0, 1, 2, 3, 4] != plain_herding(features[:8], 5)
    assert rows[5:] == [8 + i for i in plain_herding(features[8:], 5)]


def test_length_of_features_plays_no_part():
    g = torch.Generator().manual_seed(1)
    features = torch.randn(12, 3, generator=g, dtype=torch.float64)
    scaled = features * 2.0 ** torch.randint(-9, 9, (12, 1), generator=g)
    draws = torch.zeros(12)
    assert torch.equal(Herding()(pool_of(features), 5, draws).rows, Herding()(pool_of(scaled), 5, draws).rows)


def test_the_first_pick_is_the_direction_nearest_the_mean():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.1], [0.0, 2.0], [5.0, 0.0]])
    assert Herding()(pool_of(features), 1, torch.zeros(5)).rows.tolist() == [2]


def test_a_balanced_class_is_kept_balanced():
    """Two directions in equal shares: every even number of picks holds as many of either."""
    features = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    for half in (1, 2, 3):
        rows = Herding()(pool_of(features), 2 * half, torch.zeros(8)).rows
        assert int((rows < 4).sum()) == half


def test_duplicates_are_taken_lowest_row_first():
    assert Herding()(pool_of(torch.ones(5, 2)), 3, torch.zeros(5)).rows.tolist() == [0, 1, 2]


def test_rows_of_zeros_are_no_trouble():
    assert Herding()(pool_of(torch.zeros(3, 2)), 2, torch.zeros(3)).rows.tolist() == [0, 1]
    assert herd(torch.tensor([[0.0], [1.0]]), 2).tolist() == plain_herding(torch.tensor([[0.0], [1.0]]), 2)


def test_one_row_and_a_budget_beyond_the_pool():
    chosen = Herding()(pool_of(torch.tensor([[1.0]])), 9, torch.zeros(1))
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == [1.0]


def test_a_budget_below_the_number_of_classes():
    assert Herding()(pool_of(torch.eye(3), torch.arange(3)), 2, torch.zeros(3)).rows.tolist() == [0, 1]


# --- Reducible loss: the rule, and the column that it needs


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
