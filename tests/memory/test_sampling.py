import pytest
import torch
from test_buffer import batch_of

from gcr.memory import Buffer, Coin, Distinct, Split


def filled(kept, pooled, capacity=8, candidates=8, seen_since=None):
    """Kept rows have labels 0.., candidates labels 100.. ."""
    memory = Buffer.empty(capacity, candidates, (1, 2, 2), 3)
    if kept:
        memory.offer(batch_of(range(kept)), torch.zeros(kept).double())
        memory.keep(memory.filled_rows(), torch.full((kept,), 2.0))
    if pooled:
        memory.offer(batch_of(range(100, 100 + pooled)), torch.zeros(pooled).double())
    if seen_since is not None:
        memory.seen_since.fill_(seen_since)
    return memory


def drawn(sampler, memory, size, seed=0):
    shape = sampler.draws_shape(size, memory.capacity, memory.candidates)
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return sampler.rows(memory, draws, size)


def test_coin_is_algorithm_3_example_by_example():
    memory = filled(kept=6, pooled=3)  # n = 9, n_t = 3
    draws = torch.rand(50, 2, generator=torch.Generator().manual_seed(1))
    for row, (coin, index) in zip(Coin.rows(memory, draws, 50).tolist(), draws.tolist(), strict=True):
        assert row == (8 + int(index * 3) if coin < 3 / 9 else int(index * 6))


def test_coin_chooses_candidates_in_proportion():
    memory = filled(kept=6, pooled=3)
    rows = drawn(Coin, memory, 6000)
    assert float((rows >= 8).float().mean()) == pytest.approx(1 / 3, abs=0.02)
    assert set(rows.tolist()) == {0, 1, 2, 3, 4, 5, 8, 9, 10}


@pytest.mark.parametrize("sampler", [Coin, Split])
@pytest.mark.parametrize(("kept", "pooled", "allowed"), [(0, 3, range(8, 11)), (5, 0, range(5))])
def test_an_empty_side_gives_way(sampler, kept, pooled, allowed):
    assert set(drawn(sampler, filled(kept, pooled), 200).tolist()) <= set(allowed)


@pytest.mark.parametrize("sampler", [Coin, Split])
def test_without_a_pool_it_is_uniform_over_the_buffer(sampler):
    memory = Buffer.empty(4, 0, (1, 2, 2), 3)
    memory.offer(batch_of(range(4)), torch.zeros(4).double())
    counts = torch.zeros(4)
    for seed in range(500):
        counts += torch.bincount(drawn(sampler, memory, 2, seed), minlength=4)
    assert counts.sum() == 1000
    assert float((counts - 250).abs().max()) < 60


def test_split_takes_fixed_shares_without_replacement():
    memory = filled(kept=8, pooled=8, seen_since=4)
    memory.seen.fill_(16)  # a quarter of 8 is 2
    for seed in range(20):
        rows = drawn(Split, memory, 8, seed).tolist()
        assert len(set(rows)) == 8
        assert sum(row >= 8 for row in rows) == 2
        assert all(row < 12 for row in rows)  # after one reselection: the first ceil(8 / 2) candidates


def test_split_repeats_only_when_all_have_been_taken():
    memory = filled(kept=0, pooled=3)
    rows = drawn(Split, memory, 7).tolist()
    assert sorted(rows.count(row) for row in (8, 9, 10)) == [2, 2, 3]


@pytest.mark.parametrize(("kept", "pooled"), [(6, 3), (8, 0), (0, 4), (1, 0)])
def test_distinct_takes_every_row_once_before_any_comes_again(kept, pooled):
    memory = filled(kept, pooled)
    filled_rows = set(memory.filled_rows().tolist())
    rows = drawn(Distinct, memory, 12).tolist()
    assert set(rows[: len(filled_rows)]) == filled_rows
    assert rows[len(filled_rows) :] == [rows[place % len(filled_rows)] for place in range(len(filled_rows), 12)]
    assert rows != drawn(Distinct, memory, 12, seed=1).tolist() or len(filled_rows) == 1
