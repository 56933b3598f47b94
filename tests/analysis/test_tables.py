"""Tables of runs: which groups are rows, what tells them apart, what is left out; and tables as text."""

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from made_runs import experiment_of, put_run, square

from gcr.analysis.formats import LATEX_SIGNS, Entry, Sheet, comma_separated, json_rows, latex, markdown
from gcr.analysis.load import read_runs
from gcr.analysis.tables import columns, in_all_rows, records, seed_records, sheets, table
from gcr.experiments.experiment import compose
from gcr.report.build import render
from gcr.runs.folder import RunFolder
from gcr.settings import BadInput


def put(out, method, seed, accuracy, name=None, selector=None, **overrides):
    experiment = compose("seq-digits", method, seed=seed, selector=selector, overrides=overrides)
    folder = RunFolder.of(out, experiment, name)
    folder.begin(experiment)
    protocol = {"matrix": [[accuracy] * 5] * 5, "accuracy": accuracy, "forgetting": 1.0}
    folder.finish(
        {"class_il": protocol, "task_il": protocol, "seconds": 2.0, "steps": 9, "device": "cpu", "versions": {}}, None
    )
    return folder


def put_diverged(out, seed):
    experiment = compose("seq-digits", "er", seed=seed)
    folder = RunFolder.of(out, experiment)
    folder.begin(experiment)
    folder.fail("loss is NaN or inf at task 1, epoch 1, step 3; try a smaller lr")
    return folder


def test_rows_are_groups_of_seeds(tmp_path):
    for seed, accuracy in ((2, 14.0), (0, 10.0), (1, 12.0)):
        put(tmp_path, "er", seed, accuracy)
    put(tmp_path, "finetune", 0, 3.0)
    groups = read_runs(tmp_path).groups
    assert [group.seeds for group in groups] == [[0], [0, 1, 2]]  # finetune is listed first
    rows = table(groups)
    assert rows[1] == ["er", "100", "3", "12.00 ± 1.15", "1.00 ± 0.00", "12.00 ± 1.15", "1.00 ± 0.00", "–", "2.0"]
    assert rows[0][:4] == ["finetune", "–", "1", "3.00"]
    assert all(len(row) == len(columns()) for row in rows)


def test_a_copy_of_a_run_does_not_count(tmp_path):
    run = put(tmp_path, "er", 0, 10.0)
    put(tmp_path, "er", 1, 20.0)
    shutil.copytree(run.path, run.path.with_name("seed-7"))
    shutil.copytree(run.path, run.path.with_name("again"))
    found = read_runs(tmp_path)
    assert [group.seeds for group in found.groups] == [[0, 1]]
    copied, again = sorted(str(one) for one in found.unreadable)[::-1]
    assert "seed-7 cannot be read (its experiment is of seed 0, so it is a copy of another run)" in copied
    assert "again cannot be read (seed 0 is there already, in seed-0)" in again


@pytest.mark.parametrize("name", ["experiment.json", "result.json"])
def test_a_run_that_lost_a_file_is_counted(tmp_path, name):
    run = put(tmp_path, "er", 0, 10.0)
    put(tmp_path, "er", 1, 20.0)
    (run.path / "memory.safetensors").touch()
    (run.path / name).unlink()
    found = read_runs(tmp_path)
    assert [group.seeds for group in found.groups] == [[1]]
    assert f"{run.path} cannot be read ({name} is missing)" in str(found.unreadable[0])


def test_forgetting_with_the_last_stage_follows_from_the_matrix(tmp_path):
    put(tmp_path, "er", 0, 10.0)
    metrics = ("forgetting", "forgetting_with_last")
    assert table(read_runs(tmp_path).groups, metrics)[0][3:7] == ["1.00", "0.00"] * 2
    assert columns(metrics)[4] == "class-IL forgetting, last stage counted"


def test_runs_that_diverged_are_marked_and_in_no_mean(tmp_path):
    put(tmp_path, "er", 0, 10.0)
    put(tmp_path, "er", 1, 12.0)
    bad = put_diverged(tmp_path, 2)
    runs = read_runs(tmp_path)
    (row,) = table(runs.groups)
    assert row[:4] == ["er", "100", "2 (1 diverged)", "11.00 ± 1.00"]
    assert runs.notes == [
        "1 run diverged, in no mean: seq-digits-er-k100/seed-2 (loss is NaN or inf at task 1, epoch 1, step 3; try a "
        "smaller lr)"
    ]
    bad.begin(compose("seq-digits", "er", seed=2))  # it is tried again
    assert read_runs(tmp_path).notes == []


