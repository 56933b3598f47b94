"""Runs compared with the paper's cells: which runs count, what is bold, what is missing; and how much is read."""

from dataclasses import replace

import pytest
from made_runs import count_reading

from gcr import paper
from gcr.analysis.compare import pairs
from gcr.analysis.compare import records as records_of_pairs
from gcr.analysis.formats import markdown
from gcr.analysis.load import FORGETTING, read_runs
from gcr.analysis.tables import sheets as plain_sheets
from gcr.files import json_bytes
from gcr.paper.compare_to_paper import by_sheet, compare, records, sheets, verdict_notes
from gcr.runs.folder import RunFolder


def put(out, experiment, name, class_il, task_il=50.0, n_tasks=5, forgetting=20.0, **more):
    """A finished run as files, without the care that a real one takes."""
    folder = RunFolder.of(out, experiment, name)
    folder.path.mkdir(parents=True)
    protocols = {
        protocol: {"matrix": [[value] * n_tasks] * n_tasks, "accuracy": value, "forgetting": forgetting}
        for protocol, value in (("class_il", class_il), ("task_il", task_il))
    }
    result = protocols | {"seconds": 1.0, "steps": 1, "device": "cpu", "versions": {}, "selections": []} | more
    (folder.path / "experiment.json").write_bytes(json_bytes(experiment.to_dict()))
    (folder.path / "result.json").write_bytes(json_bytes(result))


def cell_of(table, method, protocol="class-il", scenario="seq-cifar10", buffer=500, metric="accuracy"):
    (cell,) = paper.find(table, method=method, protocol=protocol, scenario=scenario, buffer=buffer, metric=metric)
    return cell


def repeat(out, cell, values, name=None, change=lambda e: e, **more):
    for seed, value in values.items() if isinstance(values, dict) else enumerate(values):
        put(out, change(paper.experiment(cell, seed)), name or f"{cell.method}-{cell.protocol}", value, **more)


def row_of(found, cell):
    (row,) = [row for row in found.rows if row.cell == cell]
    return row


def test_ours_the_papers_and_their_difference(tmp_path):
    cell = cell_of("offline-accuracy", "gcr")  # 74.69
    repeat(tmp_path, cell, [74.0, 75.0, 76.0, 74.5, 75.5])
    row = row_of(compare(read_runs(tmp_path).groups, "offline-accuracy"), cell)
    assert row.ours.mean == 75.0
    assert row.ours.n == 5
    assert row.difference == pytest.approx(0.31)
    assert row.interval == pytest.approx((75 - 0.98162, 75 + 0.98162), abs=1e-4)  # t(4) = 2.776445, SEM 0.353553
    assert row.inside is True
    assert row.verdict == "inside"
    assert row.bold


@pytest.mark.parametrize(
    ("table", "ours", "verdict"),
    [
        ("offline-accuracy", 75.0, "above*"),  # 74.69
        ("offline-accuracy", 74.0, "below*"),
        ("offline-forgetting", 19.0, "below*"),  # 19.27
        ("offline-forgetting", 20.0, "above*"),
    ],
)
def test_outside_our_interval_it_is_said_on_which_side(tmp_path, table, ours, verdict):
    cell = cell_of(table, "gcr", metric=table.removeprefix("offline-"))
    repeat(tmp_path, cell, [ours - 0.01, ours + 0.01, ours], forgetting=ours)
    found = compare(read_runs(tmp_path).groups, table)
    row = row_of(found, cell)
    assert (row.inside, row.verdict, row.p) == (False, verdict.strip("*"), None)  # three seeds: no test
    assert verdict_notes(found)[0].startswith("verdict: ")
    assert not any(note.startswith("*:") for note in verdict_notes(found))
    put(tmp_path, paper.experiment(cell, 3), "gcr-class-il", ours, forgetting=ours)
    put(tmp_path, paper.experiment(cell, 4), "gcr-class-il", ours, forgetting=ours)
    assert row_of(compare(read_runs(tmp_path).groups, table), cell).verdict == verdict


