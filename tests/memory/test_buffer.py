"""Buffer: rows and weights, rules of sampling; and in a training loop of one's own: add, sample, reselect, save, what
it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gcr.memory import Buffer, Coin, Distinct, Examples, Split
from gcr.memory.randomness import generator
from gcr.select import SELECTORS, ClassBalanced, Coreset, GradApprox, ReducibleLoss, Uniform
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


class Chooses:
    """A selector of one's own."""

    name, summary, needs = "mine", "as told", frozenset()

    def __init__(self, rows, weights):
        self.coreset = Coreset(torch.tensor(rows), torch.tensor(weights))

    def __call__(self, pool, budget, draws):
        return self.coreset


@pytest.mark.parametrize(
    ("rows", "weights", "message"),
    [
        ([0, 1, 2], [1.0, 0.0, 2.0], ""),
        ([0, 1, 1], [1.0, 1.0, 1.0], r"mine must choose each row once, from 0 to 5, got \[0, 1, 1\]"),
        ([0, 1, 6], [1.0, 1.0, 1.0], "from 0 to 5"),
        ([-1, 0, 1], [1.0, 1.0, 1.0], "from 0 to 5"),
        ([0, 1], [1.0, 1.0], r"choose 3 rows of the pool, int64, with a weight each, got rows \[2\] of int64"),
        ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0], "of float32"),
        ([0, 1, 2], [[1.0], [1.0], [1.0]], r"weights \[3, 1\]"),
        ([0, 1, 2], [1.0, -1.0, 1.0], "mine must give finite weights >= 0, not all 0"),
        ([0, 1, 2], [1.0, float("nan"), 1.0], "finite weights"),
        ([0, 1, 2], [0.0, 0.0, 0.0], "not all 0"),
    ],
)
def test_what_a_selector_chooses_is_checked(rows, weights, message):
    buffer = Buffer(3, candidates=6)
    buffer.add(torch.zeros(6, 1, 2, 2), torch.arange(6))
    if not message:
        assert len(buffer.reselect(Chooses(rows, weights)).rows) == len(buffer) == 3
        return
    with pytest.raises(BadInput, match=message):
        buffer.reselect(Chooses(rows, weights))
    assert len(buffer) == 6


# --- Buffer in a training loop of one's own: add, sample, reselect, save, and what it refuses


def images_of(labels, dtype=torch.uint8):
    return torch.as_tensor(labels).to(dtype).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)


def filled(capacity=6, candidates=0, n=30, seed=3, **more):
    buffer = Buffer(capacity, candidates, seed=seed)
    for first in range(0, n, 10):
        labels = torch.arange(first, first + 10)
        buffer.add(images_of(labels), labels % 3, tasks=labels, **{k: v[labels] for k, v in more.items()})
    return buffer


def test_add_is_a_reservoir_with_draws_of_its_own():
    buffer, loop = filled(), Loop(6)
    for number in range(3):
        for place, u in enumerate(generator((3, number), "add").random(10)):
            loop.offer(10 * number + place, u)
    assert buffer.tasks.tolist() == buffer.images[:, 0, 0, 0].tolist() == loop.entries
    assert buffer.labels.tolist() == [entry % 3 for entry in loop.entries]
    assert buffer.weights.tolist() == [1.0] * 6
    assert (len(buffer), int(buffer.seen)) == (6, 30)


@pytest.mark.parametrize("values", [lambda t: t.numpy(), lambda t: t.tolist(), lambda t: t.long().numpy(), list])
def test_arrays_and_lists_are_stored_as_tensors_are(values):
    buffer = Buffer(4)
    images, labels = images_of([7, 8, 9]), torch.tensor([0, 1, 2])
    buffer.add(values(images), values(labels), logits=values(torch.eye(3)), weights=[1, 2, 3])
    assert torch.equal(buffer.images, images)
    assert buffer.images.dtype == torch.uint8
    assert torch.equal(buffer.logits, torch.eye(3))
    assert (buffer.labels.tolist(), buffer.weights.tolist()) == ([0, 1, 2], [1.0, 2.0, 3.0])


