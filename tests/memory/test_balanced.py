"""The class-balanced reservoir against a plain loop, and what it promises: equal shares, equal chances."""

import numpy as np
import pytest
import torch

from gcr.memory import Buffer, offer_balanced


def offered(memory, labels, draws, first=0, admitted=None):
    n = len(labels)
    batch = {
        "image": torch.arange(first, first + n).reshape(n, 1).float(),
        "label": torch.as_tensor(labels),
        "logits": torch.zeros(n, 4),
        "task": torch.zeros(n, dtype=torch.int64),
    }
    offer_balanced(memory, batch, torch.as_tensor(draws, dtype=torch.float64), admitted)


def empty(capacity):
    return Buffer.empty(capacity, 0, (1,), 4, scored=True, dtype=torch.float32)


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
