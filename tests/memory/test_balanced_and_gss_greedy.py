"""The class-balanced reservoir against a plain loop, and what it promises; GSS-Greedy by scores alone."""

import numpy as np
import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, one_step

from gcr.memory import BalancedReservoir, Buffer, GssGreedy, Policy, deal_priorities, offer_balanced
from gcr.memory.gss_greedy import Scores, offer_by_scores, rows_to_compare, scores
from gcr.methods import ClsEr, DerPlusPlus, Er, ErAce, Gcr, GcrPlus
from gcr.select import LastLayerGradients
from gcr.select.herding import herd
from gcr.settings import BadInput
from gcr.training.randomness import DrawPlan, EpochDraws
from gcr.training.reselect import order_by_herding
from gcr.training.step import draw_plan, sampler_of

# --- The class-balanced reservoir: equal shares, equal chances


def offered(memory, labels, draws, first=0, admitted=None, losses=None):
    n = len(labels)
    batch = {
        "image": torch.arange(first, first + n).reshape(n, 1).float(),
        "label": torch.as_tensor(labels),
        "logits": torch.zeros(n, 4),
        "task": torch.zeros(n, dtype=torch.int64),
    }
    losses = None if losses is None else torch.as_tensor(losses, dtype=torch.float32)
    offer_balanced(memory, batch, torch.as_tensor(draws, dtype=torch.float64), admitted, losses)


def empty(capacity, *also):
    return Buffer.empty(capacity, 0, (1,), 4, dtype=torch.float32, also=("score", *also))


def kept(memory):
    rows = memory.filled_rows()
    return sorted(memory.columns["image"][rows, 0].int().tolist())


def plain(labels, draws, capacity):
    """Of all that came, those with the lowest (rank in their class, priority)."""
    ranked = []
    for label in set(labels):
        members = sorted((draws[i], i) for i in range(len(labels)) if labels[i] == label)
        ranked += [(rank, priority, i) for rank, (priority, i) in enumerate(members)]
    return sorted(i for _, _, i in sorted(ranked)[:capacity])


@pytest.mark.parametrize("seed", range(8))
def test_batches_keep_what_one_look_at_everything_would_keep(seed):
    random = np.random.default_rng(seed)
    n, capacity = int(random.integers(5, 120)), int(random.integers(4, 40))
    labels = random.integers(0, 4, n).tolist()
    draws = random.random(n).astype(np.float32).astype(np.float64)  # priorities are stored in float32
    memory, first = empty(capacity), 0
    while first < n:
        size = int(random.integers(1, 9))
        part = slice(first, first + size)
        offered(memory, labels[part], draws[part], first)
        first = min(first + size, n)
        assert kept(memory) == plain(labels[:first], draws[:first], capacity)


def test_a_draw_that_rounds_to_one():
    """Rank and priority are sorted as one sum, in which 0 + 1.0 would count as the rank after."""
    memory = empty(2)
    offered(memory, [0, 0, 1], [0.0, 0.0, 1 - 2**-40])
    assert kept(memory) == [0, 2]


def test_classes_share_memory_equally_whatever_their_numbers_and_order():
    memory, random = empty(30), np.random.default_rng(0)
    for label, n in ((0, 500), (1, 40), (2, 5), (0, 100)):
        for _ in range(n):
            offered(memory, [label], random.random(1))
    counts = torch.bincount(memory.columns["label"][memory.filled_rows()]).tolist()
    assert counts[2] == 5  # all that there were
    assert sorted(counts[:2]) == [12, 13]


def test_every_example_of_a_class_has_the_same_chance():
    times = np.zeros(20)
    for seed in range(600):
        memory, random = empty(5), np.random.default_rng(seed)
        for first in range(0, 20, 4):
            offered(memory, [1] * 4, random.random(4), first)
        times[kept(memory)] += 1
    assert abs(times - 600 * 5 / 20).max() < 5 * (600 * 0.25 * 0.75) ** 0.5


def test_what_is_not_admitted_stays_out_and_is_not_counted():
    memory = empty(4)
    offered(memory, [0, 1, 0], [0.1, 0.2, 0.3], admitted=torch.tensor([True, False, True]))
    assert kept(memory) == [0, 2]
    assert int(memory.seen) == 2
    assert int(memory.kept) == 2


