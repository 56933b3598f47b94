"""The folder of a run: its files, damage to them, several processes that share it, the source that wrote it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import made_data
import pytest
from conftest import HANG_SECONDS, hold

import gcr
from gcr.augment import Views
from gcr.cli.main import run_cli
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.experiments.experiment import compose
from gcr.files import json_bytes, write_json
from gcr.runs import job as runs_job
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, check_folders, run_job
from gcr.runs.load import load_run
from gcr.runs.model_file import read_model
from gcr.runs.provenance import git_tree, source, weights_digest
from gcr.runs.shared_folder import train_together
from gcr.scenarios.registry import DIGITS, load
from gcr.settings import BadInput
from gcr.training import loop


def small(seed=0, **overrides):
    return compose("seq-digits", "gcr", seed=seed, overrides={"epochs": 1, "buffer": 20, "model": "mlp"} | overrides)


@pytest.fixture
def finished(tmp_path):
    experiment = small()
    job = Job(experiment, RunFolder.of(tmp_path, experiment))
    run_job(0, job, Execution("cpu"), lambda event: None)
    return job


def test_files_of_a_finished_run(finished):
    path = finished.folder.path
    assert path.parts[-2:] == ("seq-digits-gcr-k20", "seed-0")
    assert finished.folder.experiment() == finished.experiment
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == [0, 1, 2, 3, 4]
    assert {"loss", "accuracy", "seconds"} <= lines[0].keys()
    result = json.loads((path / "result.json").read_text())
    assert {"class_il", "task_il", "seconds", "finished", "steps", "versions", "device"} <= result.keys()
    assert result["class_il"].keys() == {
        *("matrix", "accuracy", "forgetting", "anytime", "learning", "backward_transfer", "forward_transfer")
    }
    assert result["first_stages"] == [0, 1, 2, 3, 4]
    assert result["versions"].keys() == {"gcr", "torch", "python"}
    assert result["device"] == "cpu"
    assert result["source"] == source()
    assert Views.from_json(result["views"]) == DIGITS
    first = [weights_digest(finished.experiment.make_net(load("seq-digits"))) for _ in range(2)]
    assert [result["first_weights"]] * 2 == first
    assert weights_digest(load_run(path).net) not in first
    assert len(finished.folder.memory()["label"]) == 20
    assert sorted(p.name for p in path.iterdir()) == [
        "experiment.json",
        "memory.safetensors",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
    ]


def test_the_same_experiment_gives_the_same_files_but_for_times(finished, tmp_path):
    again = Job(finished.experiment, RunFolder(tmp_path / "again" / "seed-0"))
    run_job(0, again, Execution("cpu"), lambda event: None)
    ours, theirs = finished.folder.result(), again.folder.result()
    for result in (ours, theirs):
        del result["files"]["metrics.jsonl"]  # which has seconds
    measured = {"seconds": 0, "finished": "", "peak_bytes": 0}
    assert ours | measured == theirs | measured
    for name in ("memory.safetensors", "model.safetensors"):
        assert (finished.folder.path / name).read_bytes() == (again.folder.path / name).read_bytes()


def test_another_experiment_is_refused_and_nothing_is_touched(finished):
    before = {p.name: p.read_bytes() for p in finished.folder.path.iterdir()}
    with pytest.raises(BadInput) as caught:
        finished.folder.check(small(lr=0.5))
    assert "optimizer.lr is 0.1 there, 0.5 here" in str(caught.value)
    assert "--name" in str(caught.value)
    assert {p.name: p.read_bytes() for p in finished.folder.path.iterdir()} == before


def test_another_experiment_that_diverged_may_be_removed(tmp_path):
    folder = RunFolder(tmp_path / "run" / "seed-0")
    folder.begin(small(lr=1e30))
    with pytest.raises(BadInput, match=r"; choose another --name or --out$"):
        folder.check(small(lr=0.03))
    folder.fail("loss is NaN or inf")
    with pytest.raises(BadInput, match=r"; it diverged, so remove it, or choose another --name or --out$"):
        folder.check(small(lr=0.03))
    shutil.rmtree(folder.path)
    folder.check(small(lr=0.03))


def test_the_same_experiment_is_welcome(finished):
    finished.folder.check(finished.experiment)
    assert finished.folder.finished


def test_a_new_seed_next_to_seeds_of_another_experiment_is_refused(finished):
    def asked(**changes):
        return [
            Job(each, RunFolder.of(finished.folder.out, each)) for each in (small(7, **changes), small(8, **changes))
        ]

    name = finished.folder.path.parent
    check_folders(asked())
    (name / "seed-7").mkdir()  # made, not begun
    (name / "seed-3").mkdir()
    (name / "seed-3" / "experiment.json").write_text("{")
    with pytest.raises(BadInput, match=r"seed-0 holds another .* \(optimizer.lr is 0.1 there, 0.5 here\); choose"):
        check_folders(asked(lr=0.5))
    for job in asked(lr=0.5):  # of an older gcr, that took them: they are continued
        job.folder.begin(job.experiment)
    check_folders(asked(lr=0.5))


def test_a_new_seed_next_to_finished_ones_on_other_data_is_refused(finished):
    name = finished.folder.path.parent
    (name / "seed-0").rename(name / "seed-2")
    (name / "seed-1").mkdir()
    RunFolder(name / "seed-1").begin(small(1))  # says nothing of its data
    new = Job(small(7), RunFolder(name / "seed-7"))
    check_folders([new])
    write_json(name / "seed-2" / "result.json", RunFolder(name / "seed-2").result() | {"data": "of old"})
    with pytest.raises(BadInput, match=r"seed-2 was trained on other images of seq-digits \(data is of old there, "):
        check_folders([new])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot write to .* choose another --out"):
        RunFolder(tmp_path / "file" / "seed-0").make()


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path / "run" / "seed-0")
    folder.begin(small())
    file = folder.path / "metrics.jsonl"
    one, two = (json_bytes({"epoch": number}, indent=None) for number in (1, 2))
    file.write_bytes(one + two + one[:9])
    assert folder.cut_metrics(2) == ""
    assert file.read_bytes() == one + two
    file.write_bytes(one.replace(b"1", b"3", 1) + two[:-5] + b"\n" + two)
    assert "lacks 2 epochs before the checkpoint" in folder.cut_metrics(3)
    assert file.read_bytes() == two
    folder.cut_metrics(0)
    assert file.read_bytes() == b""


@pytest.mark.parametrize("text", ["[]", "{", "{}", '"text"'])
def test_a_broken_experiment_is_named(tmp_path, text):
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(BadInput, match="cannot be read"):
        RunFolder(tmp_path).check(small())


def test_a_broken_memory_is_named(finished):
    (finished.folder.path / "memory.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BadInput, match=r"memory\.safetensors cannot be read"):
        finished.folder.memory()


@pytest.mark.parametrize("file", ["train-images", "test-images", "train-labels"])
def test_damaged_data_end_a_run_before_anything_of_it_is_kept(cache, tmp_path, file):
    name = f"damaged-{file}"  # of its own: a process keeps the data sets that it has read
    parts = [Part.of(*made_data.examples(8, 4, (1, 6, 6), seed=seed)) for seed in range(2)]
    write_set(name, "made", Source(*parts, (1, 6, 6), tuple("abcd")))
    damaged = cache / name / f"{file}.npy"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    experiment = compose(name, "er", overrides={"epochs": 1, "model": "mlp", "tasks": 2, "buffer": 8})
    job = Job(experiment, RunFolder.of(tmp_path / "runs", experiment))
    events = []
    run_job(0, job, Execution("cpu", checkpoint_steps=1), events.append)
    (event,) = events
    assert event.error.startswith(f"{damaged} is damaged (")
    assert event.error.endswith(f"create it again with: gcr data import {name} PATH")
    kept = {path.name: path.read_bytes() for path in job.folder.path.iterdir()}
    assert kept.keys() <= {"experiment.json", "metrics.jsonl"}
    assert kept.get("metrics.jsonl", b"") == b""


def test_data_damaged_before_the_last_evaluation_end_a_run_that_goes_on_with_it(cache, tmp_path, monkeypatch, capsys):
    parts = [Part.of(*made_data.examples(8, 4, (1, 6, 6), seed=seed)) for seed in range(2)]
    write_set("damaged-at-the-end", "made", Source(*parts, (1, 6, 6), tuple("abcd")))
    experiment = compose("damaged-at-the-end", "er", overrides={"epochs": 1, "model": "mlp", "tasks": 2, "buffer": 8})
    job = Job(experiment, RunFolder.of(tmp_path / "runs", experiment))
    real = loop.evaluate

    def killed_in_the_last(*given):
        if len(job.folder.metrics()) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(loop, "evaluate", killed_in_the_last)
    with pytest.raises(KeyboardInterrupt):
        run_job(0, job, Execution("cpu"), lambda event: None)
    assert job.folder.saved
    damaged = cache / "damaged-at-the-end" / "test-images.npy"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-64] + bytes(64))
    words = (
        "run damaged-at-the-end --method er --epochs 1 --model mlp --buffer 8 --set tasks=2 --processes 1 --device cpu"
    )
    monkeypatch.setattr(loop, "evaluate", real)
    runs_job._scenario.cache_clear()  # as a new process, which reads from the disk
    assert run_cli([*words.split(), "--out", str(tmp_path / "runs")]) == 1
    assert f"{damaged} is damaged (" in capsys.readouterr().err.replace("\n", " ")
    assert not job.folder.finished


def test_a_failure_of_another_run_is_named(tmp_path):
    first, second = (RunFolder(tmp_path / name / "seed-0") for name in ("a", "b"))
    first.begin(small())
    second.begin(small(lr=0.5))
    first.fail("loss is NaN or inf")
    assert first.failure == "loss is NaN or inf"
    shutil.copy(first.path / "failure.json", second.path)
    assert "failure.json is of another run" in second.failure


def test_what_killed_processes_left_goes_when_the_run_begins(tmp_path):
    folder = RunFolder(tmp_path / "run" / "seed-0")
    folder.path.mkdir(parents=True)
    of_before = (".memory.safetensors.4711", ".checkpoint-4711.part", ".writable", ".result.json.0a1b2c3d-4711.part")
    for name in of_before:
        (folder.path / name).touch()
    folder.begin(small())
    assert [path.name for path in folder.path.iterdir()] == ["experiment.json"]


def test_a_flipped_bit_is_never_read(finished):
    folder = finished.folder
    for file, read in (
        ("memory.safetensors", folder.memory),
        ("model.safetensors", lambda: read_model(folder.path / "model.safetensors")),
        ("metrics.jsonl", folder.metrics),
    ):
        refuse_flipped_bits(folder.path / file, read)


def refuse_flipped_bits(path, read):
    whole = path.read_bytes()
    read()
    for place in [*range(0, 400, 9), *range(0, len(whole), len(whole) // 40)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(BadInput, match=r"its digest is wrong|no JSON|no tensors"):
            read()


def test_a_finished_run_is_tidied(tmp_path):
    """What a process left that was killed after it wrote the result; not while a process is there."""
    experiment = compose("seq-digits", "er")
    folder = RunFolder.of(tmp_path, experiment)
    folder.begin(experiment)
    left = [folder.path / name for name in ("checkpoint-000000001.safetensors", ".lock", ".result.json.1.part")]
    for file in left:
        file.touch()
    folder.tidy()
    assert all(file.exists() for file in left)  # it is not finished
    (folder.path / "result.json").write_text("{}")
    with folder.locked():
        folder.tidy()
        assert all(file.exists() for file in left)
    folder.tidy()
    assert not any(file.exists() for file in left)


# --- Several processes that train into one folder: every run once, nothing lost, whoever is killed


def make_jobs(out, n=2):
    experiments = [compose("seq-digits", "er", seed=s, overrides={"epochs": 1, "model": "mlp"}) for s in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def test_a_run_that_its_process_leaves_is_taken_over(tmp_path):
    jobs = make_jobs(tmp_path)
    other, _ = hold(jobs[0].folder.locked)
    assert jobs[0].folder.busy
    assert not jobs[1].folder.busy
    said, events = [], []

    def say(text):
        said.append(text)
        assert jobs[1].folder.finished  # waiting comes last
        other.kill()

    ending = train_together(jobs, events.append, Execution("cpu", processes=1), say)
    other.join(HANG_SECONDS)
    assert ending.failed == 0
    assert said == ["1 run is being trained by another process; waiting for it"]
    assert all(job.folder.finished for job in jobs)
    assert not any(event.error for event in events)
    assert not jobs[0].folder.busy


def test_a_run_that_another_process_finishes_is_not_trained_again(tmp_path):
    jobs = make_jobs(tmp_path / "here")
    (ready,) = make_jobs(tmp_path / "there", 1)
    train_together([ready], lambda event: None, Execution("cpu", processes=1))
    (other, _), events = hold(jobs[0].folder.locked), []

    def say(text):
        jobs[0].folder.finish(ready.folder.result(), None)

    ending = train_together(jobs, events.append, Execution("cpu", processes=1), say)
    other.kill()
    other.join(HANG_SECONDS)
    assert ending.failed == 0
    assert [event.accuracy is not None for event in events if event.job == 0] == [True]  # no epochs: not trained here


@pytest.mark.slow  # tests/faults has forked processes on one folder
def test_two_commands_train_every_run_once(tmp_path):
    """Two real commands at once: all runs are there, and those that each trained add up."""
    command = [sys.executable, "-m", "gcr", "reproduce", "demo-table", "--method", "er", "--buffer", "50"]
    command += ["--epochs-scale", "0.2", "--seeds", "0-2", "--processes", "1", "--out", str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(*process.communicate(timeout=HANG_SECONDS), process.returncode) for process in both]
    assert [code for *_, code in ended] == [0, 0], ended
    trained = sum(
        int(line.split(": ")[1].split()[0])
        for _, printed, _ in ended
        for line in printed.splitlines()
        if "trained here" in line
    )
    results = list(tmp_path.rglob("result.json"))
    assert trained == len(results)
    assert len(list((tmp_path / "trials").rglob("result.json"))) == 2
    assert len(results) - 2 in (3, 6)  # class-IL and task-IL may have chosen the same
    for result in results:
        lines = (result.parent / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 5  # an epoch per task: none was begun twice
        assert json.loads(result.read_text())["steps"] == json.loads(lines[-1])["steps"]
    assert not list(tmp_path.rglob(".lock"))


def test_a_stop_while_waiting(tmp_path):
    jobs = make_jobs(tmp_path, 1)
    other, _ = hold(jobs[0].folder.locked)

    def say(text):
        os.kill(os.getpid(), signal.SIGTERM)

    ending = train_together(jobs, lambda event: None, Execution("cpu", processes=1), say)
    assert jobs[0].folder.busy  # the other process still has it
    other.kill()
    other.join(HANG_SECONDS)
    assert ending.signal == signal.SIGTERM


# --- The package's source under the name that git gives it


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_it_is_gits_own_name_of_the_folder(tmp_path):
    for name, text in {"b.py": "x = 1\n", "b/c.py": "", "a-b/d.toml": "é = 1\n", "b0": "0"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)

    def git(*words):
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    tree = git("write-tree")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "c.pyc").write_bytes(b"1")
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)  # of a package that was removed
    assert git_tree(tmp_path).hex() == tree
    (tmp_path / "b" / "c.py").write_text("#")
    assert git_tree(tmp_path).hex() != tree


def test_it_is_of_this_package():
    assert source() == git_tree(Path(gcr.__file__).parent).hex()