def test_a_star_needs_holms_correction(tmp_path):
    gcr, er = (cell_of("offline-accuracy", method) for method in ("gcr", "er"))
    repeat(tmp_path, gcr, [gcr.mean + 1.5 + wobble for wobble in (-1.0, 0.0, 1.0, 0.0, 0.0)])  # p = 0.0088
    repeat(tmp_path, er, [er.mean + 1.0 + wobble for wobble in (-1.0, 0.0, 1.0, 0.0, 0.0)])  # p = 0.034, as t = 3.16
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert [row_of(found, cell).verdict for cell in (gcr, er)] == ["above*", "above*"]
    more = cell_of("offline-accuracy", "er", buffer=200)
    repeat(tmp_path, more, [more.mean + wobble for wobble in (-1.0, 0.0, 1.0, 0.0, 0.0)], "er-200")
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert [row_of(found, cell).verdict for cell in (gcr, er, more)] == ["above*", "above", "inside"]
    assert "*: p < 0.05 after Holm's correction over 3 rows with 5 seeds or more" in verdict_notes(found)
    assert verdict_notes(found, alone="epochs ×0.1") == []


def test_online_methods_evaluated_at_task_ends_have_no_verdict_on_forgetting(tmp_path):
    icarl, er = (cell_of("online-forgetting", method, metric="forgetting") for method in ("icarl", "er"))
    repeat(tmp_path, icarl, [40.0] * 5, forgetting=10.0)
    repeat(tmp_path, er, [40.0] * 5, forgetting=30.0)
    found = compare(read_runs(tmp_path).groups, "online-forgetting")
    assert [row_of(found, cell).verdict for cell in (icarl, er)] == ["–", "below*"]
    assert [row_of(found, cell).bold for cell in (icarl, er)] == [False, True]
    assert "icarl: forgetting at the ends of tasks, not compared" in verdict_notes(found)


def test_the_other_formula_of_forgetting(tmp_path):
    er = cell_of("online-forgetting", "er", metric="forgetting")
    repeat(tmp_path, er, [40.0, 41.0, 42.0], forgetting=30.0)  # every accuracy of a run is the same
    groups = read_runs(tmp_path).groups
    found, other = (compare(groups, "online-forgetting", forgetting=of) for of in FORGETTING)
    assert [row_of(of, er).ours.mean for of in (found, other)] == [30.0, 0.0]
    assert "next to the paper's" in next(iter(by_sheet(other)))
    assert next(iter(by_sheet(other))).startswith("seq-cifar10, online, class-IL forgetting, last stage counted")
    notes = (verdict_notes(of) for of in (found, other))
    named = [[note.rsplit(" ", 1)[1] for note in of if "other formula" in note] for of in notes]
    assert named == [["forgetting_with_last"], ["forgetting"]]


def test_pairwise_notes_of_the_ablation(tmp_path):
    """By the test of ``gcr compare``, and not with fewer than five seeds."""
    cells = [cell_of("ablation", name, scenario="seq-cifar100", buffer=2000) for name in ("gcr", "gcr without supcon")]
    few = cell_of("ablation", "gcr + reservoir", scenario="seq-cifar100", buffer=2000)
    repeat(tmp_path, cells[0], [60.0, 61.0, 60.5, 61.5, 60.2], "a")
    repeat(tmp_path, cells[1], dict(enumerate([50.0, 51.0, 50.5, 51.5, 50.2], start=30)), "b")  # no seed in common
    repeat(tmp_path, few, [55.0, 56.0], "c")
    notes = compare(read_runs(tmp_path).groups, "ablation").notes
    assert "K = 2000: gcr + reservoir is not tested, seeds: 2" in notes
    assert "K = 2000: gcr, gcr without supcon differ pairwise with p < 0.001" in notes


