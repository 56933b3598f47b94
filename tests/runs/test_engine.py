"""Many runs at once: the numbers of one process, failures that stop no other; and how long runs will take."""

import errno
import os
import platform
import subprocess
import sys

import pytest
import torch
from conftest import HANG_SECONDS
from made_runs import finish

from gcr.experiments.experiment import compose
from gcr.files import read_json
from gcr.runs import estimate, job, local
from gcr.runs.engine import run_all
from gcr.runs.estimate import Estimator, shape_and_examples
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.local import pick_device
from gcr.runs.signals import Stop
from gcr.scenarios import load
from gcr.settings import BadInput
from gcr.training import Run


def jobs(out, n=3):
    experiments = [compose("seq-digits", "er", seed=s, overrides={"epochs": 1, "model": "mlp"}) for s in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def test_processes_give_the_same_numbers_as_one_and_a_failure_stops_no_other(tmp_path):
    alone, together = jobs(tmp_path / "alone", 4), jobs(tmp_path / "together", 4)
    for processes, todo in ((1, alone), (2, together)):
        bad, events = todo.pop(1), []
        bad.folder.path.parent.mkdir(parents=True)
        bad.folder.path.write_text("a file where the folder should be")
        given = [todo[0], bad, *todo[1:]]
        assert run_all(given, events.append, Execution("cpu", processes=processes)).failed == 1
        (failure,) = [e for e in events if e.error]
        assert failure.job == 1
        assert failure.error.startswith(f"{bad.folder.path}: File exists; ")
        assert len([e for e in events if e.accuracy is not None]) == 3
        assert len([e for e in events if e.epoch is not None]) == 3 * 5
    for ours, theirs in zip(alone, together, strict=True):
        assert ours.folder.result()["class_il"] == theirs.folder.result()["class_il"]
        assert ours.folder.result()["task_il"] == theirs.folder.result()["task_il"]


@pytest.mark.parametrize(("stream", "numbers"), [({}, [1, 2, 3, 4]), ({"online": True, "stream": 700}, [2, 4])])
def test_ends_of_tasks_have_the_accuracy_so_far(tmp_path, stream, numbers):
    """Online, a stream may end several tasks. The end of the last is that of the run."""
    experiment = compose("seq-digits", "er", overrides={"epochs": 1, "model": "mlp"} | stream)
    todo, events = Job(experiment, RunFolder.of(tmp_path, experiment)), []
    assert run_all([todo], events.append, Execution("cpu", processes=1)).failed == 0
    matrix = todo.folder.result()["class_il"]["matrix"]
    said = [event.task for event in events if event.task is not None]
    assert [(end.number, end.of) for end in said] == [(number, 5) for number in numbers]
    for end, accuracies in zip(said, matrix, strict=False):
        assert end.accuracy == pytest.approx(sum(accuracies[: end.number]) / end.number)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(
            "",
            '(exit code 77); put what your script does under if __name__ == "__main__", or --processes 1',
            marks=pytest.mark.slow,
        ),
        ("assert __name__ == '__main__'", "(exit code 1); see above, or --processes 1"),
    ],
)
def test_workers_that_cannot_begin_are_named_at_once(tmp_path, line, message):
    """A script that trains while its own workers import it, and one that they cannot import."""
    (tmp_path / "script.py").write_text(
        f"from gcr.cli.main import run_cli\n{line}\n"
        "run_cli('run seq-digits -m er --epochs 1 --set model=mlp --seeds 0,1 --processes 2'.split())\n"
    )
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stderr.count("error: ") == 1, done.stderr
    assert done.stderr.endswith(f"error: worker processes ended before they began {message}\n")
    assert "bootstrapping" not in done.stderr
    assert done.stderr.count("Traceback") <= (2 if line else 0)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")]
)
def test_a_lack_of_gpu_memory_is_for_the_pack_whoever_names_it(tmp_path, monkeypatch, error):
    """torch's allocator, or the driver: a pack that is smaller may have room."""

    def train(*args):
        yield True
        raise error

    monkeypatch.setattr(job, "_train", train)
    steps = job.job_steps(0, jobs(tmp_path, 1)[0], Execution("cpu"), pytest.fail)
    assert next(steps)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        next(steps)


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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_a_step_frees_is_not_asked_for_again():
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, word], timeout=HANG_SECONDS))
        for word in ("", "kept")
    )
    assert kept <= given_back / 2  # both 0 where torch has an allocator of its own (aarch64)


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


