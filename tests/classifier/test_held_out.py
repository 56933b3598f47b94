"""Which examples are held out, when a loss is more than chance; that updates keep what was learnt first, and memory of
another size what is there, with the chances that it had."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import gcr
from gcr.classifier.held_out import balanced_rows, compare, judge, split
from gcr.classifier.saved import Classifier
from gcr.classifier.update import UpdateSettings
from gcr.cli.main import run_cli
from gcr.learner.learner import Learner
from gcr.memory.examples import digests
from gcr.methods import Finetune
from gcr.models import build


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
    labels, digests = ["a"] * 50 + ["b"] * 3 + ["c"] * 20, [b"%d" % (7 * row % 73) for row in range(73)]
    kept = balanced_rows(labels, 23, digests)
    assert [[labels[row] for row in kept].count(name) for name in "abc"] == [10, 3, 10]
    assert max(digests[row] for row in kept if row < 50) < min(digests[row] for row in range(50) if row not in kept)
    assert balanced_rows(labels, 100, digests) == list(range(73))


def test_held_out_rows_are_a_uniform_sample_of_all_updates():
    """A late update that brings a tenth of the examples has about a tenth of what is kept."""
    rows = torch.arange(1000).reshape(1000, 1)
    kept = rows[:0]
    for part in rows.split(100):
        kept = torch.cat([kept, part])
        kept = kept[balanced_rows(["a"] * len(kept), 100, digests(kept))]
    assert 3 <= int((kept >= 900).sum()) <= 20  # 10, within more than 2 standard deviations; the sample is fixed
    assert sorted(kept.flatten().tolist()) == balanced_rows(["a"] * 1000, 100, digests(rows))


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


# The reason for `gcr update`: three updates with folders of digits, each deleted afterwards, keep the first classes;
# plain fine-tuning with the same network and epochs loses them.

STEPS = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
EPOCHS, LIMIT = 10, 5.0


@pytest.fixture(scope="module")
def digits():
    """Pictures as uint8 and classes, in two parts: to learn from, and a fifth that no command ever sees."""
    data = load_digits()
    pixels, classes = (data.images * 15).astype(np.uint8), data.target
    unseen = np.arange(len(classes)) % 5 == 0
    return (pixels[~unseen], classes[~unseen]), (pixels[unseen], classes[unseen])


def write_pictures(folder, pixels, classes, wanted):
    for name in wanted:
        (folder / str(name)).mkdir(parents=True)
        for number, picture in enumerate(pixels[classes == name]):
            Image.fromarray(picture).save(folder / str(name) / f"{number}.png")


@pytest.fixture(scope="module")
def taught(digits, tmp_path_factory):
    """The state after three updates, and accuracy on unseen pictures of the first classes after each."""
    home = tmp_path_factory.mktemp("taught")
    (pixels, classes), unseen = digits
    write_pictures(home / "unseen", *unseen, range(10))
    accuracies = []
    for number, names in enumerate(STEPS, 1):
        new = home / f"new-{number}"
        write_pictures(new, pixels, classes, names)
        limit = 20  # of 7 examples of a class that are held out
        words = ["update", home / "state", new, "--epochs", EPOCHS, "--limit", limit, "--memory", 250]
        assert run_cli([str(word) for word in words]) == 0
        shutil.rmtree(new)
        accuracies.append(first_classes(home))
    return home, accuracies


def first_classes(home):
    words = ["predict", home / "state", home / "unseen", "--out", home / "predictions.csv"]
    assert run_cli([str(word) for word in words]) == 0
    rows = list(csv.DictReader((home / "predictions.csv").read_text().splitlines()))
    assert len(rows) == 360
    truth = [int(Path(row["file"]).parent.name) for row in rows]
    right = [row["class"] == str(name) for row, name in zip(rows, truth, strict=True) if name in STEPS[0]]
    return 100 * sum(right) / len(right)


def test_the_first_classes_lose_little_on_unseen_pictures(taught):
    _, accuracies = taught
    assert accuracies[0] > 97
    assert accuracies[0] - accuracies[2] <= LIMIT, accuracies


def test_fine_tuning_loses_them(digits, taught):
    (pixels, classes), (unseen, truth) = digits
    learner = Learner(build("convnet", (1, 8, 8), 2, seed=0), memory=1, method=Finetune(), seed=0)
    for names in STEPS:
        rows = np.isin(classes, names)
        learner.fit(pixels[rows][:, None], [str(name) for name in classes[rows]], epochs=EPOCHS)
    first = np.isin(truth, STEPS[0])
    assert 100 * learner.score(unseen[first][:, None], [str(name) for name in truth[first]]) < 30


def test_the_page_shows_classes_history_and_memory(taught):
    home, _ = taught
    assert run_cli(["inspect", str(home / "state")]) == 0
    page = (home / "state/inspect.html").read_text()
    assert "10 classes after 3 updates, version 3" in page
    assert len(re.findall(r"<img src=\"data:image/png;base64,", page)) == 200
    assert len(re.findall(r"<polyline ", page)) == 4  # all classes, and those of each update
    for number in (1, 2, 3):
        assert f"{number}: new-{number}" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)  # nothing is loaded


# --- Memory of another size

OLD, LATE = 0.0, 1.0  # in the first column of an example


def classifier_with(memory, examples=1000):
    torch.manual_seed(0)
    learner = gcr.Learner(torch.nn.Linear(3, 2), memory, classes=["a", "b"])
    learner.remember(of(OLD, examples), ["a", "b"] * (examples // 2))
    return Classifier(None, None, "mlp", learner, memory, torch.zeros(0, 3), [], [])


def of(when, n):
    return torch.cat([torch.full((n, 1), when), torch.rand(n, 2)], 1)


@pytest.mark.parametrize(("before", "now"), [(100, 101), (100, 120), (100, 60), (2000, 100)])
def test_remembered_examples_keep_their_chance_against_later_ones(before, now):
    classifier = classifier_with(before)
    classifier.learner.resize(now)
    classifier.learner.remember(of(LATE, 100), ["a", "b"] * 50)
    late = float((classifier.learner.memory.examples[:, 0] == LATE).float().mean())
    assert len(classifier.learner.memory) == now
    assert late < 100 / 1100 + max(now - before, 0) / now + 0.08  # late ones take all new places


def columns(memory):
    return memory.labels, memory.logits.numpy(), memory.tasks.numpy(), memory.weights.numpy()


@pytest.mark.parametrize("now", [20, 30, 60])
def test_rows_stay_as_they_are(now):
    classifier = classifier_with(30)
    memory, optimizer = classifier.learner.memory, classifier.learner.engine.state.optimizer
    there = {tuple(row): place for place, row in enumerate(memory.examples.tolist())}
    before = columns(memory)
    classifier.learner.end_task()
    with torch.no_grad():
        classifier.learner.net.weight.add_(1.0)  # stored logits are from before
    classifier.learner.resize(now)
    memory = classifier.learner.memory
    places = [there[tuple(row)] for row in memory.examples.tolist()]
    assert len({*places}) == len(memory) == min(now, 30)
    for kept, own in zip(before, columns(memory), strict=True):
        assert (kept[places] == own).all()
    assert classifier.learner.engine.state.optimizer is optimizer
    classifier.learner.fit(of(LATE, 40), ["c"] * 40, epochs=1)  # memory of the new size goes on
    assert memory.capacity == now


def test_an_empty_memory_is_resized():
    classifier = classifier_with(30)
    classifier.learner.forget(torch.arange(30))
    classifier.learner.resize(40)
    classifier.learner.fit(of(LATE, 60), ["a", "b"] * 30, epochs=1)
    assert len(classifier.learner.memory) == 40