def test_seeds_that_chose_a_setting_are_shown_without_a_verdict(tmp_path):
    cell = cell_of("offline-accuracy", "gcr")  # 74.69
    for name, ours in (("gcr-seeds-that-chose", 80.0), ("gcr", 70.0)):
        repeat(tmp_path, cell, [ours, ours + 0.1, ours - 0.1, ours, ours], name)
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    rows = {row.name: row for row in found.rows if row.cell == cell}
    chose, fresh = rows["gcr (seeds-that-chose)"], rows["gcr"]
    assert (chose.ours.mean, chose.verdict, chose.p, chose.bold) == (80.0, "–", None, False)
    assert (fresh.verdict, fresh.bold) == ("below*", True)
    assert "seeds-that-chose: a setting was chosen on them, so they have no verdict" in verdict_notes(found)
    assert "*: p < 0.05 after Holm's correction over 1 row with 5 seeds or more" in verdict_notes(found)
    (tmp_path / "gcr").rename(tmp_path.parent / "elsewhere")
    (row,) = (row for row in compare(read_runs(tmp_path).groups, "offline-accuracy").rows if row.cell == cell)
    assert row.name == "gcr (seeds-that-chose)"
    alone = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert verdict_notes(alone) == ["seeds-that-chose: a setting was chosen on them, so they have no verdict"]
    assert {record["paper_inside_95"] for record in records(alone)} == {None}


def test_online_seeds_need_not_be_the_same(tmp_path):
    gcr, er, der = (cell_of("online-accuracy", method) for method in ("gcr", "er", "der++"))
    repeat(tmp_path, gcr, [50.0, 54.0, 52.0, 51.0, 53.0])
    repeat(tmp_path, der, dict(enumerate([49.0, 53.0, 52.0, 52.0, 50.0], start=30)))
    repeat(tmp_path, er, dict(enumerate([45.0, 44.0, 46.0, 43.0, 47.0], start=30)))
    found = compare(read_runs(tmp_path).groups, "online-accuracy")
    assert [row_of(found, cell).bold for cell in (gcr, der, er)] == [True, True, False]
    assert "bold by Welch's t-test: no seed in common (2 comparisons)" in found.notes


@pytest.mark.parametrize(
    ("regime", "device", "test"),
    [
        ("online", "NVIDIA H200", "Welch's t-test: online on a GPU equal seeds of two methods are hardly correlated"),
        ("online", "cpu", "a paired t-test"),
        ("offline", "NVIDIA H200", "a paired t-test"),
    ],
)
def test_the_test_for_bold_is_that_of_gcr_compare(tmp_path, regime, device, test):
    ours, theirs = [50.0, 54.0, 52.0, 51.0, 53.0], [49.0, 53.0, 51.2, 49.8, 52.0]  # p = 9e-5 in pairs, 0.35 unpaired
    for method, values in (("gcr", ours), ("er", theirs)):
        repeat(tmp_path, cell_of(f"{regime}-accuracy", method), values, device=device)
    groups = read_runs(tmp_path).groups
    found = compare(groups, f"{regime}-accuracy")
    assert [note for note in found.notes if note.startswith("bold by")] == [f"bold by {test} (1 comparison)"]
    paired = test == "a paired t-test"
    er = row_of(found, cell_of(f"{regime}-accuracy", "er"))
    assert er.bold is not paired
    assert records_of_pairs(pairs(groups[0], groups[1:], ["accuracy"]))[0]["test"] == ("paired" if paired else "welch")


def test_repeats_of_one_seed_are_no_cells(tmp_path):
    gcr, er = (cell_of("online-accuracy", method) for method in ("gcr", "er"))
    repeat(tmp_path, gcr, [50.0, 54.0, 52.0, 51.0, 53.0])
    for number in range(3):
        repeat(tmp_path, gcr, {20: 40.0 + number}, name=f"repeat-{number}")
    repeat(tmp_path, er, {20: 45.0})
    found = compare(read_runs(tmp_path).groups, "online-accuracy")
    assert row_of(found, gcr).ours.n == 5
    assert row_of(found, er).ours.n == 1  # there is no other


