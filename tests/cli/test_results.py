"""``gcr results``, and the commands that read packed files as they read folders."""

import gzip
import json
import shutil

import made_data
import pytest
from made_runs import add_epoch, experiment_of, link_files, put_run, put_unfinished, square

from gcr.cli.main import run_cli
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.report.live import LivePage
from gcr.runs.folder import AGAIN
from gcr.runs.packed import read_packed


@pytest.fixture
def runs(tmp_path):
    for method, value in (("er", 50.0), ("gcr", 60.0)):
        for seed in range(3):
            folder = put_run(tmp_path / "runs", experiment_of(method, seed=seed), square(value + seed), memory=True)
            add_epoch(folder, 0)
            link_files(folder)
    return tmp_path / "runs"


@pytest.fixture
def gcr(capsys):
    def call(*arguments):
        code = run_cli([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def refused(done, *parts):
    code, _, printed = done
    assert code == 2
    assert printed.startswith("error: ")
    assert len(printed.strip().splitlines()) == 1, printed
    for part in parts:
        assert part in printed


def test_tables_of_packed_runs_are_those_of_their_folders(runs, gcr, tmp_path):
    file = tmp_path / "results/all.jsonl.gz"
    code, printed, _ = gcr("results", "pack", runs, file)
    assert code == 0
    assert printed.strip() == f"{file}: 6 runs, {file.stat().st_size:,} bytes"
    for more in ([], ["--format", "csv"], ["--format", "json"], ["--method", "er"], ["--paper", "offline-accuracy"]):
        table = gcr("table", runs, *more)
        assert table[0] == 0
        assert gcr("table", file, *more) == table
        assert gcr("table", tmp_path / "results", *more) == table
    names = ["seq-digits-er-k20", "seq-digits-gcr-k20"]
    assert gcr("compare", *(file / name for name in names)) == gcr("compare", *(runs / name for name in names))


def test_a_table_of_several_paths(runs, gcr, tmp_path):
    file, copy = tmp_path / "results/all.jsonl.gz", tmp_path / "results/copy.jsonl.gz"
    gcr("results", "pack", runs, file)
    parts = [runs / "seq-digits-er-k20", runs / "seq-digits-gcr-k20"]
    for more in ([], ["--format", "csv", "--per-seed"], ["--format", "json"], ["--paper", "offline-accuracy"]):
        table = gcr("table", runs, *more)
        assert table[0] == 0
        assert gcr("table", *parts, runs, *more) == table
        assert gcr("table", *(file / part.name for part in parts), file, *more) == gcr("table", file, *more)
    shutil.copy(file, copy)
    labels = [f"| er (folder={name}.jsonl.gz/seq-digits-er-k20) | 20 | 3 |" for name in ("all", "copy")]
    printed = gcr("table", file, copy, file / parts[0].name, "--format", "markdown")[1]
    assert all(printed.count(label) == 1 for label in labels)
    refused(gcr("table", file, tmp_path / "nowhere"), "nowhere is not a folder of runs or a packed file")


def test_a_table_of_single_runs(runs, gcr):
    code, printed, _ = gcr("table", runs, "--format", "csv", "--per-seed", "--metrics", "accuracy")
    lines = printed.splitlines()
    assert code == 0
    assert lines[0].startswith("path,seed,scenario,regime,method,buffer,")
    assert lines[0].endswith(",protocol,metric,value")
    assert len(lines) == 1 + 6 * 2
    told = json.loads(gcr("table", runs, "--format", "json", "--per-seed", "--metrics", "accuracy")[1])
    named = [(method, seed) for method in ("er", "gcr") for seed in range(3)]
    assert [(row["method"], row["seed"]) for row in told[::2]] == named
    assert told[0]["value"] == 50.0
    refused(gcr("table", runs, "--per-seed"), "--per-seed needs --format csv or json")
    refused(gcr("table", runs, "--per-seed", "--format", "csv", "--paper", "offline-accuracy"), "excludes --paper")


def test_a_table_and_a_comparison_as_json(runs, gcr):
    code, printed, _ = gcr("table", runs, "--format", "json", "--metrics", "accuracy,anytime")
    row = json.loads(printed)[0]
    assert code == 0
    assert row.pop("sem") == pytest.approx(3**-0.5)
    assert row == {
        "scenario": "seq-digits", "regime": "offline", "method": "er", "buffer": 20, "seeds": [0, 1, 2],
        "protocol": "class-il", "metric": "accuracy", "mean": 51.0, "n": 3, "diverged": 0,
    }  # fmt: skip
    names = [runs / f"seq-digits-{method}-k20" for method in ("er", "gcr")]
    row = json.loads(gcr("compare", *names, "--format", "json")[1])[0]
    assert (row["difference"], row["sem"], row["effect"]) == (-10.0, 0.0, None)  # infinite
    refused(gcr("table", runs, "--format", "jason"), 'unknown format "jason" (did you mean "json"?)')


def test_runs_are_trained_again_and_compared(gcr, tmp_path):
    first, file = tmp_path / "first", tmp_path / "sent.jsonl.gz"
    train = ("run", "seq-digits", "--method", "er", "-k", 20, "--model", "mlp", "--epochs", 1, "--seeds", "0,1")
    assert gcr(*train, "--processes", 1, "--out", first)[0] == 0
    gcr("results", "pack", first, file)
    code, shown, _ = gcr("results", "repeat", file, "--out", tmp_path / "again", "--processes", 1)
    assert code == 0
    assert "seq-digits-er-k20" in shown
    assert "+0.00" in shown
    assert "2 of 2" in shown
    found = tmp_path / "again/seq-digits-er-k20/seed-1/result.json"
    assert json.loads(found.read_text())["source"]
    one = gcr("results", "repeat", file / "seq-digits-er-k20", "--seeds", 1, "--out", tmp_path / "again")
    assert "1 of 1" in one[1]  # seed 1 is there already
    assert "1 of 1 runs were there already" in one[2]
    assert "another --out trains them anew" in one[1]


def test_a_run_that_differs_when_trained_again(gcr, tmp_path):
    """Written by hand, so no training gives its accuracy."""
    put_run(tmp_path / "runs", experiment_of("er", model="mlp", epochs=1), square(12.0))
    code, shown, _ = gcr("results", "repeat", tmp_path / "runs", "--out", tmp_path / "again", "--processes", 1)
    assert code == 0
    assert "0 of 1" in shown


def test_experiments_of_one_name_are_told_apart_when_trained_again(gcr, tmp_path):
    for folder in ("clean", "noisy"):
        put_run(tmp_path / "runs" / folder, experiment_of("er", model="mlp", epochs=1), square(12.0))
    _, shown, _ = gcr("results", "repeat", tmp_path / "runs", "--out", tmp_path / "again", "--processes", 1)
    assert "clean/seq-digits-er" in shown
    assert "noisy/seq-digits-er" in shown


def write_birds(n_classes):
    parts = [Part.of(*made_data.examples(2, n_classes, (1, 8, 8), seed=seed)) for seed in range(2)]
    write_set("birds", "made", Source(*parts, (1, 8, 8), tuple(f"bird{n}" for n in range(n_classes))))


@pytest.mark.parametrize("now", ["removed", "with more classes", "damaged"])
def test_results_on_own_data_are_read_without_it(gcr, cache, tmp_path, now):
    write_birds(6)
    out, file, again = tmp_path / "runs", tmp_path / "birds.jsonl.gz", tmp_path / "again.jsonl.gz"
    for method, value in (("er", 50.0), ("gcr", 60.0)):
        put_run(out, experiment_of(method, scenario="birds", buffer=8, tasks=3), square(value, 3), memory=True)
    assert gcr("results", "pack", out, file)[0] == 0
    both = [out / f"birds-{method}-k8" for method in ("er", "gcr")]
    asked = [("table", out), ("table", file), ("results", "list", file), ("compare", *both)]
    before = [gcr(*words) for words in asked]
    if now == "damaged":
        (cache / "birds/about.json").write_text("{")
    else:
        shutil.rmtree(cache / "birds")
    if now == "with more classes":
        write_birds(9)
    assert [gcr(*words) for words in asked] == before
    assert all(done[0] == 0 for done in before)
    for words in (("verify", out), ("verify", file), ("report", out), ("results", "pack", out, again)):
        assert gcr(*words)[0] == 0, words
    assert again.read_bytes() == file.read_bytes()
    said = {
        "removed": 'unknown scenario "birds"',
        "with more classes": "buffer must be >= 9, the number of classes of birds, got 8",
        "damaged": "about.json is damaged",
    }
    refused(gcr("results", "repeat", file, "--out", tmp_path / "repeat"), said[now])
    refused(gcr("run", "birds", "--method", "er", "--buffer", 8, "--out", tmp_path / "more"), said[now])


def test_seeds_to_repeat_that_are_not_there(runs, gcr, tmp_path):
    refused(gcr("results", "repeat", runs, "--seeds", 9, "--out", tmp_path / "again"), "has one of the seeds 9")
    assert not (tmp_path / "again").exists()
    refused(gcr("results", "repeat", runs, "--out", runs / "again"), "--out must lie outside")


def test_runs_are_not_compared_with_themselves(runs, gcr):
    one = next(path for path in sorted(runs.iterdir()) if path.is_dir())
    refused(gcr("results", "repeat", one, "--out", runs), "--out must not hold the runs")


def test_packing_again_changes_nothing(runs, gcr, tmp_path):
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    gcr("results", "pack", runs, first)
    assert gcr("results", "pack", runs, first)[0] == 0  # the same bytes: nothing is lost
    assert gcr("results", "pack", first, second)[0] == 0
    assert first.read_bytes() == second.read_bytes()


def test_metrics_only_where_asked_for(runs, gcr, tmp_path):
    def with_metrics(file):
        return sum("metrics" in json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines())

    plain, full, again = (tmp_path / f"{name}.jsonl.gz" for name in "abc")
    gcr("results", "pack", runs, plain)
    gcr("results", "pack", runs, full, "--metrics")
    gcr("results", "pack", full, again, "--metrics")
    assert (with_metrics(plain), with_metrics(full)) == (0, 6)
    assert again.read_bytes() == full.read_bytes()


def test_another_file_is_not_overwritten(runs, gcr, tmp_path):
    file = tmp_path / "a.jsonl.gz"
    file.write_text("mine")
    refused(gcr("results", "pack", runs, file), "exists and holds something else", "--force")
    assert file.read_text() == "mine"
    assert gcr("results", "pack", runs, file, "--force")[0] == 0
    assert gcr("table", file)[0] == 0
    assert [left.name for left in tmp_path.iterdir() if left.name.startswith(".")] == []
    refused(gcr("results", "pack", runs, tmp_path / "a.json"), "FILE must end in .jsonl.gz")
    refused(gcr("results", "pack", runs, file / "b.jsonl.gz"), "cannot write")


def test_merging(runs, gcr, tmp_path):
    parts, whole = [tmp_path / f"parts/{name}.jsonl.gz" for name in ("er", "gcr")], tmp_path / "whole.jsonl.gz"
    for part, name in zip(parts, ("er", "gcr"), strict=True):
        assert gcr("results", "pack", runs / f"seq-digits-{name}-k20", part)[0] == 0
    assert gcr("results", "pack", *parts, runs, whole)[0] == 0
    assert gcr("table", whole) == gcr("table", runs)
    assert gcr("results", "pack", tmp_path / "parts", whole, "--force")[0] == 0
    _, listed, _ = gcr("results", "list", whole)
    assert f"{whole}/er/seq-digits-er-k20" in listed  # a packed file is a folder named like it
    put_run(tmp_path / "other", experiment_of("er", seed=0), square(1.0))
    refused(gcr("results", "pack", runs, tmp_path / "other", whole), "seed-0 is there twice", "--replace")


def test_a_run_that_was_trained_twice_with_equal_numbers_counts_once(gcr, tmp_path):
    """Each time it took other seconds, and one copy has metrics."""
    first, again, file = tmp_path / "first", tmp_path / "again", tmp_path / "both.jsonl.gz"
    for seed in range(2):
        put_run(first, experiment_of("er", seed=seed), square(50.0), finished="2026-01-01", peak_bytes=10)
    add_epoch(twice := put_run(again, experiment_of("er"), square(50.0), seconds=3.0, finished="2026-02-02"), 0)
    link_files(twice)
    for sources in ((first, again), (again, first), (first, again, again)):
        code, printed, _ = gcr("results", "pack", *sources, file, "--metrics", "--force")
        assert (code, "2 runs, " in printed) == (0, True)
        packed, _ = read_packed(file)
        assert [run.name for run in packed] == ["seq-digits-er-k20/seed-0", "seq-digits-er-k20/seed-1"]
        assert [len(run.metrics()) for run in packed] == [1, 0]
    assert gcr("results", "pack", first, again, file, "--force")[0] == 0
    assert [run.result()["seconds"] for run in read_packed(file)[0]] == [2.0, 2.0]  # the first
    assert ", 1 replaced, " in gcr("results", "pack", first, again, file, "--force", "--replace")[1]
    assert [run.result()["seconds"] for run in read_packed(file)[0]] == [3.0, 2.0]
    for name, changed in (
        ("other experiment", experiment_of("er", lr=0.5)),
        ("other matrix", experiment_of("er")),
        ("other data", experiment_of("er")),
    ):
        more = {"data": "d" * 16} if name == "other data" else {}
        put_run(tmp_path / name, changed, square(50.5 if name == "other matrix" else 50.0), **more)
        refused(gcr("results", "pack", first, tmp_path / name, file, "--force"), "seed-0 is there twice", "--replace")


def test_the_last_source_replaces_a_run(runs, gcr, tmp_path):
    old, new = tmp_path / "old.jsonl.gz", tmp_path / "new.jsonl.gz"
    assert gcr("results", "pack", runs, old)[0] == 0
    again = tmp_path / "again"
    put_run(again, experiment_of("er", seed=0), square(1.0))
    code, printed, _ = gcr("results", "pack", old, again, new, "--replace")
    assert code == 0
    assert ", 1 replaced, " in printed
    taken, before = ({run.name: run.result() for run in read_packed(file)[0]} for file in (new, old))
    assert taken.keys() == before.keys()
    assert [name for name in taken if taken[name] != before[name]] == ["seq-digits-er-k20/seed-0"]
    assert taken["seq-digits-er-k20/seed-0"]["class_il"]["accuracy"] == 1.0
    assert gcr("results", "pack", again, old, new, "--replace", "--force")[0] == 0
    assert new.read_bytes() == old.read_bytes()


def test_runs_that_cannot_be_read_are_named_and_left_out(runs, gcr, tmp_path):
    (runs / "seq-digits-er-k20/seed-1/result.json").write_text("{}")
    code, printed, warned = gcr("results", "pack", runs, tmp_path / "a.jsonl.gz")
    assert code == 1
    assert "5 runs" in printed
    assert "seq-digits-er-k20/seed-1 cannot be read (result lacks class_il)" in warned


def test_metrics_of_another_run_are_left_out(runs, gcr, tmp_path):
    one, *_ = sorted(runs.rglob("metrics.jsonl"))
    one.write_bytes(one.read_bytes().replace(b'"epoch"', b'"other"'))
    code, printed, warned = gcr("results", "pack", runs, tmp_path / "a.jsonl.gz", "--metrics")
    assert (code, "6 runs" in printed) == (1, True)
    assert f"{one} cannot be read (not the file that result.json names); its run is packed without it" in warned


def test_damaged_files_are_named(runs, gcr, tmp_path):
    results = tmp_path / "results"
    gcr("results", "pack", runs, results / "good.jsonl.gz")
    content = (results / "good.jsonl.gz").read_bytes()
    (results / "cut.jsonl.gz").write_bytes(content[:-20])
    code, shown, warned = gcr("table", results)
    assert code == 0
    assert warned.splitlines() == [
        f"left out: {results}/cut.jsonl.gz cannot be read (damaged, cut short, or not packed by gzip); "
        "get or pack it again"
    ]
    assert "1 result that cannot be read is left out: results/cut.jsonl.gz" in shown
    for command in ("table", "report"):
        refused(
            gcr(command, results / "cut.jsonl.gz"),
            "cut.jsonl.gz cannot be read (damaged, cut short, or not packed by gzip)",
        )
    lines = gzip.decompress(content).splitlines(keepends=True)
    (results / "cut.jsonl.gz").write_bytes(gzip.compress(b"".join([*lines[:3], b"{\n", *lines[4:]])))
    code, _, warned = gcr("table", results / "cut.jsonl.gz")
    assert code == 0
    assert f"{results}/cut.jsonl.gz/line-4 cannot be read" in warned


def test_a_name_that_is_not_in_the_file(runs, gcr, tmp_path):
    file = tmp_path / "a.jsonl.gz"
    gcr("results", "pack", runs, file)
    refused(gcr("table", file / "seq-digits-er-k2"), 'did you mean "seq-digits-er-k20"?')
    refused(gcr("compare", file, file / "seq-digits-er-k20"), "holds 2 experiments; give one of them, as ")
    refused(gcr("table", tmp_path / "none.jsonl.gz"), "is not a folder of runs or a packed file")


def test_a_report_of_packed_runs(runs, gcr, tmp_path):
    gcr("results", "pack", runs, tmp_path / "results/a.jsonl.gz")
    code, printed, _ = gcr("report", tmp_path / "results/a.jsonl.gz")
    assert code == 0
    assert printed.strip() == f"report: {tmp_path}/results/report.html"
    assert "60." in (tmp_path / "results/report.html").read_text()
    refused(gcr("report", tmp_path / "results/a.jsonl.gz", "--serve"), "--serve needs the --out folder")


def test_a_run_keeps_its_network_unless_told_otherwise(gcr, tmp_path):
    command = ["run", "seq-digits", "--method", "er", "--epochs", "1", "--model", "mlp"]
    for name, more in (("with", []), ("without", ["--no-model"])):
        assert gcr(*command, *more, "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name / "seq-digits-er-k100/seed-0/model.safetensors").exists() == (name == "with")


def test_runs_that_diverged_are_said_where_no_table_says_it(tmp_path, capfd):
    put_run(tmp_path / "runs", experiment_of("er"), square(50.0), name="er")
    put_unfinished(tmp_path / "runs", experiment_of("er", seed=1), name="er").fail("loss is NaN at step 3")
    said = "1 run diverged, in no mean: er/seed-1 (loss is NaN at step 3)"
    runs, packed = str(tmp_path / "runs"), str(tmp_path / "packed.jsonl.gz")
    for words in (["table", runs, "--format", "csv"], ["results", "pack", runs, packed], ["report", runs]):
        assert run_cli(words) == 0
        assert capfd.readouterr().err == f"{said}\n"
    for page in ((tmp_path / "runs/report.html").read_text(), LivePage(tmp_path / "runs").page().decode()):
        assert "1 (1 diverged)" in page
        assert f"<li>{said}</li>" in page


def test_runs_that_diverged_are_packed_as_such(tmp_path, gcr):
    runs, file, again = tmp_path / "runs", tmp_path / "results/all.jsonl.gz", tmp_path / "again.jsonl.gz"
    for name in ("er", "slow"):
        put_run(runs, experiment_of("er", lr=0.1 if name == "er" else 0.01), square(50.0), name=name)
    for seed in (1, 2):
        put_unfinished(runs, experiment_of("er", lr=0.1, seed=seed), name="er").fail(f"loss is NaN at step {seed}")
    put_unfinished(runs, experiment_of("er", lr=9.0), name="fast").fail("loss is NaN at step 1")
    assert gcr("results", "pack", runs, file)[0] == 0
    for more in ([], ["--format", "csv"]):
        table = gcr("table", runs, *more)
        assert gcr("table", file, *more) == gcr("table", file.parent, *more) == table
    assert "class-il,accuracy,50.0,,1,2\n" in gcr("table", file, "--format", "csv")[1]
    assert "1 (2 diverged)" in gcr("table", file / "er")[1]
    assert "diverged" not in gcr("table", file / "slow")[1]
    refused(gcr("table", file / "fast"), "1 run diverged, in no mean: fast/seed-0")
    both = gcr("compare", file / "er", file / "slow")
    assert "2 runs diverged, in no mean: er/seed-1" in " ".join(both[1].split())
    assert both == gcr("compare", runs / "er", runs / "slow")
    assert gcr("verify", file)[0] == 0
    assert gcr("results", "pack", file, again)[0] == 0
    assert again.read_bytes() == file.read_bytes()
    put_run(tmp_path / "other", experiment_of("er", lr=0.1, seed=1), square(50.0), name="er")
    assert gcr("results", "pack", file, tmp_path / "other", again, "--force")[0] == 0
    assert "2 (1 diverged)" in gcr("table", again / "er")[1]


def test_a_report_says_what_a_table_says_of_its_rows(tmp_path, gcr):
    for method, seed, version in (("er", 0, "1"), ("icarl", 0, "1"), ("er", 1, "2")):
        put_run(tmp_path, experiment_of(method, seed, online=True), square(50.0), versions={"gcr": version})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/result.json").touch()
    assert gcr("report", tmp_path)[0] == 0
    for page in ((tmp_path / "report.html").read_text(), LivePage(tmp_path).page().decode()):
        head = page[: page.index("<h2")]
        assert "<li>mixed versions of gcr: 1 (2), 2 (1) runs; what they computed may differ</li>" in head
        assert "<li>seq-digits, online: icarl evaluated at the ends of tasks, others after every stream; " in head
        assert "1 result left out that cannot be read" in head
        assert head.count("that cannot be read") == 1  # named once


def test_files_of_a_run_that_are_gone_are_said_by_the_report(tmp_path, caplog):
    run = put_run(tmp_path, experiment_of("gcr"), square(50.0), memory=True)
    add_epoch(run, 1)
    link_files(run)
    for name in ("memory.safetensors", "metrics.jsonl"):
        (run.path / name).unlink()
    assert run_cli(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    for name in ("memory.safetensors", "metrics.jsonl"):
        assert f"{run.path / name} is missing; {AGAIN}" in caplog.messages
        assert f"seed-0/{name} is missing" in page