def test_it_is_said_where_online_methods_are_evaluated_at_other_times(tmp_path):
    for method in ("er", "gcr", "joint"):
        put(tmp_path, method, 0, 10.0, online=True)
    put(tmp_path, "icarl", 0, 10.0)
    assert read_runs(tmp_path).notes == []
    put(tmp_path, "icarl", 0, 10.0, online=True)
    put(tmp_path, "gem", 0, 10.0, online=True)
    (note,) = read_runs(tmp_path).notes
    assert note.startswith("seq-digits, online: gem, icarl evaluated at the ends of tasks, others after every stream")


def test_it_is_said_where_seeds_of_one_experiment_are_of_different_sources_plugins_or_data(tmp_path):
    mine, changed = {"mine.py": "1" * 64}, {"mine.py": "2" * 64}
    seeds = [{"source": "a" * 40, "data": "d" * 64, "plugins": mine}] * 2 + [{"source": "b" * 40}, {"data": ""}]
    for seed, about in enumerate(seeds):
        put_run(tmp_path, experiment_of("er", seed=seed), square(10.0), "er", **about)
    put_run(tmp_path, experiment_of("gcr"), square(10.0), "gcr", source="c" * 40)  # another experiment
    folder = tmp_path / "er"
    sources = f"mixed sources of gcr in {folder}: aaaaaaaa (2), bbbbbbbb (1) runs; what they computed may differ"
    unnamed = "1 experiment holds runs that do not name their source of gcr: er"
    assert read_runs(tmp_path).notes == [unnamed, sources]
    put_run(tmp_path, experiment_of("er", seed=4), square(10.0), "er", data="e" * 64, plugins=changed)
    assert read_runs(tmp_path).notes == [
        unnamed,
        sources,
        f"mixed plugins in {folder}: mine.py 11111111 (2), mine.py 22222222 (1) runs; what they computed may differ",
        f"mixed data in {folder}: dddddddd (2), eeeeeeee (1) runs; what they computed may differ",
    ]


def test_epochs_are_told_where_offline_runs_differ_in_them(tmp_path):
    put(tmp_path, "er", 0, 10.0, epochs=50)
    put(tmp_path, "der++", 0, 10.0, epochs=50)
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["er", "der++"]
    put(tmp_path, "gcr", 0, 10.0, epochs=2)
    names = [row[0] for row in table(read_runs(tmp_path).groups)]
    assert names == ["er (epochs=50)", "der++ (epochs=50)", "gcr (epochs=2)"]
    put(tmp_path, "gcr", 0, 10.0, epochs=50, name="long")
    assert {"gcr (epochs=2)", "gcr (epochs=50)"} < {row[0] for row in table(read_runs(tmp_path).groups)}


def test_what_decides_the_measure_is_told_of_any_method(tmp_path):
    put(tmp_path, "er", 0, 10.0, validation=0.2)
    put(tmp_path, "der++", 0, 10.0)
    put(tmp_path, "gcr", 0, 10.0, lr=0.3, label_noise=0.4, tasks=2)
    put(tmp_path, "gcr+", 0, 10.0, class_order=3, repeats=2, model="mlp")
    groups = read_runs(tmp_path).groups
    names = [
        "er (validation=0.2)",
        "der++",
        "gcr (tasks=2, label_noise=0.4, lr=0.3)",
        "gcr+ (class_order=3, model=mlp, repeats=2)",
    ]
    assert [row[0] for row in table(groups)] == names
    assert [row[0].text for row in sheets(groups)[0].rows] == names
    assert list(dict.fromkeys(line["method"] for line in records(groups))) == names


def test_methods_that_share_gcrs_selection_say_how_they_use_it(tmp_path):
    put(tmp_path, "gcr", 0, 10.0)
    put(tmp_path, "der++", 0, 10.0)
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["der++", "gcr"]
    for online in (False, True):
        put(tmp_path, "er", 0, 10.0, selector="grad-approx", online=online)
    put(tmp_path, "gcr", 0, 10.0, online=True)
    found = [row[0] for row in table(read_runs(tmp_path).groups)]
    offline = {"er + grad-approx (variant=paper)", "der++", "gcr (variant=released)"}
    assert set(found) == offline | {"er + grad-approx", "gcr"}  # online they use it alike
    put(tmp_path, "gcr", 0, 10.0, variant="paper", name="text")
    found = {row[0] for row in table(read_runs(tmp_path).groups)}
    assert found > offline | {"gcr (variant=paper)"}