def test_interval_and_bytes_of_memory_stand_in_every_row(tmp_path):
    gcr, er = (cell_of("offline-accuracy", method) for method in ("gcr", "er"))
    repeat(tmp_path, gcr, [75.0, 76.0], memory_bytes=3_132_000)
    repeat(tmp_path, er, [75.0, 76.0])
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    text = markdown(sheets(found))
    assert "| gcr | 500 | **75.50 ± 0.50** | 69.15 to 81.85 | 2 | 3,132,000 | " in text
    assert "| er | 500 | **75.50 ± 0.50** | 69.15 to 81.85 | 2 | – | " in text
    held = {line["method"]: line["memory_bytes"] for line in records(found) if line["n"]}
    assert held == {"gcr": 3_132_000, "er": None}


@pytest.mark.parametrize(
    ("accuracies", "verdict"),  # the paper has 74.69
    [
        ([70.0, 73.0, 76.0], "undecided"),  # an interval of so few seeds does not count
        ([70.0, 73.0, 76.0, 71.0, 78.0], "inside"),
        ([74.0, 75.0, 76.0], "undecided"),
        ([80.0], "undecided"),
    ],
)
def test_inside_our_interval_it_takes_five_seeds(tmp_path, accuracies, verdict):
    cell = cell_of("offline-accuracy", "gcr")
    repeat(tmp_path, cell, accuracies)
    row = row_of(compare(read_runs(tmp_path).groups, "offline-accuracy"), cell)
    assert (row.inside, row.verdict) == (None if len(accuracies) == 1 else True, verdict)


def test_task_il_needs_task_ils_values(tmp_path):
    by_class, by_task = cell_of("offline-accuracy", "gcr"), cell_of("offline-accuracy", "gcr", protocol="task-il")
    repeat(tmp_path, by_class, [74.0, 75.0], task_il=94.0)
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert row_of(found, by_class).ours.mean == 74.5
    assert row_of(found, by_task).ours is None
    assert not any("left out" in note for note in found.notes)  # they serve for class-IL
    repeat(tmp_path, by_task, [70.0, 71.0, 72.0], task_il=93.0)
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert row_of(found, by_task).ours.mean == 93.0
    assert row_of(found, by_class).ours.n == 2


def test_equal_values_serve_both_views(tmp_path):
    """ER on S-Cifar-100 at K = 500 has lr 0.1 in both."""
    where = {"scenario": "seq-cifar100", "buffer": 500}
    repeat(tmp_path, cell_of("offline-accuracy", "er", **where), [27.0, 28.0], task_il=66.0)
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert row_of(found, cell_of("offline-accuracy", "er", protocol="task-il", **where)).ours.mean == 66.0


def test_runs_that_depart_are_left_out_and_named(tmp_path):
    cell = cell_of("offline-accuracy", "er")
    repeat(tmp_path, cell, [60.0], "short", lambda e: replace(e, training=replace(e.training, epochs=5)))
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert row_of(found, cell).ours is None
    assert "left out: short, since epochs is 5, the paper's 50" in found.notes


def test_other_variants_are_rows_of_their_own(tmp_path):
    cell = cell_of("offline-accuracy", "er")
    repeat(tmp_path, cell, [60.0, 61.0], "a")
    repeat(tmp_path, cell, [62.0, 63.0], "b", lambda e: replace(e, training=replace(e.training, precision="bf16")))
    names = [row.name for row in compare(read_runs(tmp_path).groups, "offline-accuracy").rows if row.cell == cell]
    assert names == ["er (precision=auto)", "er (precision=bf16)"]


def test_bold_by_the_papers_rule(tmp_path):
    gcr, der, er = (cell_of("offline-accuracy", method) for method in ("gcr", "der++", "er"))
    repeat(tmp_path, gcr, [75.0, 76.0, 75.5, 76.2, 74.9])
    repeat(tmp_path, der, [74.9, 76.1, 75.3, 76.3, 74.8])
    repeat(tmp_path, er, [70.0, 71.5, 70.2, 71.0, 69.9])
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert [row_of(found, cell).bold for cell in (gcr, der, er)] == [True, True, False]
    text = markdown(sheets(found), found.notes)
    assert "| gcr | 500 | **75.52 ± 0.26** | 74.80 to 76.24 | 5 | – | **74.69 ± 0.85** | +0.83 | above\\* |" in text
    assert "| er | 500 | 70.52 ± 0.31 | 69.65 to 71.39 | 5 | – | 62.03 ± 1.70 | +8.49 | above\\* |" in text


