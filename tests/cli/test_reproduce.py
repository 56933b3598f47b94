"""gcr reproduce and gcr sweep as a user calls them."""

import json
import os
import pty
import select
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest
from conftest import ROOT, wait_until
from made_runs import experiment_of, finish, put_run, square

from gcr.cli import reproducing
from gcr.cli.main import run_cli
from gcr.paper.plan import Request, make_plan

SMALL = ["demo-table", "--method", "er", "--buffer", "50", "--seeds", "0", "--epochs-scale", "0.2"]


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def gcr(*arguments):
    """In this process, since a new one takes seconds to import torch."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_cli([str(argument) for argument in arguments])
    return Done(code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split()))


def refused(done, *parts):
    assert done.code == 2, done.stderr
    assert done.stderr.startswith("error: ")
    for part in parts:
        assert part in done.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduced")
    done = gcr("reproduce", *SMALL, "--out", out, "--processes", 1)
    assert done.code == 0, done.stderr
    return out, done


def test_from_nothing_to_table_and_page(small):
    out, done = small
    assert "trials: 2 trained here, 0 failed" in done.stderr
    common = "seed 0 is of the trials, too: seeds that chose a setting do not prove it"
    assert common in done.stderr.partition("trials: 2 trained here")[0]
    assert "seq-digits, offline, class-IL accuracy, epochs ×0.2: percent" in done.stdout
    assert "a quick look, not a reproduction" in done.stdout
    (page,) = out.glob("*.html")
    assert page.name == "demo-table-epochs-0.2.html"
    assert "epochs ×0.2" in page.read_text()
    assert common in page.read_text()
    choice = json.loads(next(out.glob("sweep-*.json")).read_text())
    assert set(choice["chosen"]) == {"class-il", "task-il"}


def test_other_formats(small):
    latex = gcr("reproduce", *SMALL, "--out", small[0], "--show", "--format", "latex")
    assert "\\begin{tabular}" in latex.stdout
    csv = gcr("reproduce", *SMALL, "--out", small[0], "--show", "--format", "csv")
    head = "table,scenario,regime,protocol,metric,method,buffer,mean,sem,n,memory_bytes,low_95,high_95,bold "
    assert csv.stdout.startswith(head)
    refused(gcr("reproduce", *SMALL, "--out", small[0], "--show", "--format", "pdf"), 'unknown format "pdf"')


def test_the_same_command_trains_nothing_new(small):
    out, first = small
    before = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    again = gcr("reproduce", *SMALL, "--out", out)
    assert again.code == 0
    assert "trained here" not in again.stderr
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    assert again.stdout == first.stdout
    listed = gcr("reproduce", *SMALL, "--out", out, "--dry-run").stdout
    assert "2 trials: 2 done, 0 running, 0 missing" in listed
    assert "nothing is left to train" in listed


@pytest.mark.parametrize("content", ['{"class_il": {}}', "[]", ""])
@pytest.mark.parametrize("option", [["--show"], []])
def test_a_result_that_fails_its_schema_is_named_skipped_and_counted(small, tmp_path, content, option):
    shutil.copytree(small[0], tmp_path / "copy")
    broken = next(file for file in (tmp_path / "copy").rglob("result.json") if "trials" not in file.parts)
    broken.write_text(content)
    shown = gcr("reproduce", *SMALL, "--out", tmp_path / "copy", *option)
    assert shown.code == (0 if option else 1), shown.stderr
    assert f"left out: {broken.parent} cannot be read" in shown.stderr
    assert "1 result that cannot be read is left out" in shown.stdout
    assert "missing" in shown.stdout


def test_a_trial_that_cannot_be_read_is_named_by_a_dry_run(small, tmp_path):
    shutil.copytree(small[0], tmp_path / "copy")
    broken = next((tmp_path / "copy/trials").rglob("result.json"))
    broken.write_text("[]")
    listed = gcr("reproduce", *SMALL, "--out", tmp_path / "copy", "--dry-run", "--measure", "0")
    assert listed.code == 0
    assert f"{broken.parent} cannot be read" in listed.stderr


def test_finished_runs_need_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GCR_DATA", str(tmp_path / "nothing"))
    for job in make_plan(Request("ocs"), tmp_path / "out").jobs():
        finish(job)
    done = gcr("reproduce", "ocs", "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    assert (tmp_path / "out/ocs.html").exists()


def test_the_table_of_nothing_is_all_missing(tmp_path):
    shown = gcr("reproduce", "ocs", "--show", "--out", tmp_path / "none")
    assert shown.code == 0, shown.stderr
    assert shown.stdout.count("missing") == 2
    assert "77.41" not in shown.stdout
    assert not (tmp_path / "none").exists()


def test_data_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("GCR_DATA", str(tmp_path / "nothing"))
    refused(gcr("reproduce", "imagenet1k", "--out", tmp_path), "gcr data import imagenet1k PATH")
    listed = gcr("reproduce", "imagenet1k", "--out", tmp_path, "--dry-run", "--measure", "0")
    assert listed.code == 0
    assert "get it with: gcr data import imagenet1k PATH" in listed.stdout
    assert "time left: unknown" in listed.stdout


def test_bad_input(tmp_path):
    refused(gcr("reproduce", "offline-acuracy"), 'did you mean "offline-accuracy"')
    refused(gcr("reproduce", "ocs", "--method", "er"), "method must be one of ocs, gcr")
    refused(gcr("reproduce", "ocs", "--buffer", ""), "--buffer is empty")
    refused(gcr("reproduce", "ocs", "--buffer", "many"), 'buffer must be whole numbers as 200,500, got "many"')
    put_run(tmp_path, experiment_of("er"), square(50.0))
    refused(gcr("table", tmp_path, "--paper", "demo-table"), "gcr reproduce demo-table --show")
    refused(gcr("sweep", "seq-digits", "--method", "gcrr"), 'did you mean "gcr"')
    refused(gcr("sweep", "seq-digits", "--method", "finetune"), "give your own: --grid FILE")


def test_sweep_with_a_trial_that_diverges(tmp_path):
    (tmp_path / "grid.toml").write_text("lr = [1e6, 0.1]\n")
    command = ["sweep", "seq-digits", "--method", "er", "--buffer", "50", "--grid", tmp_path / "grid.toml"]
    command += ["--set", "epochs=1", "--set", "model=mlp", "--final-seeds", "0", "--processes", "1", "--out", tmp_path]
    done = gcr(*command)
    assert done.code == 0, done.stderr
    assert "loss is NaN or inf" in done.stderr
    assert "seed 0 is in --seeds and --final-seeds: seeds that chose a setting do not prove it" in done.stderr
    choice = json.loads(next(tmp_path.glob("sweep-*.json")).read_text())
    best, failed = choice["ranking"]["class-il"]
    assert best["values"] == {"lr": 0.1}
    assert failed["mean"] is None
    assert "NaN or inf" in failed["errors"][0]
    assert len(list(tmp_path.glob("seq-digits*/seed-0/result.json"))) == 1
    again = gcr(*command)
    assert again.code == 0
    assert "trained here" not in again.stderr
    refused(gcr(*command, "--seeds", "0,1"), "is of another search (seeds is [0] there, [0, 1] here); move it away")
    (tmp_path / "grid.toml").write_text("lr = [0.1]\n")
    refused(gcr(*command), "is of another search (grid is {'lr': [1000000.0, 0.1]} there, {'lr': [0.1]} here)")
    assert json.loads(next(tmp_path.glob("sweep-*.json")).read_text()) == choice
    table = gcr("table", tmp_path)  # trials are no results
    assert table.stdout.count("│ er") == 1


@pytest.mark.parametrize(
    ("option", "finals"), [([], range(3, 18)), (["--final-seeds", "0-1"], range(2)), (["--final-seeds", "none"], ())]
)
def test_final_seeds_of_a_sweep_follow_those_of_its_trials(monkeypatch, option, finals):
    asked = []
    monkeypatch.setattr(reproducing, "sweep", lambda search, protocols, seeds, *rest: asked.append(seeds))
    assert gcr("sweep", "seq-digits", "--method", "er", "--seeds", "0,2", *option).code == 0
    assert asked == [[*finals]]


@pytest.mark.parametrize(
    ("option", "protocols", "metric"),
    [
        ([], ("class-il", "task-il"), "accuracy"),
        (["--metric", "task-il"], ("task-il",), "accuracy"),
        (["--metric", "anytime"], ("class-il", "task-il"), "anytime"),
        (["--metric", "class-il,anytime"], ("class-il",), "anytime"),
    ],
)
def test_what_a_sweep_chooses_by(monkeypatch, option, protocols, metric):
    asked = []
    monkeypatch.setattr(reproducing, "sweep", lambda search, chosen, *rest: asked.append((chosen, search.metric)))
    assert gcr("sweep", "seq-digits", "--method", "er", *option).code == 0
    assert asked == [(protocols, metric)]


def test_metrics_that_no_sweep_chooses_by():
    sweep = ["sweep", "seq-digits", "--method", "er", "--metric"]
    refused(gcr(*sweep, "any-time"), 'unknown metric "any-time" (did you mean "anytime"?)')
    refused(gcr(*sweep, "forgetting"), 'unknown metric "forgetting"; known: ')
    refused(gcr(*sweep, "accuracy,anytime"), "metric must be one of accuracy, anytime, got accuracy,anytime")


def test_sweep_where_all_diverge(tmp_path):
    (tmp_path / "grid.toml").write_text("lr = [1e6]\n")
    done = gcr(
        "sweep", "seq-digits", "--method", "er", "--grid", tmp_path / "grid.toml", "--set", "model=mlp",
        "--processes", "1", "--out", tmp_path,
    )  # fmt: skip
    assert done.code == 2
    assert "all 1 points of the grid of er failed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_closing_the_terminal_saves_and_the_same_command_continues(tmp_path):
    command = [sys.executable, "-m", "gcr", "reproduce", "demo-table", "--method", "er", "--buffer", "200"]
    command += ["--seeds", "0", "--processes", "1", "--out", str(tmp_path)]
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        os.chdir(ROOT)
        os.execv(sys.executable, command)

    def saved():
        read_what_is_there(terminal)
        return list(tmp_path.rglob("checkpoint-*.safetensors"))

    wait_until(saved, "a checkpoint")
    os.close(terminal)  # SIGHUP
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert list(tmp_path.rglob("checkpoint-*.safetensors"))
    assert not list(tmp_path.rglob(".lock"))
    assert gcr(*command[3:]).code == 0
    assert len(list((tmp_path / "trials").rglob("result.json"))) == 2
    assert not list(tmp_path.rglob("checkpoint-*.safetensors"))


def read_what_is_there(terminal):
    if select.select([terminal], [], [], 0.05)[0]:
        os.read(terminal, 65536)


def test_runs_of_another_precision_are_pointed_at(tmp_path):
    asked = {"scenarios": ("seq-cifar10",), "methods": ("er",), "buffers": (500,)}
    for seeds, precision in (((0, 1), "bf16"), ((1,), None)):
        for job in make_plan(Request("online-accuracy", seeds=seeds, precision=precision, **asked), tmp_path).jobs():
            finish(job)
    command = ("reproduce", "online-accuracy", "--scenario", "seq-cifar10", "--method", "er", "--buffer", "500")
    command += ("--seeds", "0-2", "--out", tmp_path)
    printed = "of 2 missing runs 1 is here with --precision bf16"
    assert printed in gcr(*command, "--show").stdout
    assert printed in gcr(*command, "--dry-run", "--measure", 0).stdout
    with_bf16 = gcr(*command, "--show", "--precision", "bf16").stdout
    assert "missing runs" not in with_bf16
    assert "of 3 missing runs 1 is here without --precision" in gcr(*command, "--show", "--precision", "fp32").stdout