def test_what_all_rows_share_is_not_told_but_validation(tmp_path):
    for method in ("er", "gcr"):
        put(tmp_path, method, 0, 10.0, imbalance=0.1, batch=20, model="mlp")
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["er", "gcr"]
    for method in ("er", "gcr"):
        put(tmp_path / "tuned", method, 0, 10.0, validation=0.1)
    names = [row[0] for row in table(read_runs(tmp_path / "tuned").groups)]
    assert names == ["er (validation=0.1)", "gcr (validation=0.1)"]


def test_methods_have_defaults_of_their_own_and_ignore_settings(tmp_path):
    """Online ``joint`` passes several times in larger batches, and streams of ``icarl`` are tasks."""
    put(tmp_path, "joint", 0, 10.0, online=True)
    put(tmp_path, "er", 0, 10.0, online=True, lr=0.3)
    put(tmp_path, "icarl", 0, 10.0, online=True)
    assert {row[0] for row in table(read_runs(tmp_path).groups)} == {"joint", "icarl", "er (lr=0.3)"}
    put(tmp_path, "gcr", 0, 10.0, online=True, stream=200)
    found = {row[0] for row in table(read_runs(tmp_path).groups)}
    assert found == {"joint", "icarl", "er (lr=0.3)", "gcr (stream=200)"}


def test_optimizers_that_differ_between_methods_are_told(tmp_path):
    for method, changed in (
        ("er", {}),
        ("der++", {"lr": 0.03}),
        ("gcr", {"momentum": 0.9, "weight_decay": 1e-4}),
        ("gcr+", {"optimizer": "adamw", "lr": 0.001}),
    ):
        put(tmp_path, method, 0, 10.0, **changed)
    names = [
        "er",
        "der++ (lr=0.03)",
        "gcr (momentum=0.9, weight_decay=0.0001)",
        "gcr+ (optimizer=adamw, lr=0.001)",
    ]
    groups = read_runs(tmp_path).groups
    assert [row[0] for row in table(groups)] == names
    page = render(groups)
    assert all(name in page for name in names)
    for method in ("er", "gcr"):
        put(tmp_path / "alike", method, 0, 10.0, lr=0.03, momentum=0.9)
    assert [row[0] for row in table(read_runs(tmp_path / "alike").groups)] == ["er", "gcr"]


def test_equal_labels_of_several_tables_mean_equal_settings(tmp_path):
    put(tmp_path, "gcr+", 0, 10.0, selector="reservoir", gamma=0, keep=0)
    put(tmp_path, "der++", 0, 10.0, alpha=0.2)
    put(tmp_path, "mir", 0, 10.0, lr=0.03)  # its virtual_lr follows
    put(tmp_path, "er", 0, 10.0)
    names = ["er", "mir (lr=0.03)", "der++ (alpha=0.2)", "gcr+ + reservoir (gamma=0.0, keep=0.0)"]
    groups = read_runs(tmp_path).groups
    assert [row[0] for row in table(groups)] == names
    assert list(dict.fromkeys(line["method"] for line in records(groups))) == names
    put(tmp_path / "other", "mir", 0, 10.0, lr=0.03, virtual_lr=0.1)
    assert [row[0] for row in table(read_runs(tmp_path / "other").groups)] == ["mir (virtual_lr=0.1)"]


def test_each_table_tells_what_differs_in_it(tmp_path):
    put(tmp_path, "er", 0, 10.0, epochs=2)
    put(tmp_path, "er", 0, 10.0, online=True, repeats=2)
    put(tmp_path, "gcr", 0, 10.0, online=True, repeats=2)
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["er", "er", "gcr"]


def test_rows_of_one_label_say_what_tells_them_apart(tmp_path):
    put(tmp_path, "er", 0, 10.0, name="slow", lr=0.01)
    put(tmp_path, "er", 0, 12.0, name="fast", lr=0.1)
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["er (lr=0.1)", "er (lr=0.01)"]  # by folder


def test_the_same_experiment_in_two_folders_is_two_rows(tmp_path):
    put(tmp_path, "er", 0, 10.0, name="a")
    put(tmp_path, "er", 0, 10.0, name="b")
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["er (folder=a)", "er (folder=b)"]