def test_low_forgetting_is_bold_and_few_seeds_are_said(tmp_path):
    gcr, er = (cell_of("offline-forgetting", method, metric="forgetting") for method in ("gcr", "er"))
    repeat(tmp_path, gcr, [75.0] * 3, forgetting=19.0)
    repeat(tmp_path, er, [75.0] * 2, forgetting=43.0)
    found = compare(read_runs(tmp_path).groups, "offline-forgetting")
    assert row_of(found, gcr).bold
    assert not row_of(found, er).bold
    assert "seed sets differ: 2 and 3 seeds, of which 2 are paired (1 comparison)" in found.notes
    assert "2 paired seeds are few; a test wants 5 or more (1 comparison)" in found.notes


def test_one_seed_has_no_interval(tmp_path):
    cell = cell_of("offline-accuracy", "gcr")
    repeat(tmp_path, cell, [75.0])
    found = compare(read_runs(tmp_path).groups, "offline-accuracy")
    assert row_of(found, cell).inside is None
    assert "| gcr | 500 | **75.00** | – | 1 | – | **74.69 ± 0.85** | +0.31 | undecided |" in markdown(sheets(found))


def test_the_ablations_pairs(tmp_path):
    where = {"scenario": "seq-cifar100", "buffer": 2000}
    rows = ("gcr", "gcr + reservoir", "gcr without supcon")
    for method, base in zip(rows, (60.0, 57.0, 59.9), strict=True):
        wobble = (0.1, -0.2, 0.3, 0.0, -0.1) if method != "gcr" else (0.0,) * 5
        repeat(tmp_path, cell_of("ablation", method, **where), [base + w for w in wobble], method)
    found = compare(read_runs(tmp_path).groups, "ablation")
    assert [row_of(found, cell_of("ablation", method, **where)).ours.n for method in rows] == [5, 5, 5]
    (note,) = [note for note in found.notes if note.startswith("K = 2000")]
    assert note.startswith("K = 2000: not apart at p < 0.001: gcr and gcr without supcon (p = ")
    assert "reservoir" not in note
    assert any("our choice for gcr + reservoir" in note for note in found.notes)


@pytest.mark.parametrize("table", paper.tables())
def test_missing_cells_are_shown_as_missing(table):
    found = compare([], table)
    assert len(found.rows) == len(paper.cells(table))
    entries = [entry.text for sheet in sheets(found) for row in sheet.rows for entry in row]
    assert entries.count("missing") == len(found.rows)
    lines = records(found)
    assert {line["n"] for line in lines} == {0}
    assert [line["paper_mean"] for line in lines] == [cell.mean for cell in paper.cells(table)]


PRESENT = ("er", "der++", "gcr")


def test_1530_results_are_read_once(tmp_path, monkeypatch):
    """As many runs as the paper's offline table: 54 cells of three methods, and 48 again as another variant."""
    cells = [cell for cell in paper.cells("offline-accuracy") if cell.method in PRESENT]
    for copy in range(2):
        for number, cell in enumerate(cells[: 54 if copy == 0 else 48]):
            n_tasks = 10 if cell.scenario == "seq-tinyimagenet" else 5
            for seed in range(paper.SEEDS):
                made = paper.experiment(cell, seed)
                if copy:
                    made = replace(made, training=replace(made.training, precision="bf16"))
                value = 50.0 + (seed * 7 + number) % 5
                put(tmp_path, made, f"{copy}-{number}", value, value, n_tasks)
    counts = count_reading(monkeypatch)
    runs = read_runs(tmp_path)
    assert sum(len(group.seeds) for group in runs.groups) == 1530
    assert plain_sheets(runs.groups)
    found = compare(runs.groups, "offline-accuracy")
    text = markdown(sheets(found), found.notes)
    assert text.count("missing") == 48
    assert 2 * 1530 <= counts["texts"] <= 2 * 1530 + 10
    assert counts["experiments"] <= 102
