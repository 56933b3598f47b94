"""Numbers over seeds against values worked out by hand and SciPy's own; two groups of runs compared."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import experiment_of, put_run, square
from scipy import stats

from gcr.analysis.compare import corrected, made_with, notes, one_group, pairs, records, sheet
from gcr.analysis.formats import latex
from gcr.analysis.load import metric_of, read_runs
from gcr.analysis.statistics import best, compare, holm, interval, not_apart, one_sample_p, spread, welch
from gcr.settings import BadInput


def by_seed(*values):
    return dict(enumerate(values))


def test_mean_and_sem():
    assert str(spread([10.0, 12.0, 14.0])) == "12.00 ± 1.15"
    assert str(spread([10.0])) == "10.00"
    assert spread([10.0, None]) is None
    assert spread([]) is None


def test_interval_by_hand():
    """SEM of 10, 12, 14 is 2 / sqrt 3; t of 2 degrees of freedom at 97.5% is 4.302653 in every table."""
    low, high = interval(spread([10.0, 12.0, 14.0]))
    assert low == pytest.approx(12 - 4.302653 * 2 / math.sqrt(3), abs=1e-5)
    assert high == pytest.approx(12 + 4.302653 * 2 / math.sqrt(3), abs=1e-5)
    assert interval(spread([10.0])) is None
    assert interval(spread([3.0, 3.0])) == (3.0, 3.0)
    with pytest.raises(BadInput, match="level must be between 0 and 1"):
        interval(spread([1.0, 2.0]), level=95)


def test_interval_is_scipys():
    values = [71.2, 73.9, 70.4, 72.2, 75.1]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert interval(spread(values), 0.9) == pytest.approx((expected.low, expected.high))


def test_paired_test_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, d = 2, t = 2 sqrt 3 with 2 degrees of freedom."""
    found = compare(by_seed(11.0, 22.0, 33.0), by_seed(10.0, 20.0, 30.0))
    t = 2 * math.sqrt(3)
    assert found.difference == pytest.approx(2)
    assert found.effect == pytest.approx(2)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))  # the t-distribution with 2 degrees, closed form
    assert found.warnings == ("3 paired seeds are few; a test wants 5 or more",)


def test_paired_test_is_scipys():
    a, b = [71.0, 73.5, 72.0, 74.0, 75.0, 70.0], [70.0, 74.0, 71.5, 72.0, 73.5, 70.5]
    found = compare(by_seed(*a), by_seed(*b))
    assert found.p == stats.ttest_rel(a, b).pvalue
    assert found.effect == pytest.approx(stats.ttest_rel(a, b).statistic / math.sqrt(6))
    assert found.interval == pytest.approx(tuple(stats.ttest_rel(a, b).confidence_interval()))
    assert found.warnings == ()
    turned = compare(by_seed(*b), by_seed(*a))
    assert (turned.difference, turned.effect) == (-found.difference, -found.effect)
    assert turned.p == pytest.approx(found.p)


def test_welchs_test_is_scipys():
    a, b = [71.0, 73.5, 72.0, 74.0, 75.0, 70.0], [60.0, 74.0, 71.5, 52.0, 73.5]
    found = welch(by_seed(*a), {seed + 30: value for seed, value in enumerate(b)})
    expected = stats.ttest_ind(a, b, equal_var=False)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.difference / found.sem == pytest.approx(expected.statistic)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval()))
    assert (found.n, found.n_second, found.seeds, found.warnings) == (6, 5, "6, 5", ())
    by_hand = math.sqrt((stats.tvar(a) + stats.tvar(b)) / 2)
    assert found.effect == pytest.approx(found.difference / by_hand)


def test_welchs_test_of_too_little():
    one = welch({0: 3.0}, {1: 2.0, 2: 4.0})
    assert (one.difference, one.sem, one.p, one.interval) == (0.0, None, None, None)
    assert one.warnings == ("1 and 2 seeds are few; a test wants 5 or more of each",)
    assert welch({}, {1: 2.0}).difference is None
    constant = welch(by_seed(3.0, 3.0), by_seed(2.0, 2.0))
    assert (constant.p, constant.effect) == (0.0, math.inf)