def test_the_same_experiment_under_two_roots_is_told_apart(tmp_path):
    put(tmp_path / "first", "er", 0, 10.0)
    put(tmp_path / "second", "er", 0, 10.0)
    names = [row[0] for row in table(read_runs(tmp_path).groups)]
    assert names == ["er (folder=first/seq-digits-er-k100)", "er (folder=second/seq-digits-er-k100)"]


def test_runs_of_several_paths_count_once(tmp_path, monkeypatch):
    first, second = put(tmp_path / "a", "er", 0, 10.0), put(tmp_path / "a", "er", 1, 20.0)
    other = put(tmp_path / "b", "er", 0, 30.0)
    bad = put(tmp_path / "b", "er", 1, 40.0)
    (bad.path / "result.json").write_text("{}")
    diverged = put_diverged(tmp_path / "b", 2)
    whole, folders = read_runs(tmp_path), [tmp_path / "a", tmp_path / "b"]
    assert [row[:3] for row in table(whole.groups)] == [
        ["er (folder=a/seq-digits-er-k100)", "100", "2"],
        ["er (folder=b/seq-digits-er-k100)", "100", "1 (1 diverged)"],
    ]
    (tmp_path / "link").symlink_to(tmp_path / "b")
    spelled = tmp_path / "b" / ".." / "a"
    runs = [run.path for run in (first, second, other, bad, diverged)]
    monkeypatch.chdir(tmp_path)
    mixed = [first.path.relative_to(tmp_path), second.path, *(path.relative_to(tmp_path) for path in runs[2:])]
    for paths in (folders, folders * 2, [first.path, tmp_path], [*folders, spelled, tmp_path / "link"], runs, mixed):
        found = read_runs(*paths)
        assert table(found.groups) == table(whole.groups)
        assert found.notes == whole.notes


def test_each_of_several_paths_must_hold_runs(tmp_path):
    put(tmp_path / "a", "er", 0, 10.0)
    (tmp_path / "b").mkdir()
    with pytest.raises(BadInput, match=f"no finished runs below {tmp_path / 'b'}; train some"):
        read_runs(tmp_path / "a", tmp_path / "b")


def test_a_folder_is_named_from_within(tmp_path, monkeypatch):
    """Its path has no parts there."""
    run = put(tmp_path, "er", 0, 10.0, name="a")
    put(tmp_path, "er", 0, 10.0, name="b")
    monkeypatch.chdir(tmp_path / "a")
    assert [row[0] for row in table(read_runs(Path()).groups)] == ["er"]
    names = [row[0] for row in table(read_runs(Path(), Path("../b")).groups)]
    assert sorted(names) == ["er (folder=.)", "er (folder=b)"]
    monkeypatch.chdir(run.path)
    assert [row[0] for row in table(read_runs(Path()).groups)] == ["er"]


def test_settings_and_folders_tell_three_rows_apart(tmp_path):
    put(tmp_path, "er", 0, 10.0, name="a")
    put(tmp_path, "er", 0, 10.0, name="b")
    put(tmp_path, "er", 0, 10.0, name="c", lr=0.01)
    names = [row[0] for row in table(read_runs(tmp_path).groups)]
    assert names == ["er (lr=0.1, folder=a)", "er (lr=0.1, folder=b)", "er (lr=0.01)"]


def test_a_detail_that_is_not_the_default_is_told_even_where_it_is_alone(tmp_path):
    put(tmp_path, "gcr", 0, 10.0, contrast="features")
    assert [row[0] for row in table(read_runs(tmp_path).groups)] == ["gcr (contrast=features)"]
    put(tmp_path, "gcr", 0, 12.0, name="usual")
    put(tmp_path, "gcr", 0, 12.0, name="noisy", label_noise=0.2, weights="unit")
    names = [row[0] for row in table(read_runs(tmp_path).groups)]
    assert sorted(names) == ["gcr", "gcr (contrast=features)", "gcr (label_noise=0.2, weights=unit)"]


