import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gcr.memory import Buffer
from gcr.settings import BadInput


def empty(capacity=5, candidates=0):
    return Buffer.empty(capacity, candidates, image_shape=(1, 2, 2), n_classes=3)


def batch_of(labels):
    labels = torch.as_tensor(labels)
    images = labels.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    logits = labels.float().unsqueeze(1).expand(-1, 3)
    return {"image": images, "label": labels, "logits": logits, "task": labels % 2}


class Loop:
    """Vitter's algorithm R, one example at a time."""

    def __init__(self, size):
        self.size, self.entries, self.seen = size, [], 0

    def offer(self, entry, u, admitted=True):
        if not admitted:
            return
        if self.seen < self.size:
            self.entries.append(entry)
        elif (slot := int(u * (self.seen + 1))) < self.size:
            self.entries[slot] = entry
        self.seen += 1


@settings(max_examples=200)
@given(st.data(), st.integers(1, 6), st.booleans(), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_batched_reservoir_equals_the_loop(data, size, as_candidates, batches):
    """Small buffers and large batches: several examples of a batch draw the same slot all the time."""
    memory = empty(3, size) if as_candidates else empty(size)
    loop, number = Loop(size), 0
    for n in batches:
        draws = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
        admitted = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
        labels = list(range(number, number + n))
        number += n
        memory.offer(batch_of(labels), torch.tensor(draws, dtype=torch.float64), torch.tensor(admitted))
        for label, u, taken in zip(labels, draws, admitted, strict=True):
            loop.offer(label, u, taken)
    start, filled = (3, memory.pooled) if as_candidates else (0, memory.kept)
    assert int(filled) == len(loop.entries)
    rows = memory.read(torch.arange(start, start + len(loop.entries)))
    assert rows["label"].tolist() == loop.entries
    assert rows["image"][:, 0, 0, 0].tolist() == loop.entries
    assert rows["logits"][:, 2].tolist() == loop.entries
    assert rows["weight"].tolist() == [1.0] * len(loop.entries)
    assert int(memory.seen) == loop.seen


def test_colliding_slots_go_to_the_later_example():
    memory = empty(2)
    memory.offer(batch_of([0, 1]), torch.zeros(2).double())
    memory.offer(batch_of([2, 3, 4]), torch.tensor([0.0, 0.0, 0.99]).double())  # slots 0, 0, 4
    assert memory.columns["label"][:2].tolist() == [3, 1]


def test_every_example_is_kept_with_the_same_probability():
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(40)
    for _ in range(600):
        memory = empty(10)
        for start in range(0, 40, 8):
            memory.offer(batch_of(range(start, start + 8)), torch.rand(8, generator=generator, dtype=torch.float64))
        counts[memory.columns["label"][:10]] += 1
    assert counts.sum() == 6000
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_keep_makes_the_chosen_rows_the_buffer_and_empties_the_pool():
    memory = empty(3, 4)
    memory.offer(batch_of([5, 6, 7, 8]), torch.zeros(4).double())
    rows = memory.filled_rows()
    assert rows.tolist() == [3, 4, 5, 6]
    memory.keep(rows[torch.tensor([0, 2, 3])], torch.tensor([2.0, 0.5, 1.5]))
    assert memory.columns["label"][:3].tolist() == [5, 7, 8]
    assert memory.columns["weight"][:3].tolist() == [2.0, 0.5, 1.5]
    assert memory.filled_rows().tolist() == [0, 1, 2]
    assert (int(memory.seen), int(memory.seen_since), int(memory.updates)) == (4, 0, 1)


def test_rows_to_keep_may_lie_in_the_kept_buffer():
    memory = empty(3, 3)
    memory.offer(batch_of([0, 1, 2]), torch.zeros(3).double())
    memory.keep(memory.filled_rows(), torch.ones(3))
    memory.offer(batch_of([3, 4, 5]), torch.zeros(3).double())
    memory.keep(torch.tensor([1, 2, 4]), torch.ones(3))  # rows 1 and 2 move up by one
    assert memory.columns["label"][:3].tolist() == [1, 2, 4]


@pytest.mark.parametrize("name", ["image", "label", "logits", "weight", "task"])
def test_columns_are_preallocated_with_one_spare_row(name):
    assert len(empty(5, 4).columns[name]) == 10


@settings(max_examples=200)
@given(st.data(), st.integers(1, 4), st.booleans())
def test_a_batch_writes_no_row_twice_but_the_spare_one(data, size, as_candidates):
    """A GPU gives repeated rows of an indexed write in any order, a CPU in theirs: so the rows themselves are checked.

    Reference: a loop in which later examples replace earlier ones."""
    memory = empty(3, size) if as_candidates else empty(size)
    n = data.draw(st.integers(1, 12))
    slots = data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    admitted = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    rows = memory.rows_to_write(torch.tensor(slots), torch.tensor(admitted)).tolist()
    start, spare = (3 if as_candidates else 0), memory.rows
    owner = {}
    for example, (slot, taken) in enumerate(zip(slots, admitted, strict=True)):
        if taken and slot < size:
            owner[start + slot] = example
    assert rows == [next((row for row, by in owner.items() if by == example), spare) for example in range(n)]
    stored = [row for row in rows if row != spare]
    assert len(stored) == len(set(stored))


def test_put_writes_the_rows_without_collisions(monkeypatch):
    memory = empty(2)
    written = []
    monkeypatch.setattr(memory, "rows_to_write", lambda slot, *_: written.append(slot) or torch.tensor([2, 1]))
    memory.put(batch_of([5, 6]), torch.tensor([1, 1]), torch.ones(2, dtype=torch.bool))
    assert written[0].tolist() == [1, 1]
    assert memory.columns["label"].tolist() == [0, 6, 5]


def test_images_of_another_dtype_are_not_stored():
    with pytest.raises(BadInput, match=r"images must be torch.uint8, as stored, got torch.float32"):
        empty().offer(batch_of([1]) | {"image": torch.rand(1, 1, 2, 2)}, torch.zeros(1).double())


def test_float_images_are_kept_as_they_are():
    memory = Buffer.empty(2, 0, (1, 2, 2), 3, dtype=torch.float32)
    images = torch.rand(2, 1, 2, 2)
    memory.offer(batch_of([0, 1]) | {"image": images}, torch.zeros(2).double())
    assert torch.equal(memory.images, images)