def test_one_sample_test_is_scipys():
    values = [71.2, 73.9, 70.4, 72.2, 75.1]
    assert one_sample_p(spread(values), 70.0) == pytest.approx(stats.ttest_1samp(values, 70.0).pvalue)
    assert one_sample_p(spread([1.0]), 2.0) is None


def test_holm_by_hand():
    assert holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert holm([]) == []


def test_only_equal_seeds_are_paired():
    a, b = {0: 1.0, 1: 5.0, 2: 4.0, 7: 90.0}, {2: 2.0, 1: 2.0, 0: 0.0}
    found = compare(a, b)
    assert found.n == 3
    assert found.difference == pytest.approx(2.0)
    assert found.warnings[0] == "seed sets differ: 4 and 3 seeds, of which 3 are paired"


def test_too_little_to_test():
    none = compare({0: 1.0}, {1: 2.0})
    assert (none.n, none.difference, none.p, none.effect) == (0, None, None, None)
    one = compare({0: 3.0}, {0: 2.0})
    assert (one.n, one.difference, one.p) == (1, 1.0, None)
    assert not one.significant()
    assert one.warnings == ("1 paired seed is few; a test wants 5 or more",)


@pytest.mark.filterwarnings("error")
def test_constant_differences():
    same = compare(by_seed(*range(6)), by_seed(*range(6)))
    assert (same.p, same.effect) == (1.0, 0.0)
    apart = compare(by_seed(*(v + 0.1 for v in range(6))), by_seed(*range(6)))
    assert (apart.p, apart.effect) == (0.0, math.inf)


A = by_seed(75.0, 76.0, 75.5, 76.2, 74.9)
B = by_seed(74.9, 76.1, 75.3, 76.3, 74.8)  # as good as A
C = by_seed(70.0, 71.5, 70.2, 71.0, 69.9)


def test_bold_is_the_best_and_what_is_not_worse():
    assert best({"c": C, "b": B, "a": A}).labels == ("b", "a")
    assert best({"a": A, "b": B, "c": C}, higher=False).labels == ("c",)
    assert best({"a": A, "b": B, "c": C}).warnings == ()
    assert best({}).labels == ()
    assert best({"a": A, "none": {}}).labels == ("a",)


def test_what_cannot_be_tested_is_not_bold():
    found = best({"a": A, "one": {0: 74.9}})
    assert found.labels == ("a",)
    assert "one against a: cannot be tested, so not bold" in found.warnings
    assert any("seed sets differ" in text for text in found.warnings)
    few = best({"a": {0: 75.0, 1: 76.0}, "c": {0: 70.0, 1: 69.0}})
    assert few.labels == ("a", "c")  # two seeds cannot separate them
    assert few.warnings == ("c against a: 2 paired seeds are few; a test wants 5 or more",)


def test_the_ablations_stricter_level():
    """A and C differ by 5 with little deviation: far below 1e-3. A and B do not."""
    assert [(a, b) for a, b, _ in not_apart({"a": A, "b": B, "c": C})] == [("a", "b")]
    assert not_apart({"a": A, "c": C}) == []
    wide = by_seed(74.0, 76.0, 74.0, 75.5, 74.5)  # p against A is below 0.05, above 1e-3
    p = stats.ttest_rel(list(A.values()), list(wide.values())).pvalue
    assert 1e-3 < p < 0.05
    assert len(not_apart({"a": A, "wide": wide})) == 1
    assert best({"a": A, "wide": wide}).labels == ("a",)
    ((*_, unpaired),) = not_apart({"a": A, "wide": wide}, 1e-3, lambda a, b: "asked for")
    assert unpaired.p == pytest.approx(stats.ttest_ind(list(A.values()), list(wide.values()), equal_var=False).pvalue)
    assert not_apart({"a": A, "c": dict(enumerate(C.values(), start=30))}) == []  # no seed in common: Welch's


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(BadInput, match=r"gradient-coreset-replay\[statistics\]"):
        compare(A, C)
    with pytest.raises(BadInput, match="SciPy"):
        interval(spread([1.0, 2.0]))


def test_what_is_better_than_the_best_on_the_common_seeds_is_bold_too():
    lead = {0: 70.0, 1: 71.0, 2: 70.5, 3: 70.2, 4: 99.0, 5: 99.0}
    other = {0: 75.0, 1: 76.1, 2: 75.4, 3: 75.3}
    assert set(best({"lead": lead, "other": other}).labels) == {"lead", "other"}
    worse = {seed: value - 5 for seed, value in zip(lead, (70.1, 71.0, 70.4, 70.2), strict=False)}
    assert best({"lead": lead, "worse": worse}).labels == ("lead",)