def test_a_float_buffer_keeps_floats():
    buffer, images = Buffer(4), torch.randn(3, 2, 2, dtype=torch.float64)
    buffer.add(images, [0, 1, 2])
    assert torch.equal(buffer.images, images.float())


def test_read_only_and_reversed_numpy_arrays():
    images = np.zeros((3, 1, 2, 2), np.uint8)
    images.flags.writeable = False
    Buffer(2).add(images[::-1], np.arange(3)[::-1])


def test_samples_are_uniform_over_what_is_held_and_depend_on_the_seed():
    buffer = filled()
    drawn = buffer.sample(6000)
    assert isinstance(drawn, Examples)
    counts = [int((drawn.tasks == task).sum()) for task in buffer.tasks]
    assert sum(counts) == 6000
    assert max(abs(count - 1000) for count in counts) < 150
    assert drawn.logits is None
    assert torch.equal(drawn.images[:, 0, 0, 0], drawn.tasks.to(torch.uint8))
    again, other = filled(), filled(seed=4)
    assert torch.equal(again.sample(50).tasks, drawn.tasks[:50])
    assert not torch.equal(again.sample(50).tasks, drawn.tasks[:50])
    assert other.tasks.tolist() != buffer.tasks.tolist()


def test_candidates_are_sampled_by_their_share_of_what_was_seen():
    buffer = filled(6, 6, n=10)
    buffer.reselect(ClassBalanced())
    labels = torch.arange(100, 105)
    buffer.add(images_of(labels), labels % 3, tasks=labels)  # 5 of 15
    assert len(buffer) == 11
    assert float((buffer.sample(3000).tasks >= 100).float().mean()) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("selector", [kind() for kind in SELECTORS], ids=lambda selector: selector.name)
def test_reselect_keeps_what_the_selector_chooses(selector):
    buffer = filled(6, 8)
    seeded = torch.Generator().manual_seed(0)
    features, residuals = torch.rand(8, 5, generator=seeded), torch.randn(8, 3, generator=seeded)
    reducible = torch.randn(8, generator=seeded)
    before, images, tasks = buffer.pool(features, residuals, reducible), buffer.images, buffer.tasks
    draws = torch.from_numpy(generator((3, 0), "selection").random(8))
    expected = selector(before, 6, draws)
    coreset = buffer.reselect(selector, features, residuals.numpy(), reducible=reducible.tolist())
    assert torch.equal(coreset.rows, expected.rows)
    assert torch.equal(buffer.tasks, tasks[expected.rows])
    assert torch.equal(buffer.images, images[expected.rows])
    torch.testing.assert_close(buffer.weights, expected.weights.float())
    assert (len(buffer), int(buffer.kept), int(buffer.updates)) == (6, 6, 1)


def test_old_rows_and_candidates_are_told_apart():
    buffer = filled(6, 8)
    buffer.reselect(ClassBalanced(), budget=4)
    buffer.add(images_of([50, 51]), [0, 1])
    assert buffer.pool().kept.tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("candidates", [0, 8])
def test_a_saved_buffer_goes_on_as_the_first_would_have(candidates):
    first = filled(6, candidates, logits=torch.rand(30, 3))
    first.sample(4)
    state = first.state_dict()
    second = Buffer(6, candidates)  # another seed
    second.load_state_dict(state)
    assert second.nbytes == first.nbytes > 0
    for buffer in (first, second):
        buffer.add(images_of(range(30, 50)), [0] * 20, logits=torch.zeros(20, 3), tasks=list(range(30, 50)))
    assert torch.equal(first.tasks, second.tasks)
    assert torch.equal(first.sample(9).logits, second.sample(9).logits)
    assert int(state["seen"]) == 30  # a copy
    assert len(state["image"]) == 6 + candidates  # without the spare row
    first.load_state_dict(state)
    assert int(first.seen) == 30


