"""The class-balanced reservoir against a plain loop, and what it promises: equal shares, equal chances."""

import numpy as np
import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, one_step

from gcr.memory import BalancedReservoir, Buffer, Policy, offer_balanced
from gcr.methods import ClsEr, DerPlusPlus, Er, ErAce, Gcr, GcrPlus
from gcr.training.randomness import EpochDraws
from gcr.training.step import draw_plan, sampler_of


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


def empty(capacity, losses=False):
    return Buffer.empty(capacity, 0, (1,), 4, scored=True, dtype=torch.float32, losses=losses)


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
    for seed in range(1500):
        memory, random = empty(5), np.random.default_rng(seed)
        for first in range(0, 20, 4):
            offered(memory, [1] * 4, random.random(4), first)
        times[kept(memory)] += 1
    assert abs(times - 1500 * 5 / 20).max() < 5 * (1500 * 0.25 * 0.75) ** 0.5


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
    memory, without, expected, first = empty(capacity, losses=True), empty(capacity), [], 0
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
    memory = empty(2, losses=True)
    offered(memory, [0, 0], [0.5, 0.6], losses=[1.0, 2.0])
    offered(memory, [0, 0], [0.1, 0.2], 2, torch.tensor([False, True]), losses=[9.0, 3.0])
    assert kept(memory) == [1, 3]
    assert sorted(memory.columns["score"][:2].tolist()) == pytest.approx([0.2, 0.5])


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