def test_sheets_and_records(tmp_path):
    put(tmp_path, "er", 0, 10.0)
    put(tmp_path, "er", 1, 12.0)
    put(tmp_path, "er", 0, 7.0, name="streamed", online=True, stream=300)
    groups = read_runs(tmp_path).groups
    offline, online = sheets(groups, ["accuracy"])
    assert offline.title == "seq-digits: percent, mean ± SEM over seeds"
    assert online.title.startswith("seq-digits, online")
    assert [entry.text for entry in offline.rows[0]] == ["er", "100", "2", "11.00 ± 1.00", "11.00 ± 1.00", "–", "2.0"]
    lines = records(groups, ["accuracy", "anytime"])
    assert len(lines) == 2 * 2 * 2
    assert lines[0] == {
        "scenario": "seq-digits",
        "regime": "offline",
        "method": "er",
        "buffer": 100,
        "protocol": "class-il",
        "metric": "accuracy",
        "mean": 11.0,
        "sem": pytest.approx(1.0),
        "n": 2,
        "diverged": 0,
    }
    assert lines[1]["mean"] is None  # these runs have no any-time accuracy
    told = json.loads(json_rows(records(groups, ["accuracy", "anytime"], seeds=True)))
    assert [{key: row[key] for key in row if key != "seeds"} for row in told] == lines
    assert [row["seeds"] for row in told] == [[0, 1]] * 4 + [[0]] * 4


def test_bytes_of_memory_are_a_column(tmp_path):
    """K is no measure of it: `gcr+` with candidates holds 2 K examples."""
    for seed, held in ((0, 7200), (1, 7300)):
        experiment = experiment_of("er", seed=seed)
        put_run(tmp_path, experiment, square(10.0), memory_bytes=held)
    put(tmp_path, "gcr", 0, 10.0)  # its result does not say
    groups, metrics = read_runs(tmp_path).groups, ["memory_bytes", "accuracy"]
    for asked in (metrics, ["accuracy"]):
        assert columns(asked) == ["method", "K", "seeds", "class-IL accuracy", "task-IL accuracy", "bytes", "seconds"]
        assert [row[5] for row in table(groups, asked)] == ["7,300", "–"]
    assert not any(line["metric"] == "memory_bytes" for line in records(groups))
    lines = [line for line in records(groups, metrics) if line["metric"] == "memory_bytes"]
    assert [(line["method"], line["protocol"], line["mean"]) for line in lines] == [
        ("er", None, 7300),
        ("gcr", None, None),
    ]


def test_a_record_per_seed_has_the_settings_that_differ(tmp_path):
    for seed, accuracy in ((0, 10.0), (1, 12.0)):
        put_run(tmp_path, experiment_of("er", seed=seed, lr=0.3), square(accuracy), memory_bytes=7200)
    put(tmp_path, "joint", 0, 30.0, validation=0.2)
    lines = seed_records(read_runs(tmp_path).groups, ["accuracy", "memory_bytes"])
    assert len(lines) == 3 * 3
    assert len({tuple(line) for line in lines}) == 1  # the same columns
    first = next(line for line in lines if line["seed"] == 1)
    assert first["path"].endswith("seq-digits-er-k20/seed-1")
    named = ("method", "buffer", "optimizer.lr", "stream.validation", "protocol", "metric", "value")
    assert [first[key] for key in named] == ["er", 20, 0.3, 0.0, "class-il", "accuracy", 12.0]
    assert {"training.epochs", "model", "method.name"}.isdisjoint(first)
    assert [(line["protocol"], line["value"]) for line in lines if line["metric"] == "memory_bytes"] == [
        *[(None, 7200)] * 2,
        (None, None),
    ]


def test_what_all_rows_have_alike_is_said_once(tmp_path):
    for method, lr in (("er", 0.3), ("der++", 0.1), ("gcr", 0.3)):
        put_run(tmp_path, experiment_of(method, 0, epochs=2, lr=lr, batch=16), square(70.0))
    put_run(tmp_path, experiment_of("er", 0, online=True, model="mlp"), square(70.0))
    put_run(tmp_path, experiment_of("gcr", 0, online=True, model="mlp", validation=0.1), square(70.0))
    groups = read_runs(tmp_path).groups
    assert in_all_rows(groups) == [
        "seq-digits: all rows with epochs=2, batch=16",
        "seq-digits, online: all rows with model=mlp",
    ]


def test_folders_without_runs_are_named(tmp_path):
    with pytest.raises(BadInput, match="is not a folder"):
        read_runs(tmp_path / "none")
    with pytest.raises(BadInput, match=r"no finished runs .*; train some with: gcr run"):
        read_runs(tmp_path)
    begun = compose("seq-digits", "er", seed=0)
    RunFolder.of(tmp_path, begun).begin(begun)
    with pytest.raises(BadInput, match=r"no finished runs .*; give the command of those begun again"):
        read_runs(tmp_path)


