"""Several processes that train into one folder: every run once, nothing lost, whoever is killed."""

import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import HANG_SECONDS

from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.shared_folder import train_together

OTHER = """
import sys

import pytest
from gcr.runs.folder import RunFolder
from pathlib import Path
with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def make_jobs(out, n=2):
    experiments = [compose("seq-digits", "er", seed=s, overrides={"epochs": 1, "model": "mlp"}) for s in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def hold(folder):
    """Another process that has the run's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"locked\n"
    return process


def test_a_run_that_its_process_leaves_is_taken_over(tmp_path):
    jobs = make_jobs(tmp_path)
    other = hold(jobs[0].folder)
    assert jobs[0].folder.busy
    assert not jobs[1].folder.busy
    said, events = [], []

    def say(text):
        said.append(text)
        assert jobs[1].folder.finished  # waiting comes last
        other.kill()

    ending = train_together(jobs, events.append, Execution("cpu", processes=1), say)
    other.wait()
    assert ending.failed == 0
    assert said == ["1 run is being trained by another process; waiting for it"]
    assert all(job.folder.finished for job in jobs)
    assert not any(event.error for event in events)
    assert not jobs[0].folder.busy


def test_a_run_that_another_process_finishes_is_not_trained_again(tmp_path):
    jobs = make_jobs(tmp_path / "here")
    (ready,) = make_jobs(tmp_path / "there", 1)
    train_together([ready], lambda event: None, Execution("cpu", processes=1))
    other, events = hold(jobs[0].folder), []

    def say(text):
        jobs[0].folder.finish(ready.folder.result(), None)

    ending = train_together(jobs, events.append, Execution("cpu", processes=1), say)
    other.kill()
    other.wait()
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
    other = hold(jobs[0].folder)

    def say(text):
        os.kill(os.getpid(), signal.SIGTERM)

    ending = train_together(jobs, lambda event: None, Execution("cpu", processes=1), say)
    assert jobs[0].folder.busy  # the other process still has it
    other.kill()
    other.wait()
    assert ending.signal == signal.SIGTERM