# --- Two groups of runs compared: paired by seed, or by Welch's test


def put(out, name, accuracies, method="er", **overrides):
    for seed, accuracy in accuracies.items():
        put_run(out, experiment_of(method, seed, **overrides), square(accuracy), name)
    return one_group(out / name, read_runs(out / name))


def test_the_difference_is_taken_on_the_seeds_that_both_have(tmp_path):
    first = put(tmp_path, "a", {0: 70.0, 1: 74.0, 2: 78.0, 3: 81.0, 4: 80.0, 9: 10.0}, lr=0.1)
    second = put(tmp_path, "b", {0: 69.0, 1: 72.0, 2: 77.0, 3: 79.0, 4: 78.0}, lr=0.2)
    found = pairs(first, [second], ["accuracy", "learning"])
    line = found[0].lines[0]
    expected = stats.ttest_rel([70, 74, 78, 81, 80], [69, 72, 77, 79, 78])
    assert (line.first.mean, line.second.mean, line.test.difference) == pytest.approx((76.6, 75.0, 1.6))
    assert line.test.sem == pytest.approx(1.6 / expected.statistic)
    assert line.test.p == pytest.approx(expected.pvalue)
    shown = sheet(found)
    assert [entry.text for entry in shown.rows[0]] == [
        *("class-IL accuracy", "76.60 ± 2.04", "75.00 ± 1.92", "+1.60 ± 0.24", "5", "0.0028", "0.0057", "2.92")
    ]
    assert all(entry.bold for entry in shown.rows[0])
    assert [entry.text for entry in shown.rows[1][1:5]] == ["–", "–", "–", "0"]  # these runs have no learning accuracy
    assert records(found)[0]["difference"] == pytest.approx(1.6)
    note = notes(found)
    assert note[0] == "they differ in optimizer.lr (0.1, 0.2)"
    assert "seed sets differ: 6 and 5 seeds, of which 5 are paired" in note


def test_another_selector_goes_without_the_settings_that_only_one_has(tmp_path):
    first = put(tmp_path, "a", {0: 70.0}, selector="class-balanced", lr=0.1)
    second = put(tmp_path, "b", {0: 71.0}, selector="grad-approx", lr=0.2)
    note = notes(pairs(first, [second], ["accuracy"]))[0]
    assert note == "they differ in selector.name (class-balanced, grad-approx), optimizer.lr (0.1, 0.2)"


def test_the_same_experiment_twice(tmp_path):
    first, second = (put(tmp_path, name, {0: 70.0, 1: 74.0}) for name in "ab")
    found = pairs(first, [second], ["accuracy"])
    assert (found[0].lines[0].test.difference, found[0].lines[0].test.p) == (0.0, 1.0)
    assert notes(found)[0] == "they are the same experiment"


OURS, THEIRS = [70.0, 74.0, 78.0, 81.0, 80.0, 75.0], [69.0, 60.0, 71.0, 62.0, 65.0]


def test_without_a_common_seed_it_is_welchs_test(tmp_path):
    first = put(tmp_path, "a", dict(enumerate(OURS)))
    second = put(tmp_path, "b", dict(enumerate(THEIRS, start=30)))
    found = pairs(first, [second], ["accuracy", "learning"])
    expected = stats.ttest_ind(OURS, THEIRS, equal_var=False)
    test = found[0].lines[0].test
    assert test.p == pytest.approx(expected.pvalue)
    assert test.sem == pytest.approx(test.difference / expected.statistic)
    shown = sheet(found)
    assert shown.title.endswith("mean ± SEM over all seeds of each, unpaired")
    assert [entry.text for entry in shown.rows[0]][1:5] == ["76.33 ± 1.69", "65.40 ± 2.06", "+10.93 ± 2.67", "6, 5"]
    assert [entry.text for entry in shown.rows[1]][1:5] == ["–", "–", "–", "0, 0"]  # no learning accuracy
    record = records(found)[0]
    assert (record["n"], record["n_second"], record["test"]) == (6, 5, "welch")
    note = notes(found)
    assert "unpaired (no seed in common): 6 seeds of the first, 5 of the second" in note
    assert any(text.startswith("p: Welch's t-test; p (Holm): ") for text in note)