def plain_by_loss(kept, batch, capacity):
    """``kept`` and ``batch`` are (label, priority, loss, number). Priorities say how many of a class stay and which new
    ones take part; of these and the old ones the lowest losses go. Priorities that stay are dealt out again."""
    everyone = kept + batch
    places = plain([label for label, *_ in everyone], [priority for _, priority, *_ in everyone], capacity)
    after = []
    for label in {label for label, *_ in everyone}:
        staying = [everyone[i] for i in places if everyone[i][0] == label]
        part = [row for row in kept if row[0] == label] + [row for row in staying if row in batch]
        best = sorted(part, key=lambda row: -row[2])[: len(staying)]
        priorities = sorted(priority for _, priority, *_ in staying)
        after += [(label, priority, row[2], row[3]) for priority, row in zip(priorities, best, strict=True)]
    return after


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_of_lowest_loss_go_and_shares_are_those_of_the_plain_reservoir(seed):
    random = np.random.default_rng(seed)
    capacity, n = int(random.integers(4, 30)), 150
    labels = np.sort(random.integers(0, 4, n)) if seed % 2 else random.integers(0, 4, n)
    draws = random.random(n).astype(np.float32).astype(np.float64)
    losses = random.exponential(size=n).astype(np.float32)
    memory, without, expected, first = empty(capacity, "loss"), empty(capacity), [], 0
    while first < n:
        part = slice(first, first + int(random.integers(1, 9)))
        offered(memory, labels[part], draws[part], first, losses=losses[part])
        offered(without, labels[part], draws[part], first)
        batch = list(
            zip(labels[part].tolist(), draws[part].tolist(), losses[part].tolist(), range(first, n), strict=False)
        )
        expected, first = plain_by_loss(expected, batch, capacity), first + len(batch)
        assert kept(memory) == sorted(number for *_, number in expected)
        rows = memory.filled_rows()
        for name, place in (("label", 0), ("score", 1), ("loss", 2)):
            assert sorted(memory.columns[name][rows].tolist()) == sorted(row[place] for row in expected)
        for name in ("label", "score"):  # chances and shares: those of before
            assert sorted(memory.columns[name][rows].tolist()) == sorted(without.columns[name][rows].tolist())
    assert kept(memory) != kept(without)


def test_what_is_not_admitted_has_no_part_in_eviction():
    memory = empty(2, "loss")
    offered(memory, [0, 0], [0.5, 0.6], losses=[1.0, 2.0])
    offered(memory, [0, 0], [0.1, 0.2], 2, torch.tensor([False, True]), losses=[9.0, 3.0])
    assert kept(memory) == [1, 3]
    assert sorted(memory.columns["score"][:2].tolist()) == pytest.approx([0.2, 0.5])


def test_dealing_priorities_out_again_changes_who_has_them_and_no_more():
    memory = empty(6)
    offered(memory, [1, 0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5])
    deal_priorities(memory, torch.tensor([4, 3, 0, 1, 2]))
    assert memory.columns["score"][:5].tolist() == pytest.approx([0.3, 0.4, 0.5, 0.2, 0.1])


@pytest.mark.parametrize("network", ["trained", "predictor"])
def test_what_herding_picks_last_goes_first(network):
    """A full memory of two classes is herded; two new classes then take half of it."""
    scenario, method = make_scenario(n_per_class=30), GcrPlus()
    policy = Policy(buffer=24, selector=BalancedReservoir(evict="herding"), pool_network=network)
    state = fresh_state(scenario, "mlp", method, policy, Training(batch=8, lr=0.05), 0)
    first, later = (torch.nonzero(scenario.task_of_class[scenario.train.labels] == task).flatten() for task in (0, 1))
    offer_rows(state, scenario, first, seed=0)
    order_by_herding(state.memory, policy, method, state.net, scenario.views, state.extras)
    net = state.net.eval()
    images, labels = state.memory.columns["image"][:24].clone(), state.memory.columns["label"][:24].clone()
    best = set()
    for label in labels.unique():
        rows = torch.nonzero(labels == label).flatten()
        with torch.no_grad():  # the EMA is the network as it began, too
            order = herd(net.features(scenario.views.plain(images[rows])), 6)
        best |= {images[row].sum().item() for row in rows[order]}
    offer_rows(state, scenario, later, seed=1)
    old = torch.isin(state.memory.columns["label"][:24], labels)
    assert int(old.sum()) == 12
    assert {image.sum().item() for image in state.memory.columns["image"][:24][old]} == best


