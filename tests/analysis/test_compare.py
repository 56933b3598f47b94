import pytest
from made_runs import experiment_of, put_run, square
from scipy import stats

from gcr.analysis.compare import lines, notes, one_group, records, sheet
from gcr.analysis.load import read_runs
from gcr.settings import BadInput


def put(out, name, by_seed, method="er", **overrides):
    for seed, accuracy in by_seed.items():
        put_run(out, experiment_of(method, seed, **overrides), square(accuracy), name)
    return one_group(out / name, read_runs(out / name))


def test_the_difference_is_taken_on_the_seeds_that_both_have(tmp_path):
    first = put(tmp_path, "a", {0: 70.0, 1: 74.0, 2: 78.0, 3: 81.0, 4: 80.0, 9: 10.0}, lr=0.1)
    second = put(tmp_path, "b", {0: 69.0, 1: 72.0, 2: 77.0, 3: 79.0, 4: 78.0}, lr=0.2)
    line = lines(first, second, ["accuracy", "learning"])[0]
    expected = stats.ttest_rel([70, 74, 78, 81, 80], [69, 72, 77, 79, 78])
    assert (line.first.mean, line.second.mean, line.test.difference) == pytest.approx((76.6, 75.0, 1.6))
    assert line.test.sem == pytest.approx(1.6 / expected.statistic)
    assert line.test.p == pytest.approx(expected.pvalue)
    shown = sheet(first, second, lines(first, second, ["accuracy", "learning"]))
    assert [entry.text for entry in shown.rows[0]] == [
        *("class-IL accuracy", "76.60 ± 2.04", "75.00 ± 1.92", "+1.60 ± 0.24", "5", "0.0028", "2.92")
    ]
    assert all(entry.bold for entry in shown.rows[0])
    assert [entry.text for entry in shown.rows[1][1:5]] == ["–", "–", "–", "0"]  # these runs have no learning accuracy
    assert records([line])[0]["difference"] == pytest.approx(1.6)
    note = notes(first, second, [line])
    assert note[0] == "they differ in optimizer.lr (0.1, 0.2)"
    assert "seed sets differ: 6 and 5 seeds, of which 5 are paired" in note


def test_another_selector_goes_without_the_settings_that_only_one_has(tmp_path):
    first = put(tmp_path, "a", {0: 70.0}, selector="class-balanced", lr=0.1)
    second = put(tmp_path, "b", {0: 71.0}, selector="grad-approx", lr=0.2)
    note = notes(first, second, lines(first, second, ["accuracy"]))[0]
    assert note == "they differ in selector.name (class-balanced, grad-approx), optimizer.lr (0.1, 0.2)"


def test_the_same_experiment_twice(tmp_path):
    first, second = (put(tmp_path, name, {0: 70.0, 1: 74.0}) for name in "ab")
    (line,) = lines(first, second, ["accuracy"])[:1]
    assert (line.test.difference, line.test.p) == (0.0, 1.0)
    assert notes(first, second, [line])[0] == "they are the same experiment"


def test_what_cannot_be_compared(tmp_path):
    first, second = put(tmp_path, "a", {0: 70.0}), put(tmp_path, "b", {1: 70.0})
    with pytest.raises(BadInput, match="no seed in common; train both on the same seeds"):
        lines(first, second, ["accuracy"])
    with pytest.raises(BadInput, match="holds 2 experiments; give one of them"):
        one_group(tmp_path, read_runs(tmp_path))
