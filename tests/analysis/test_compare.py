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


OURS, THEIRS = [70.0, 74.0, 78.0, 81.0, 80.0, 75.0], [69.0, 60.0, 71.0, 62.0, 65.0]


def test_without_a_common_seed_it_is_welchs_test(tmp_path):
    first = put(tmp_path, "a", dict(enumerate(OURS)))
    second = put(tmp_path, "b", dict(enumerate(THEIRS, start=30)))
    found = lines(first, second, ["accuracy", "learning"])
    expected = stats.ttest_ind(OURS, THEIRS, equal_var=False)
    assert found[0].test.p == pytest.approx(expected.pvalue)
    assert found[0].test.sem == pytest.approx(found[0].test.difference / expected.statistic)
    shown = sheet(first, second, found)
    assert shown.title.endswith("mean ± SEM over all seeds of each, unpaired")
    assert [entry.text for entry in shown.rows[0]][1:5] == ["76.33 ± 1.69", "65.40 ± 2.06", "+10.93 ± 2.67", "6, 5"]
    assert [entry.text for entry in shown.rows[1]][1:5] == ["–", "–", "–", "0, 0"]  # no learning accuracy
    record = records(found)[0]
    assert (record["n"], record["n_second"], record["test"]) == (6, 5, "welch")
    note = notes(first, second, found)
    assert "unpaired (no seed in common): 6 seeds of the first, 5 of the second" in note
    assert any(text.startswith("bold: p < 0.05 in Welch's t-test") for text in note)


def test_unpaired_where_asked(tmp_path):
    first, second = (put(tmp_path, name, dict(enumerate(of))) for name, of in (("a", OURS), ("b", THEIRS)))
    (line,) = lines(first, second, ["accuracy"], unpaired=True)[:1]
    assert line.test.p == pytest.approx(stats.ttest_ind(OURS, THEIRS, equal_var=False).pvalue)
    assert "unpaired (asked for, 5 common): 6 seeds of the first, 5 of the second" in notes(first, second, [line])
    assert records(lines(first, second, ["accuracy"]))[0]["test"] == "paired"


def test_bold_is_corrected_for_the_number_of_lines(tmp_path):
    first = put(tmp_path, "a", dict(enumerate([1.0, 0.0, 2.0, 1.0, 1.0])))  # t = 3.16, p = 0.034
    second = put(tmp_path, "b", dict.fromkeys(range(5), 0.0))
    one, *_ = lines(first, second, ["accuracy"])
    assert one.test.p == pytest.approx(0.0341, abs=1e-4)
    assert all(entry.bold for entry in sheet(first, second, [one]).rows[0])
    assert not any(entry.bold for row in sheet(first, second, [one, one]).rows for entry in row)
    assert "bold: p < 0.05 in a paired t-test after Holm's correction over 2 lines" in notes(first, second, [one, one])


def test_what_cannot_be_compared(tmp_path):
    put(tmp_path, "a", {0: 70.0})
    put(tmp_path, "b", {1: 70.0})
    with pytest.raises(BadInput, match="holds 2 experiments; give one of them"):
        one_group(tmp_path, read_runs(tmp_path))