# --- How long runs will take: measured once, kept, and in little more time than was allowed

CPU = torch.device("cpu")


def estimator_in(folder):
    return Estimator(folder / "estimate.json", Execution("cpu"), CPU)


def some(*methods, **overrides):
    return [compose("seq-digits", method, overrides={"model": "mlp"} | overrides) for method in methods]


def test_kinds_are_measured_once_and_kept(tmp_path):
    experiments = some("er", "gcr", "gem", "icarl", "gss")
    estimator = estimator_in(tmp_path)
    estimator.measure(experiments, HANG_SECONDS)
    assert len(estimator.steps) == 5
    assert all(seconds > 0 for seconds in estimator.steps.values())
    assert read_json(tmp_path / "estimate.json") == estimator.steps
    again = estimator_in(tmp_path)
    again.measure(experiments, HANG_SECONDS)
    assert again.steps == estimator.steps
    assert {each.source for each in again.estimates(experiments)} == {"measured steps"}


def test_an_estimate_is_steps_times_seconds(tmp_path):
    (experiment,) = some("er", epochs=4)
    estimator = estimator_in(tmp_path)
    estimator.steps[estimator.kind(experiment)] = 0.5
    assert estimator.estimate(experiment).seconds == pytest.approx(0.5 * 4 * 1442 / 32, rel=0.01)


def test_time_is_bounded_and_the_rest_by_arithmetic(tmp_path):
    experiments = some("er", "gcr")
    estimator = estimator_in(tmp_path)
    estimator.measure(experiments, 0)
    assert not estimator.steps
    estimator.measure(experiments, 1e-9)
    assert list(estimator.steps) == [estimator.kind(experiments[0])]  # the first is always measured
    estimator.steps = {estimator.kind(experiments[0]): 0.01}
    known, guessed = estimator.estimates(experiments)
    assert (known.source, guessed.source) == ("measured steps", "arithmetic")
    assert guessed.seconds > known.seconds  # it replays more
    other = some("er", model="convnet")
    assert estimator.estimates(other) == [None]
    assert estimator.weights(other)[0] > 0


def test_finished_runs_say_it_better(tmp_path):
    (experiment,) = some("er")
    job = Job(experiment, RunFolder.of(tmp_path, experiment))
    finish(job)  # 2 seconds for 100 steps
    estimator = estimator_in(tmp_path)
    estimator.steps[estimator.kind(experiment)] = 5.0
    estimator.learn([job])
    (found,) = estimator.estimates([experiment])
    assert found.source == "finished runs"
    assert found.seconds == pytest.approx(0.02 * 10 * 1442 / 32, rel=0.01)


def test_a_file_that_is_not_ours_is_measured_anew(tmp_path):
    (tmp_path / "estimate.json").write_text('{"er": "soon"}')
    assert estimator_in(tmp_path).steps == {}


def test_shapes_are_known_without_the_data(cache):
    assert shape_and_examples("seq-cifar10") == ((3, 32, 32), 50_000)
    assert shape_and_examples("seq-tinyimagenet") == ((3, 64, 64), 100_000)
    digits = load("seq-digits").train
    assert shape_and_examples("seq-digits") == (tuple(digits.pixels.shape[1:]), len(digits.labels))


def test_the_images_of_an_estimate_are_made_up(cache, tmp_path, monkeypatch):
    """A ResNet on CIFAR's shape without CIFAR, in a small batch."""
    experiment = compose("seq-cifar10", "er")
    batches = []

    def note_batch(**given):
        batches.append(given["training"].batch)
        return Run(**given)

    monkeypatch.setattr(estimate, "Run", note_batch)
    assert estimator_in(tmp_path)._seconds_of_a_step(experiment) > 0
    assert batches == [estimate.SMALL_BATCH]