def test_unpaired_where_asked(tmp_path):
    first, second = (put(tmp_path, name, dict(enumerate(of))) for name, of in (("a", OURS), ("b", THEIRS)))
    found = pairs(first, [second], ["accuracy"], paired=False)
    assert found[0].lines[0].test.p == pytest.approx(stats.ttest_ind(OURS, THEIRS, equal_var=False).pvalue)
    assert "unpaired (asked for, 5 common): 6 seeds of the first, 5 of the second" in notes(found)
    assert records(pairs(first, [second], ["accuracy"]))[0]["test"] == "paired"


def test_online_on_a_gpu_it_is_welchs_test_and_any_time_accuracy_comes_first(tmp_path):
    """Equal seeds are hardly correlated there."""
    groups = {}
    for device, online in (("cpu", True), ("NVIDIA H200", True), ("NVIDIA H200", False)):
        for name, values, held in (("a", OURS, 3_132_000), ("b", THEIRS, 1_566_000)):
            out = tmp_path / f"{device}-{online}" / name
            for seed, accuracy in enumerate(values):
                experiment = experiment_of("er", seed, online=online)
                put_run(out.parent, experiment, square(accuracy), name, device=device, memory_bytes=held)
            groups.setdefault((device, online), []).append(one_group(out, read_runs(out)))
    kinds = {}
    for key, (first, second) in groups.items():
        found = pairs(first, [second])
        kinds[key] = found[0].lines[0].metric, records(found)[0]["test"]
        assert "memory: the first holds 3,132,000 bytes, the second 1,566,000; compare at equal bytes" in notes(found)
        assert (records(found)[0]["first_bytes"], records(found)[0]["second_bytes"]) == (3_132_000, 1_566_000)
    assert kinds == {
        ("cpu", True): ("anytime", "paired"),
        ("NVIDIA H200", True): ("anytime", "welch"),
        ("NVIDIA H200", False): ("accuracy", "paired"),
    }
    first, second = groups["NVIDIA H200", True]
    assert any("unpaired (online on a GPU equal seeds" in text for text in notes(pairs(first, [second])))
    assert records(pairs(first, [second], paired=True))[0]["test"] == "paired"
    assert not any(text.startswith("memory: ") for text in notes(pairs(first, [first])))


def test_a_comparison_on_seeds_that_chose_a_setting_has_no_test(tmp_path, monkeypatch):
    first, second = (put(tmp_path, name, dict(enumerate(OURS))) for name in ("a", "b-seeds-that-chose"))
    third = put(tmp_path, "c", {seed: value + seed for seed, value in enumerate(OURS)})
    others = pairs(first, [third], ["accuracy"])
    assert records(others)[0]["p"] is not None
    assert not any("chosen on" in text for text in notes(others))
    monkeypatch.chdir(second.folder)  # its name is known from within
    for chose in (second, *read_runs(Path()).groups):
        found = pairs(first, [chose], ["accuracy"])
        assert "a setting was chosen on the seeds of the second: no test" in notes(found)
        assert records(found)[0]["p"] is None
        assert records(found)[0]["difference"] == 0.0


def test_bold_is_corrected_for_the_number_of_lines(tmp_path):
    first = put(tmp_path, "a", dict(enumerate([1.0, 0.0, 2.0, 1.0, 1.0])))  # t = 3.16, p = 0.034
    second = put(tmp_path, "b", dict.fromkeys(range(5), 0.0))
    (pair,) = pairs(first, [second], ["accuracy"])
    one, two = ([replace(pair, lines=pair.lines[:n])] for n in (1, 2))
    assert pair.lines[0].test.p == pytest.approx(0.0341, abs=1e-4)
    assert all(entry.bold for entry in sheet(corrected(one)).rows[0])
    assert not any(entry.bold for row in sheet(corrected(two)).rows for entry in row)
    assert "p: a paired t-test; p (Holm): after Holm's correction over 2 lines; bold: p (Holm) < 0.05" in notes(two)