WHOLE = {"matrix": [[1.0]], "accuracy": 1.0, "forgetting": None}
RESULT = {"class_il": WHOLE, "task_il": WHOLE, "seconds": 2.0, "steps": 9, "device": "cpu", "versions": {}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "result.json is damaged: no JSON"),
        ("[]", "result.json is damaged: must be a JSON object, got list"),
        (json.dumps({"class_il": {}}), "result lacks task_il"),
        (json.dumps(RESULT | {"class_il": WHOLE | {"accuracy": None}}), "class_il.accuracy must be of kind float"),
        (
            json.dumps(RESULT | {"task_il": WHOLE | {"forgetting": "low"}}),
            "task_il.forgetting must be null or from -100 to 100",
        ),
        (json.dumps(RESULT | {"task_il": WHOLE | {"anytime": float("nan")}}), "task_il.anytime must be null or from"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [[1.0], []]}}), "rows of equal length"),
        (
            json.dumps(RESULT | {"class_il": WHOLE | {"accuracy": 5000.0}}),
            "class_il.accuracy must be null or from 0 to",
        ),
        (json.dumps(RESULT | {"memory_bytes": 10**300}), "result.memory_bytes must be a finite number >= 0"),
        (json.dumps(RESULT | {"first_stages": [1]}), "result.first_stages must be a stage below 1 for each task, got"),
        (json.dumps(RESULT | {"first_stages": 0}), "result.first_stages must be a stage below 1 for each task, got 0"),
        (json.dumps(RESULT | {"steps": -5}), "result.steps must be a finite number >= 0"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [[1.0, 2.0]]}}), "must have the same shape"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [["a"]]}}), "matrix must be numbers from 0 to 100"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [[1e308]]}}), "matrix must be numbers from 0 to 100"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [[1.0, 10**400]]}}), "numbers from 0 to 100"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"matrix": [[10**400]]}}), "matrix must be numbers from 0 to 100"),
        (json.dumps(RESULT | {"task_il": WHOLE | {"accuracy": 10**400}}), "accuracy must be"),
        (json.dumps(RESULT | {"steps": "9"}), "result.steps must be of kind int"),
    ],
)
def test_a_bad_result_is_named_skipped_and_counted(tmp_path, text, why):
    put(tmp_path, "er", 0, 10.0)
    bad = put(tmp_path, "er", 1, 12.0)
    (bad.path / "result.json").write_text(text)
    runs = read_runs(tmp_path)
    assert [group.seeds for group in runs.groups] == [[0]]
    (named,) = runs.unreadable
    assert named.path == bad.path
    assert why in str(named)
    assert runs.notes == ["1 result that cannot be read is left out: seq-digits-er-k100/seed-1"]


@pytest.mark.parametrize("file", ["result.json", "experiment.json"])
def test_a_flipped_bit_anywhere_leaves_the_run_out(tmp_path, file):
    put(tmp_path, "er", 0, 10.0)
    bad = put(tmp_path, "er", 1, 12.0).path / file
    whole = bad.read_bytes()
    for place in range(0, len(whole), 7):
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        runs = read_runs(tmp_path)
        assert [group.seeds for group in runs.groups] == [[0]], place
        assert str(runs.unreadable[0]).startswith(f"{bad.parent} cannot be read ({file} is damaged: ")
        assert runs.notes == ["1 result that cannot be read is left out: seq-digits-er-k100/seed-1"]


def test_a_bad_experiment_is_skipped_too(tmp_path):
    put(tmp_path, "er", 0, 10.0)
    for seed in range(1, 6):
        (put(tmp_path, "er", seed, 12.0).path / "experiment.json").write_text('{"scenario": 3}')
    runs = read_runs(tmp_path)
    assert len(runs.unreadable) == 5
    assert runs.notes[0].startswith("5 results that cannot be read are left out: ")
    assert runs.notes[0].endswith("seq-digits-er-k100/seed-3 and 2 more")


def test_nothing_but_bad_results_is_an_error(tmp_path):
    for seed in range(2):
        (put(tmp_path, "er", seed, 10.0).path / "result.json").write_text("{}")
    with pytest.raises(BadInput, match=r"seed-0 cannot be read .*; nor can 1 other$"):
        read_runs(tmp_path)


