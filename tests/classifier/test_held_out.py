"""Which examples are held out, and when a loss is more than chance."""

import pytest
import torch

from gcr.classifier.held_out import balanced_rows, compare, judge, split
from gcr.classifier.update import UpdateSettings


def rows_of(n):
    return torch.arange(n * 2, dtype=torch.uint8).reshape(n, 2)


def test_a_share_of_every_class_is_held_out():
    labels = ["a"] * 10 + ["b"] * 20 + ["c"]
    parts = split(rows_of(31), labels, share=0.2, seed=0)
    assert sorted(parts.train + parts.held_out) == list(range(31))
    assert [sum(labels[row] == name for row in parts.held_out) for name in "abc"] == [2, 4, 0]
    assert parts.copies == 0


def test_copies_of_held_out_examples_are_never_trained_on():
    examples = torch.cat([rows_of(20), rows_of(20)])
    labels = (["a"] * 10 + ["b"] * 10) * 2
    first = split(examples, labels, share=0.2, seed=0)
    held_out = {tuple(examples[row].tolist()) for row in first.held_out}
    assert held_out
    assert not held_out & {tuple(examples[row].tolist()) for row in first.train}
    again = split(examples, labels, share=0.2, seed=1, remembered=examples[first.held_out])
    trained = {tuple(examples[row].tolist()) for row in again.train}
    assert not held_out & trained


def test_copies_of_replayed_examples_are_never_held_out():
    examples, labels = rows_of(40), ["a", "b"] * 20
    parts = split(examples, labels, share=0.5, seed=0, replayed=examples[:20])
    assert min(parts.held_out) >= 20
    assert len(parts.held_out) == 10
    assert sorted(parts.train + parts.held_out) == list(range(40))
    assert split(examples, labels, share=0.5, seed=0, replayed=examples).held_out == []


def test_a_class_of_equal_examples_is_trained_on():
    examples = torch.zeros(4, 2, dtype=torch.uint8)
    examples[2:] = 1
    parts = split(examples, ["a", "a", "b", "b"], share=0.5, seed=0)
    assert len(parts.train) == 2
    assert parts.held_out == []


def test_balanced_rows():
    labels = ["a"] * 50 + ["b"] * 3 + ["c"] * 20
    kept = [labels[row] for row in balanced_rows(labels, 23, seed=1)]
    assert [kept.count(name) for name in "abc"] == [10, 3, 10]
    assert balanced_rows(labels, 100, seed=1) == list(range(73))
    assert balanced_rows(labels, 23, seed=1) != balanced_rows(labels, 23, seed=2)


def verdict_of(before, after, n, limit=5.0):
    """``before`` and ``after``: examples of each old class that are right, the first of ``n`` each."""
    old = [f"class {number}" for number in range(len(before))]
    labels = [name for name in old for _ in range(n)]
    right = [[row % n < count[row // n] for row in range(len(labels))] for count in (before, after)]
    said = [[label if ok else "?" for label, ok in zip(labels, oks, strict=True)] for oks in right]
    return judge(compare(labels, *said, old, []), limit)


def test_a_loss_of_all_classes_is_refused():
    verdict = verdict_of([20, 20, 20], [18, 17, 19], n=20)
    assert verdict.refused == ("the old classes lost 10.0 points on average",)
    assert (verdict.before, verdict.after) == (1.0, pytest.approx(0.9))


def test_a_loss_within_the_limit_is_accepted():
    assert verdict_of([20, 20, 20], [18, 17, 19], n=20, limit=10.0).refused == ()
    assert verdict_of([15, 15], [20, 20], n=20).points_lost == -25


def test_one_lost_class_among_many_is_refused():
    verdict = verdict_of([20] * 30, [20] * 29 + [10], n=20)
    assert verdict.points_lost < 5
    assert verdict.refused == ('"class 29" lost 50.0 points',)


def test_a_small_class_does_not_trip_it_by_noise():
    verdict = verdict_of([3] * 30, [2] + [3] * 29, n=3)
    assert (verdict.refused, verdict.doubt) == ((), "")


@pytest.mark.parametrize(("n", "after", "limit"), [(3, [2, 3], 16.0), (20, [19, 20], 2.4), (20, [20, 19], 0.0)])
def test_the_limit_on_the_mean_holds_however_few_examples(n, after, limit):
    verdict = verdict_of([n, n], after, n, limit)
    assert verdict.refused == (f"the old classes lost {verdict.points_lost:.1f} points on average",)


def test_a_loss_of_just_the_limit_is_accepted():
    for limit in range(1, 100):
        assert verdict_of([100] * 3, [100 - limit] * 3, n=100, limit=limit).refused == ()


@pytest.mark.parametrize(("before", "after", "refused"), [(3, 1, True), (4, 2, False), (2, 1, False), (1, 0, False)])
def test_a_small_class_that_loses_more_than_half_is_refused(before, after, refused):
    verdict = verdict_of([4] * 19 + [before], [4] * 19 + [after], n=4)
    assert verdict.refused == ((f'"class 19" lost {25.0 * (before - after)} points',) if refused else ())
    assert bool(verdict.doubt) == (before - after > 1 and not refused)


def test_a_loss_of_one_class_that_may_be_chance_is_said():
    verdict = verdict_of([14] * 7, [14] * 6 + [12], n=14)
    assert verdict.refused == ()
    assert verdict.doubt.startswith('"class 6" lost 14.3 points on 14 held-out examples, which may be chance')


def test_few_examples_get_more_epochs():
    assert [UpdateSettings().with_epochs(n).epochs for n in (10, 320, 960, 50_000)] == [100, 30, 10, 10]
    assert UpdateSettings(epochs=3).with_epochs(10).epochs == 3


def test_new_and_unmeasured_classes():
    found = compare(["a", "b"], ["a", "a"], ["a", "b"], old=["a", "gone"], new=["b"])
    assert [(one.name, one.n, one.before, one.after) for one in found] == [
        ("a", 1, 1.0, 1.0),
        ("gone", 0, None, None),
        ("b", 1, None, 1.0),
    ]
    assert judge(found, 0.0).refused == ()