def test_the_correction_is_said_in_every_format(tmp_path):
    first = put(tmp_path, "a", dict(enumerate([1.0, 0.0, 2.0, 1.0, 1.0])))
    second = put(tmp_path, "b", dict.fromkeys(range(5), 0.0))
    (pair,) = pairs(first, [second], ["accuracy", "learning"])
    one, untested, *_ = pair.lines
    found = corrected([replace(pair, lines=[one, one, untested])])
    shown = sheet(found)
    texts = [dict(zip(shown.columns, (entry.text for entry in row), strict=True)) for row in shown.rows]
    assert [(row["p"], row["p (Holm)"]) for row in texts] == [("0.034", "0.068")] * 2 + [("–", "–")]
    assert "& 0.034 & 0.068 &" in latex([shown])
    assert [line["p_holm"] for line in records(found)] == [pytest.approx(2 * one.test.p)] * 2 + [None]
    assert records(corrected([replace(pair, lines=[one])]))[0]["p_holm"] == pytest.approx(one.test.p)


def test_several_others_are_one_family(tmp_path):
    first = put(tmp_path, "mine", dict(enumerate(OURS)))
    second = put(tmp_path, "near", dict(enumerate(value - seed / 10 for seed, value in enumerate(OURS))), lr=0.2)
    third = put(tmp_path, "far", dict(enumerate(THEIRS, start=30)), method="gcr")
    found = pairs(first, [second, third], ["accuracy"])
    tests = (
        stats.ttest_rel(OURS, [value - seed / 10 for seed, value in enumerate(OURS)]),
        stats.ttest_ind(OURS, THEIRS, equal_var=False),
    )
    values = [test.pvalue for test in tests for _ in range(2)]  # class-IL and task-IL are alike here
    assert [line["p"] for line in records(found)] == pytest.approx(values)
    assert [line["p_holm"] for line in records(found)] == pytest.approx(holm(values))
    assert [(line["first_name"], line["second_name"]) for line in records(found)[1:3]] == [
        ("mine", "near"),
        ("mine", "far"),
    ]
    shown = sheet(found)
    assert shown.title == "mine against 2 others: percent, mean ± SEM over common seeds or all seeds of each, unpaired"
    labels = [row[0].text for row in shown.rows]
    assert labels == [
        f"{name}: {protocol} accuracy" for name in ("near", "far") for protocol in ("class-IL", "task-IL")
    ]
    said = notes(found)
    assert said[0] == "near: they differ in optimizer.lr (0.1, 0.2)"
    assert "far: unpaired (no seed in common): 6 seeds of the first, 5 of the second" in said


def test_each_row_says_its_test_where_rows_differ(tmp_path):
    first = put(tmp_path, "mine", dict(enumerate(OURS)))
    near = put(tmp_path, "near", dict(enumerate(THEIRS)), lr=0.2)
    far = put(tmp_path, "far", dict(enumerate(THEIRS, start=30)), method="gcr")
    found = pairs(first, [near, far], ["accuracy"])
    shown = sheet(found)
    column = shown.columns.index("test")
    tests = [row[column].text for row in shown.rows]
    assert tests == ["paired", "paired", "Welch", "Welch"]
    assert [line["test"] for line in records(found)] == [text.lower() for text in tests]
    assert [len(row) for row in shown.rows] == [len(shown.columns)] * 4
    said = notes(found)
    over = "p (Holm): after Holm's correction over 4 lines; bold: p (Holm) < 0.05"
    assert f"p: a paired t-test or Welch's t-test, as each row says; {over}" in said
    assert "effect, paired: the mean of the differences in their standard deviations (Cohen's d)" in said
    assert "effect, Welch: the difference of the means in pooled standard deviations (Cohen's d)" in said
    for other, name in ((near, "a paired t-test"), (far, "Welch's t-test")):
        alike = pairs(first, [other, other], ["accuracy"])
        assert "test" not in sheet(alike).columns
        assert {len(row) for row in sheet(alike).rows} == {len(sheet(alike).columns)}
        assert any(text.startswith(f"p: {name}; p (Holm)") for text in notes(alike))


def test_others_of_equal_names_are_told_apart(tmp_path):
    first = put(tmp_path, "mine", dict(enumerate(OURS)))
    others = [put(tmp_path / place, "er", dict(enumerate(THEIRS)), lr=lr) for place, lr in (("old", 0.2), ("new", 0.3))]
    found = pairs(first, others, ["accuracy"])
    assert [row[0].text.split(": ")[0] for row in sheet(found).rows] == ["old/er", "old/er", "new/er", "new/er"]
    assert [line["second_name"] for line in records(found)] == ["old/er", "old/er", "new/er", "new/er"]
    assert notes(found)[1] == "new/er: they differ in optimizer.lr (0.1, 0.3)"


