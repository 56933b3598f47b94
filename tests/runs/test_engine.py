import errno
import os
import platform
import subprocess
import sys

import pytest
from conftest import HANG_SECONDS

from gcr.experiments.experiment import compose
from gcr.runs import local
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.local import pick_device
from gcr.runs.signals import Stop
from gcr.settings import BadInput


def jobs(out, n=3):
    experiments = [compose("seq-digits", "er", seed=s, overrides={"epochs": 1, "model": "mlp"}) for s in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def test_processes_give_the_same_numbers_as_one(tmp_path):
    alone, together = jobs(tmp_path / "alone"), jobs(tmp_path / "together")
    events = []
    assert run_all(alone, events.append, Execution("cpu", processes=1)).failed == 0
    assert run_all(together, events.append, Execution("cpu", processes=2)).failed == 0
    assert len([e for e in events if e.accuracy is not None]) == 6
    assert len([e for e in events if e.epoch is not None]) == 2 * 3 * 5
    for ours, theirs in zip(alone, together, strict=True):
        assert ours.folder.result()["class_il"] == theirs.folder.result()["class_il"]
        assert ours.folder.result()["task_il"] == theirs.folder.result()["task_il"]


@pytest.mark.parametrize("processes", [1, 2])
def test_one_failure_does_not_stop_the_others(tmp_path, processes):
    todo = jobs(tmp_path)
    todo[1].folder.path.parent.mkdir(parents=True)
    todo[1].folder.path.write_text("a file where the folder should be")
    events = []
    assert run_all(todo, events.append, Execution("cpu", processes=processes)).failed == 1
    (failure,) = [e for e in events if e.error]
    assert failure.job == 1
    assert failure.error.startswith(f"{todo[1].folder.path}: File exists; ")
    assert todo[0].folder.finished
    assert todo[2].folder.finished


def train_with_workers_that_die(monkeypatch, todo, each_round):
    """The errors of jobs, and how many rounds of workers there were. ``each_round`` returns the jobs that ended."""
    rounds, events = [], []

    def workers(jobs, listen, how, processes):
        rounds.append(set(jobs))
        return each_round(len(rounds)), Stop()

    monkeypatch.setattr(local, "_run_in_workers", workers)
    ending = run_all(todo, events.append, Execution("cpu", processes=2))
    assert ending.failed == len(events)
    return [event.error for event in events], rounds


def test_jobs_whose_workers_die_and_die_are_given_up(tmp_path, monkeypatch):
    errors, rounds = train_with_workers_that_die(monkeypatch, jobs(tmp_path), lambda number: set())
    assert len(rounds) == local.TRIES
    assert errors == 3 * [
        "its worker process died 5 times before it got any further (out of memory?); try fewer --processes: the same "
        "command continues it"
    ]


def test_jobs_that_get_further_are_continued_however_often_their_workers_die(tmp_path, monkeypatch):
    todo = jobs(tmp_path)

    def each_round(number):
        if number % 4:
            return set()
        if number < 20:
            todo[1].folder.path.mkdir(parents=True, exist_ok=True)
            (todo[1].folder.path / f"checkpoint-{number:09d}.safetensors").touch()
            return set()
        return {number // 4 % 3}

    errors, rounds = train_with_workers_that_die(monkeypatch, todo, each_round)
    assert errors == []
    assert (len(rounds), rounds[0], rounds[-1]) == (28, {0, 1, 2}, {1})


def test_a_gpu_that_is_not_there():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BadInput, match="use --device cpu"):
        pick_device("cuda")
    with pytest.raises(BadInput, match="device must be auto, cpu or cuda"):
        pick_device("gpu")


FAULTS = """
import resource, sys, torch
if sys.argv[1] == "kept":
    from gcr.runs.job import keep_freed_memory
    keep_freed_memory()
def step():
    held = [torch.ones(5_000_000) for _ in range(4)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_a_step_frees_is_not_asked_for_again():
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, word], timeout=HANG_SECONDS))
        for word in ("", "kept")
    )
    assert kept < given_back / 2


def test_a_full_disk_is_named_with_the_file(tmp_path, monkeypatch):
    (job,) = jobs(tmp_path, 1)

    def no_room(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gcr.files._write_durably", no_room)
    events = []
    assert run_all([job], events.append, Execution("cpu", processes=1)).failed == 1
    (error,) = (event.error for event in events if event.error)
    assert error.startswith(f"{job.folder.path}{os.sep}")
    assert error.endswith(": No space left on device; put that right, and the same command continues")