def offer_rows(state, scenario, rows, seed):
    draws = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for part, of in zip(rows.split(8), draws.split(8), strict=True):
        labels = scenario.train.labels[part]
        batch = {"image": scenario.train.pixels[part], "label": labels, "task": torch.zeros_like(labels)}
        offer_balanced(state.memory, batch | {"logits": torch.zeros(len(part), 6)}, of)


def test_whose_features_herding_sees_is_a_setting_of_it_alone():
    with pytest.raises(BadInput, match="pool_network needs a selector"):
        Policy(buffer=12, selector=BalancedReservoir(), pool_network="predictor")


@pytest.mark.parametrize("method", [Er(), Er(forward="separate"), ErAce(), DerPlusPlus(), Gcr(), GcrPlus(), ClsEr()])
def test_replay_updates_losses(method):
    """To the cross-entropy before the step; the highest where a row was drawn twice."""
    scenario, training = make_scenario(), Training(batch=8, lr=0.05)
    policy = Policy(buffer=12, selector=BalancedReservoir(evict="loss"), replay_batch=4)
    state = fresh_state(scenario, "mlp", method, policy, training, 0)
    draws = EpochDraws(draw_plan(method, policy, training), 4, torch.device("cpu"))
    draws.fill((0, 0, 0), torch.arange(32), 4)
    one_step(state, scenario, method, policy, draws.at(state.step, 8, False))
    memory, at = state.memory, draws.at(state.step, 8, True)
    rows = sampler_of(method, policy).rows(memory, at.replays[0].rows, method.replay_size(4))
    stored = memory.read(rows)
    logits = state.net(scenario.views.weak(stored["image"], at.replays[0].views[0])).detach()
    new = {}
    for row, label, line in zip(rows.tolist(), stored["label"].tolist(), logits.double(), strict=True):
        new[row] = max(new.get(row, 0.0), float(line.logsumexp(0) - line[label]))
    before = dict(
        zip(memory.columns["image"][:8].flatten(1).sum(1).tolist(), memory.columns["loss"][:8].tolist(), strict=False)
    )
    expected = {memory.columns["image"][row].sum().item(): loss for row, loss in new.items()}
    assert len(before) == 8 > len(expected) > 1
    one_step(state, scenario, method, policy, at)
    found = dict(
        zip(memory.columns["image"][:12].flatten(1).sum(1).tolist(), memory.columns["loss"][:12].tolist(), strict=False)
    )
    for image, loss in (before | expected).items():
        if image in found:
            assert found[image] == pytest.approx(loss, rel=1e-4)


# --- GSS-Greedy: admission by scores alone, without a network


def full_memory(remembered):
    memory = Buffer.empty(len(remembered), 0, (1, 1, 1), 2, also=("score",))
    offer(memory, list(range(len(remembered))))
    memory.columns["score"][: len(remembered)] = torch.tensor(remembered)
    return memory


def offer(memory, labels, batch_score=None, each=None, draws=None, admitted=None):
    image = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    scored = None
    if batch_score is not None:
        scored = Scores(torch.tensor(batch_score).double(), torch.tensor(each).double())
    offer_by_scores(
        memory,
        {"image": image, "label": torch.tensor(labels)},
        scored,
        None if draws is None else torch.tensor(draws),
        None if admitted is None else torch.tensor(admitted),
    )


def labels(memory):
    return memory.columns["label"][: memory.capacity].tolist()


def test_the_first_examples_enter_while_there_is_room():
    memory = Buffer.empty(3, 0, (1, 1, 1), 2, also=("score",))
    offer(memory, [1, 2, 3, 4])
    assert labels(memory) == [1, 2, 3]
    assert memory.columns["score"][:3].tolist() == pytest.approx([0.1] * 3)
    assert int(memory.kept) == 3


def test_while_there_is_room_a_batch_enters_whatever_its_score():
    memory = Buffer.empty(3, 0, (1, 1, 1), 2, also=("score",))
    offer(memory, [1])
    offer(memory, [2, 3, 4], batch_score=1.9, each=[1.8, 1.7, 1.6], draws=[[0.0, 0.0]] * 3)
    assert labels(memory) == [1, 2, 3]
    assert memory.columns["score"][:3].tolist() == pytest.approx([0.1, 1.8, 1.7])


def test_a_batch_like_memory_is_refused_whole():
    memory = full_memory([1.0, 1.0])
    offer(memory, [7, 8], batch_score=1.0, each=[0.0, 0.0], draws=[[0.0, 0.0], [0.9, 0.0]])
    assert labels(memory) == [0, 1]