def test_a_new_buffer_saves_and_loads():
    buffer = Buffer(5)
    buffer.load_state_dict(Buffer(5, seed=2).state_dict())
    assert (len(buffer), buffer.seed, buffer.nbytes) == (0, 2, 0)


def test_its_bytes_are_those_of_its_columns():
    buffer = filled(6, 4, logits=torch.rand(30, 3))
    assert buffer.nbytes == 10 * (4 + 8 + 3 * 4 + 4 + 8)
    assert repr(buffer) == "Buffer(0 of 6 rows, 4 of 4 candidates, 0.00 MB)"


NAN = torch.tensor([float("nan")] * 4).reshape(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": NAN}, "images must be finite, got NaN or infinity in 1 of 1 rows: 0"),
        ({"images": torch.zeros(1, 1, 2, 2, dtype=torch.bool)}, "images must be uint8 or float, got torch.bool"),
        ({"images": [[[300]]]}, r"images of whole numbers must be in 0..255, got 300..300"),
        ({"images": torch.zeros(0, 1, 2, 2)}, "must not be empty"),
        ({"images": [["a"]]}, "images must be real numbers"),
        ({"images": [[[1]], [[1, 2]]]}, "images must be an array of numbers whose rows have equal shapes"),
        ({"images": torch.zeros(1, 1, 2, 2)}, "images must be torch.uint8, as stored, got torch.float32"),
        ({"images": images_of([1])[:, :, :1]}, r"images must have shape \(1, 2, 2\) each, as stored, got \(1, 1, 2\)"),
        ({"labels": [0.0]}, "labels must be whole numbers, got torch.float"),
        ({"labels": [True]}, "labels must be whole numbers, got torch.bool"),
        ({"labels": [0, 1]}, r"labels must be one per image \(1\), got shape \(2,\)"),
        ({"labels": [[0, 1]]}, r"argmax\(1\)"),
        ({"labels": [-1]}, "labels must be >= 0, got -1"),
        ({"labels": [3]}, "labels must be < 3, the width of logits, got 3"),
        ({"logits": None}, "logits must be given in every batch"),
        ({"logits": [[1.0, 2.0]]}, r"logits must have shape \(3,\) each"),
        ({"logits": [1.0]}, r"logits must have shape \(1, numbers of a row\), got \(1,\)"),
        ({"logits": [[1.0, 2.0, float("inf")]]}, "logits must be finite"),
        ({"weights": [-1.0]}, "weights must be >= 0, got -1.0"),
        ({"weights": [float("nan")]}, "weights must be finite"),
        ({"tasks": [0.5]}, "tasks must be whole numbers"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_changes_nothing(given, message):
    buffer = filled(logits=torch.rand(30, 3))
    before = buffer.state_dict()
    one = {"images": images_of([1]), "labels": [0], "logits": [[0.1, 0.2, 0.3]]}
    with pytest.raises(BadInput, match=message):
        buffer.add(**one | given)
    assert all(torch.equal(before[name], value) for name, value in buffer.state_dict().items())


def test_logits_need_to_come_from_the_beginning():
    with pytest.raises(BadInput, match="logits must be given in no batch"):
        filled().add(images_of([1]), [0], logits=[[0.1, 0.2, 0.3]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Buffer(5).sample(2), r"cannot sample from an empty buffer; call add\(images, labels\) first"),
        (lambda: Buffer(5).images, "cannot read an empty buffer"),
        (lambda: Buffer(5, 5).reselect(ClassBalanced()), "cannot reselect an empty buffer"),
        (lambda: Buffer(0), "capacity must be a whole number >= 1, got 0"),
        (lambda: Buffer(1.5), "capacity must be a whole number >= 1, got 1.5"),
        (lambda: Buffer(5, candidates=-1), "candidates must be a whole number >= 0"),
        (lambda: Buffer(5, seed=-1), "seed must be a whole number >= 0"),
        (lambda: filled().sample(0), "n must be a whole number >= 1, got 0"),
        (lambda: filled().reselect(ClassBalanced()), r"use Buffer\(6, candidates=6\)"),
        (lambda: filled(6, 6).reselect(ClassBalanced), "selector must be one of gcr.select"),
        (lambda: filled(6, 6).reselect("uniform"), "selector must be one of gcr.select"),
        (lambda: filled(6, 6).reselect(GradApprox()), "features must be given for grad-approx"),
        (lambda: filled(6, 6).reselect(ReducibleLoss()), "reducible must be given for reducible-loss"),
        (lambda: filled(6, 6).reselect(ClassBalanced(), budget=7), "budget must be a whole number from 1 to 6, got 7"),
        (lambda: filled(6, 6).reselect(GradApprox(), torch.rand(5, 2), torch.rand(6, 3)), r"features must have shape"),
        (lambda: filled(6, 6).reselect(GradApprox(), torch.rand(6, 2), NAN.view(1, 4).repeat(6, 1)), "be finite"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(BadInput, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("seen"), "state lacks the tensor seen"),
        (lambda s: s.pop("label"), "state lacks the tensor label"),
        (lambda s: s.update(colour=torch.zeros(6)), "state has colour, which this buffer has not"),
        (lambda s: s.update(capacity=torch.tensor(7)), r"capacity of state must be 6, got 7; use Buffer\(7, candid"),
        (lambda s: s.update(kept=torch.tensor(7)), "the state is damaged"),
        (lambda s: s.update(seen=torch.tensor([1, 2])), "seen of state must be one whole number"),
        (lambda s: s.update(image=s["image"][:3]), "image of state must be torch.uint8"),
        (lambda s: s.update(image=s["image"].float()), "image of state must be torch.uint8"),
        (lambda s: [s.pop(name) for name in ("image", "label", "weight", "task")], "state lacks the tensor image"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    buffer, state = filled(), filled(seed=5).state_dict()
    before = buffer.state_dict()
    change(state)
    with pytest.raises(BadInput, match=message):
        buffer.load_state_dict(state)
    assert all(torch.equal(before[name], value) for name, value in buffer.state_dict().items())


def test_a_state_with_counters_alone_is_damaged():
    state = {name: value for name, value in filled().state_dict().items() if value.dim() == 0}
    with pytest.raises(BadInput, match="no columns"):
        Buffer(6).load_state_dict(state)


def filled_buffer(kept, pooled, capacity=8, candidates=8, seen_since=None):
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
    memory = filled_buffer(kept=6, pooled=3)  # n = 9, n_t = 3
    draws = torch.rand(50, 2, generator=torch.Generator().manual_seed(1))
    for row, (coin, index) in zip(Coin.rows(memory, draws, 50).tolist(), draws.tolist(), strict=True):
        assert row == (8 + int(index * 3) if coin < 3 / 9 else int(index * 6))


def test_coin_chooses_candidates_in_proportion():
    memory = filled_buffer(kept=6, pooled=3)
    rows = drawn(Coin, memory, 6000)
    assert float((rows >= 8).float().mean()) == pytest.approx(1 / 3, abs=0.02)
    assert set(rows.tolist()) == {0, 1, 2, 3, 4, 5, 8, 9, 10}


@pytest.mark.parametrize("sampler", [Coin, Split])
@pytest.mark.parametrize(("kept", "pooled", "allowed"), [(0, 3, range(8, 11)), (5, 0, range(5))])
def test_an_empty_side_gives_way(sampler, kept, pooled, allowed):
    assert set(drawn(sampler, filled_buffer(kept, pooled), 200).tolist()) <= set(allowed)


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
    memory = filled_buffer(kept=8, pooled=8, seen_since=4)
    memory.seen.fill_(16)  # a quarter of 8 is 2
    for seed in range(20):
        rows = drawn(Split, memory, 8, seed).tolist()
        assert len(set(rows)) == 8
        assert sum(row >= 8 for row in rows) == 2
        assert all(row < 12 for row in rows)  # after one reselection: the first ceil(8 / 2) candidates


def test_split_repeats_only_when_all_have_been_taken():
    memory = filled_buffer(kept=0, pooled=3)
    rows = drawn(Split, memory, 7).tolist()
    assert sorted(rows.count(row) for row in (8, 9, 10)) == [2, 2, 3]


@pytest.mark.parametrize(("kept", "pooled"), [(6, 3), (8, 0), (0, 4), (1, 0)])
def test_distinct_takes_every_row_once_before_any_comes_again(kept, pooled):
    memory = filled_buffer(kept, pooled)
    filled_rows = set(memory.filled_rows().tolist())
    rows = drawn(Distinct, memory, 12).tolist()
    assert set(rows[: len(filled_rows)]) == filled_rows
    assert rows[len(filled_rows) :] == [rows[place % len(filled_rows)] for place in range(len(filled_rows), 12)]
    assert rows != drawn(Distinct, memory, 12, seed=1).tolist() or len(filled_rows) == 1


def offered(memory, first, n):
    """Examples whose pixels are their numbers, from 1 on."""
    numbers = torch.arange(first, first + n)
    images = numbers.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    memory.add(images, numbers % 3, torch.zeros(n, 3))
    return memory


@pytest.mark.parametrize("rows", [[0, 4, 2], torch.tensor([True, False, True, False, True])], ids=["numbers", "mask"])
def test_removed_examples_are_erased_and_their_places_taken_first(rows):
    memory = offered(Buffer(5, seed=1), 1, 40)
    held = memory.images[:, 0, 0, 0].tolist()
    assert memory.remove(rows) == 3
    assert memory.images[:, 0, 0, 0].tolist() == [held[1], held[3]]
    assert set(memory.columns["image"].unique().tolist()) == {0, held[1], held[3]}  # the spare row, too
    assert (memory.labels == memory.images[:, 0, 0, 0] % 3).all()
    assert set(memory.sample(50).images.unique().tolist()) == {held[1], held[3]}
    seen = int(memory.seen)
    offered(memory, 41, 3)
    assert memory.images[:, 0, 0, 0].tolist() == [held[1], held[3], 41, 42, 43]
    assert int(memory.seen) == seen + 3
    offered(memory, 50, 5)
    assert len(memory) == 5


def test_after_a_removal_later_examples_enter_as_seldom_as_before():
    """What is in memory stays a sample of all that came: the reservoir does not begin again."""
    entered = 0
    for seed in range(40):
        memory = Buffer(10, seed=seed)
        for first in range(1, 201, 50):
            offered(memory, first, 50)
        memory.remove([0])
        offered(memory, 201, 1)
        offered(memory, 202, 40)
        entered += int((memory.images[:, 0, 0, 0] > 201).sum())
    assert 30 <= entered <= 110  # 40 runs of 10 rows, of which about one in six is later: 67


def test_candidates_are_removed_from_their_pool():
    memory = offered(Buffer(4, candidates=4), 1, 4)
    memory.reselect(Uniform(), budget=4)
    offered(memory, 11, 4)
    assert memory.remove(torch.isin(memory.images[:, 0, 0, 0], torch.tensor([2, 12, 13]))) == 3
    assert memory.images[:, 0, 0, 0].tolist() == [1, 3, 4, 11, 14]
    assert (int(memory.kept), int(memory.pooled)) == (3, 2)
    offered(memory, 21, 2)
    assert memory.images[:, 0, 0, 0].tolist() == [1, 3, 4, 11, 14, 21, 22]
    assert len(memory.reselect(Uniform(), budget=4).rows) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([5], "rows must have row numbers from 0 to 4, got 5"),
        ([1, 1], "rows must name each row once"),
        (torch.ones(4, dtype=torch.bool), "rows must be a list of row numbers"),
    ],
)
def test_rows_that_are_not_there_are_not_removed(rows, message):
    memory = offered(Buffer(5), 1, 5)
    with pytest.raises(BadInput, match=message):
        memory.remove(rows)
    assert len(memory) == 5