def test_one_evaluation_of_all_tasks_has_no_anytime_accuracy(tmp_path):
    """That of ``joint``, which other methods' mean over stages cannot be compared with."""
    said = {"accuracy": 90.0, "forgetting": None, "anytime": 90.0, "learning": 90.0}
    for seed in range(5):
        whole = {"matrix": [[90.0] * 5]} | said
        put_run(tmp_path, experiment_of("joint", seed), [[90.0] * 5], "a", class_il=whole, task_il=whole)
        tasks = {"matrix": square(80.0 + seed)} | said
        put_run(tmp_path, experiment_of("er", seed), square(80.0), "b", class_il=tasks, task_il=tasks)
    joint, er = (one_group(tmp_path / name, read_runs(tmp_path / name)) for name in "ab")
    found = pairs(joint, [er], ["accuracy", "anytime", "learning"])
    assert joint.spread("class_il", "anytime") is joint.spread("task_il", "learning") is None
    assert er.spread("class_il", "anytime").mean == 90.0
    assert [line.test.p is None for line in found[0].lines] == [False, True, True] * 2
    assert not any("seed sets differ" in note for note in notes(found))


def test_what_depends_on_the_moments_of_evaluation_is_not_tested_where_they_differ(tmp_path):
    for name, method, value in (("a", "er", 70.0), ("b", "icarl", 60.0), ("c", "gcr", 50.0)):
        for seed in range(5):
            values = {"matrix": square(value + seed**2), "accuracy": value + seed**2, "anytime": value, "learning": 9.0}
            values["forgetting"] = value / 2 - (seed * len(method)) % 3
            experiment = experiment_of(method, seed, online=True)
            put_run(tmp_path, experiment, square(value), name, class_il=values, task_il=values)
    er, icarl, gcr = (one_group(tmp_path / name, read_runs(tmp_path / name)) for name in "abc")
    metrics = ["accuracy", "forgetting", "anytime", "learning"]
    found = pairs(er, [icarl], metrics)
    assert [line.test.p is None for line in found[0].lines] == [False, True, True, True] * 2
    assert [entry.text for entry in sheet(found).rows[1]][4:] == ["5", "–", "–", "–"]
    assert any("Holm's correction over 2 lines" in note for note in notes(found))
    assert records(found)[1]["p"] is records(found)[1]["low95"] is None
    assert not any(line.test.p is None for line in pairs(er, [gcr], metrics)[0].lines)  # both after every stream


def test_forgetting_with_the_last_stage_leaves_out_what_came_before_a_task():
    matrix = [[95.0, 90.0, 90.0], [80.0, 70.0, 90.0], [80.0, 70.0, 90.0]]

    def forgetting(anytime=None, **about):
        return metric_of({"task_il": {"matrix": matrix, "anytime": anytime}} | about, "task_il", "forgetting_with_last")

    assert forgetting() == forgetting(anytime=(95 + 75 + 80) / 3) == (15 + 0) / 2
    assert forgetting(anytime=90.0) == (15 + 20) / 2  # stages are not tasks: when these begin is not known
    assert forgetting(first_stages=[0, 0, 2]) == (15 + 20) / 2
    assert forgetting(first_stages=[0, 1, 2]) == (15 + 0) / 2


def test_runs_trained_again_tell_another_version_of_a_plugin():
    about = {"device": "cpu", "versions": {"torch": "2"}, "source": "a" * 40}
    before, after = (made_with([about | {"plugins": {"mine.py": digit * 64}}]) for digit in "12")
    assert before == "cpu, torch 2, source aaaaaaaa, plugins mine.py 11111111 (1)"
    assert after == before.replace("1" * 8, "2" * 8)
    assert made_with([about]) == "cpu, torch 2, source aaaaaaaa (1)"


def test_what_cannot_be_compared(tmp_path):
    put(tmp_path, "a", {0: 70.0})
    put(tmp_path, "b", {1: 70.0})
    with pytest.raises(BadInput, match="holds 2 experiments; give one of them"):
        one_group(tmp_path, read_runs(tmp_path))