def test_what_was_varied_is_told_whatever_it_is(tmp_path):
    for variant in ("paper", "released"):
        put(tmp_path, "gcr", 0, 10.0, name=variant, variant=variant, buffer=20)
    groups = read_runs(tmp_path).groups
    assert {row[0] for row in table(groups)} == {"gcr", "gcr (variant=paper)"}
    assert {row[0] for row in table(groups, always=["variant", "buffer"])} == {
        "gcr (variant=released)",
        "gcr (variant=paper)",
    }
    assert {row[0] for row in table(groups, always=["gamma"])} == {"gcr (gamma=0.1)", "gcr (gamma=0.1, variant=paper)"}
    points = {row[0] for row in table(groups, always=["contrast", "admit"])}
    assert points == {"gcr (contrast=logits, admit=correct)", "gcr (variant=paper, contrast=features, admit=all)"}


def test_only_some_scenarios_and_methods(tmp_path):
    for method in ("er", "gcr"):
        put(tmp_path, method, 0, 10.0)
    runs = read_runs(tmp_path)
    assert len(runs.only([], [], []).groups) == 2
    (left,) = runs.only(["seq-digits"], ["gcr"], [100]).groups
    assert left.experiment.method.name == "gcr"
    with pytest.raises(BadInput, match='unknown method here "gem"; known: er, gcr'):
        runs.only([], ["gem"], [])
    with pytest.raises(BadInput, match='unknown buffer here "99"; known: 100'):
        runs.only([], [], [99])


# --- Tables as text

NASTY = r"a_b & 50% of {x}$y^2 #1 ~ \cmd <i> |p| *s* [0]"
SHEET = Sheet(
    "runs: 50% ± 1",
    ["method", "K", "ours"],
    [[Entry(NASTY), Entry("–"), Entry("1.00 ± 0.10", bold=True)], [Entry("[er]"), Entry("200"), Entry("missing")]],
)


def test_markdown_keeps_its_columns():
    text = markdown([SHEET, SHEET], ["a | b"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * 4
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert "**1.00 ± 0.10**" in text
    assert r"\<i\>" in text
    assert text.endswith("- a \\| b\n")


def test_markdown_of_text_with_line_breaks():
    sheet = Sheet("t", ["method"], [[Entry("two\nlines")]])
    assert "| two lines |" in markdown([sheet])


def test_latex_escapes_all_text():
    text = latex([SHEET], ["see [1] & <2>"])
    row = next(line for line in text.splitlines() if line.startswith("a"))
    assert row == (
        r"a\_b \& 50\% of \{x\}\$y\textasciicircum{}2 \#1 \textasciitilde{} \textbackslash{}cmd "
        r"\textless{}i\textgreater{} \textbar{}p\textbar{} {*}s{*} {[}0] & -- & \textbf{1.00 $\pm$ 0.10} \\"
    )
    assert r"{[}er] & 200 & missing \\" in text  # \\[ would be read as a distance
    assert r"\item see {[}1] \& \textless{}2\textgreater{}" in text
    assert r"\caption{runs: 50\% $\pm$ 1}" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for environment in ("table", "tabular", "itemize"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") == 1
    assert [line for line in text.splitlines() if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]


def test_latex_escapes_every_special_sign():
    assert set("\\{}$&#%_^~") <= LATEX_SIGNS.keys()


def test_json_reads_back():
    records = [{"name": 'a,"b"\n\x1b[31m', "mean": 0.1 + 0.2, "sem": None, "effect": -math.inf}, {"name": "é"}]
    text = json_rows(records)
    assert json.loads(text) == [records[0] | {"effect": None}, records[1]]
    assert len(text.splitlines()) == 4
    assert text.replace("\n", "").isprintable()
    assert json.loads(json_rows([])) == []


def test_csv_reads_back():
    records = [
        {"method": 'er (folder=a, "b")', "mean": 1 / 3, "sem": None},
        {"method": "two\nlines", "mean": 2.0, "sem": 0.5},
    ]
    read = list(csv.DictReader(io.StringIO(comma_separated(records))))
    assert [row["method"] for row in read] == ['er (folder=a, "b")', "two\nlines"]
    assert float(read[0]["mean"]) == 1 / 3
    assert read[0]["sem"] == ""
    assert comma_separated([]) == ""