def test_slots_by_score_and_coins_by_both_scores():
    memory = full_memory([1.0, 3.0, 0.0, 4.0])
    offer(memory, [7], batch_score=0.5, each=[1.0], draws=[[0.12, 0.49]])  # slot 0: 1 / (1 + 1)
    assert labels(memory) == [7, 1, 2, 3]
    offer(memory, [8], batch_score=0.5, each=[1.0], draws=[[0.13, 0.76]])  # slot 1: 3 / (3 + 1)
    assert labels(memory) == [7, 1, 2, 3]
    offer(memory, [9], batch_score=0.5, each=[1.0], draws=[[0.5, 0.79]])  # slot 3, as slot 2 has no score
    assert labels(memory) == [7, 1, 2, 9]


def test_the_later_example_has_the_slot_and_those_not_admitted_have_none():
    memory = full_memory([1.0, 1.0])
    draws = [[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]]
    offer(memory, [7, 8, 9], batch_score=0.5, each=[0.3, 0.4, 0.5], draws=draws, admitted=[True, True, False])
    assert labels(memory) == [8, 1]
    assert float(memory.columns["score"][0]) == pytest.approx(0.4)


def test_slots_are_drawn_in_proportion_to_the_scores():
    counts = torch.zeros(3)
    for slot in torch.linspace(0, 0.999, 1000).tolist():
        memory = full_memory([0.5, 1.0, 0.5])
        offer(memory, [9], batch_score=0.1, each=[0.1], draws=[[slot, 0.0]])
        counts += memory.columns["label"][:3] == 9
    assert (counts / 1000).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_scores_equal_those_of_gradients_written_out():
    generator = torch.Generator().manual_seed(0)
    new, old = (
        LastLayerGradients(torch.randn(n, 4, generator=generator), torch.randn(n, 3, generator=generator))
        for n in (5, 6)
    )
    cosine = torch.nn.functional.cosine_similarity
    g, others = new.explicit().double(), old.explicit().double()
    found = scores(new, old)
    for i in range(5):
        assert float(found.each[i]) == pytest.approx(1 + float(cosine(g[i : i + 1], others).max()))
    assert float(found.batch) == pytest.approx(1 + float(cosine(g.mean(0, keepdim=True), others).max()))


def test_a_gradient_of_zero_looks_like_nothing():
    nothing = LastLayerGradients(torch.ones(2, 3), torch.zeros(2, 2))
    found = scores(nothing, LastLayerGradients(torch.ones(1, 3), torch.ones(1, 2)))
    assert (float(found.batch), found.each.tolist()) == (1.0, [1.0, 1.0])


def test_rows_to_compare_are_filled_ones():
    memory = Buffer.empty(9, 0, (1, 1, 1), 2, also=("score",))
    offer(memory, [1, 2, 3])
    assert rows_to_compare(memory, torch.tensor([0.0, 0.34, 0.99999997])).tolist() == [0, 1, 2]


def test_other_draws_stay_as_they_are():
    plans = [DrawPlan(8, (4, 2), 4, (("weak",),), compared) for compared in (0, 5)]
    plain, more = (EpochDraws(plan, 3, torch.device("cpu")) for plan in plans)
    for made in (plain, more):
        made.fill((0, 1, 2), torch.arange(20), 3)
    a, b = (made.at(torch.tensor(2), 4, replaying=True) for made in (plain, more))
    assert torch.equal(a.views, b.views)
    assert torch.equal(a.replays[0].rows, b.replays[0].rows)
    assert torch.equal(a.replays[0].views[0], b.replays[0].views[0])
    assert a.admission is None
    assert (b.admission.compared.shape, b.admission.slots.shape) == ((5,), (4, 2))
    assert more.at(torch.tensor(0), 8, replaying=False).admission is None
    assert b.admission.of(torch.tensor([3, 0])).slots.tolist() == b.admission.slots[[3, 0]].tolist()


def test_only_memory_of_this_policy_has_scores():
    assert "score" not in Buffer.empty(2, 0, (1, 1, 1), 2).columns
    assert Policy(selector=GssGreedy(compared=7)).compared == 7
    assert Policy().compared == 0
    with pytest.raises(BadInput, match="candidates needs a selector, but memory is gss-greedy"):
        Policy(selector=GssGreedy(), candidates=50)
