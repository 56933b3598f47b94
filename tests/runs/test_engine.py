import os
import signal

import pytest

from gcr.experiments.experiment import compose
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.local import pick_device
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
    assert "FileExistsError" in failure.error
    assert todo[0].folder.finished
    assert todo[2].folder.finished


@pytest.mark.slow
def test_a_worker_that_dies_is_told(tmp_path):
    todo = jobs(tmp_path, 2)
    errors = []

    def kill_the_workers(event):
        if event.error:
            errors.append(event.error)
        elif event.epoch is not None:
            for pid in children():
                os.kill(pid, signal.SIGKILL)

    assert run_all(todo, kill_the_workers, Execution("cpu", processes=2)).failed >= 1
    assert all("worker process died" in error for error in errors)


def children():
    import multiprocessing

    return [process.pid for process in multiprocessing.active_children()]


def test_a_gpu_that_is_not_there():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BadInput, match="use --device cpu"):
        pick_device("cuda")
    with pytest.raises(BadInput, match="device must be auto, cpu or cuda"):
        pick_device("gpu")
