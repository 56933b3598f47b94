"""Runs that are killed or stopped by a signal, and continued by the same command."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HANG_SECONDS, ROOT, wait_until

from gcr.cli.main import run_cli
from gcr.experiments.experiment import compose
from gcr.files import read_tensors, tensor_bytes
from gcr.runs import engine
from gcr.runs import job as runs_job
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job
from gcr.runs.signals import Stop, stop_by_signal

# How every method goes on is tested in tests/contracts/test_methods.py.
COMMAND = ["run", "seq-digits", "--method", "er", "--model", "mlp", "--epochs", "2", "--buffer", "50"]
RUNS = "seq-digits-er-k50"
MEASURED = {"seconds", "finished", "peak_bytes", "digest", "files"}


def start(out, *more, script=("-m", "gcr"), env=None):
    return subprocess.Popen(
        [sys.executable, *script, *COMMAND, "--out", str(out), *more],
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def signalled(out, number, *more, count=1, whom="group"):
    """The same with a signal after ``count`` checkpoints. Exit code and what it printed."""
    mark = out / f"signalled-{len(list(out.glob('signalled-*')))}"
    script = [str(Path(__file__).with_name("signal_at.py"))]
    process = start(out, *more, script=script, env={"SIGNAL_AT": f"{count} {int(number)} {whom} {mark}"})
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert mark.exists(), printed
    return process.returncode, printed


def finish(process):
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, printed
    return printed


def numbers(out, seed=0):
    folder = out / RUNS / f"seed-{seed}"
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left = sorted(path.name for path in folder.iterdir())
    without_measured = [{key: line[key] for key in line.keys() - MEASURED} for line in [result, *lines]]
    return without_measured, (folder / "memory.safetensors").read_bytes(), left


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert run_cli([*COMMAND, "--out", str(out), "--seeds", "0,1", "--processes", "1"]) == 0
    return out


@pytest.mark.slow  # tests/faults kills forked runs, which is quicker
def test_killed_at_random_moments(uninterrupted, tmp_path):
    """kill -9, again and again, with checkpoints in the middle of epochs: every number is that of the whole run."""
    draw = random.Random(1)
    for _ in range(2):
        code, _ = signalled(tmp_path, signal.SIGKILL, "--checkpoint-steps", "7", count=draw.randrange(1, 12))
        assert code == -signal.SIGKILL
    finish(start(tmp_path, "--checkpoint-steps", "7"))
    assert numbers(tmp_path) == numbers(uninterrupted)


@pytest.mark.parametrize(
    ("number", "code", "seeds"),
    [
        (signal.SIGINT, 130, "0,1"),  # two runs: in two worker processes
        pytest.param(signal.SIGINT, 130, "0", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "0,1", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(number, code, seeds, uninterrupted, tmp_path):
    ended, printed = signalled(tmp_path, number, "--seeds", seeds)
    assert ended == code, printed
    assert "runs are unfinished" in printed
    assert f"--out {tmp_path} --seeds {seeds} --resume" in printed
    assert "Traceback" not in printed
    assert run_cli([*COMMAND, "--out", str(tmp_path), "--seeds", seeds, "--resume", "--processes", "1"]) == 0
    for seed in map(int, seeds.split(",")):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)


@pytest.mark.slow
def test_fresh_begins_again(uninterrupted, tmp_path):
    signalled(tmp_path, signal.SIGKILL)
    (kept,) = list(tmp_path.glob("*/seed-0/checkpoint-*"))[:1]
    kept.write_bytes(b"not a checkpoint")
    printed = finish(start(tmp_path, "--fresh"))
    assert "cannot be read" not in printed
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_fresh_drops_checkpoints_once_and_before_anything_runs(tmp_path, monkeypatch):
    """What a run saves from then on is for its next worker, and for the command that continues it."""
    jobs = []
    for seed in (0, 1):
        made = compose("seq-digits", "er", seed=seed, overrides={"model": "mlp", "epochs": 2, "buffer": 50})
        jobs.append(Job(made, RunFolder.of(tmp_path, made)))
        run_job(seed, jobs[-1], Execution(device="cpu"), lambda event: None, stop=lambda: jobs[-1].folder.saved)
    assert all(job.folder.saved for job in jobs)
    seen = []

    def run_here(given, listen, how):
        seen.extend(job.folder.saved for job in given)
        run_job(0, given[0], how, listen, stop=lambda: given[0].folder.saved)
        first = given[0].folder.newest_checkpoint
        run_job(0, given[0], how, listen, stop=lambda: given[0].folder.newest_checkpoint != first)  # its next worker
        assert given[0].folder.newest_checkpoint > first
        return Stop()

    monkeypatch.setattr(engine, "run_here", run_here)
    engine.run_all(jobs, lambda event: None, Execution(device="cpu", fresh=True))
    assert seen == [False, False]


def test_a_run_of_several_sources_names_all(tmp_path, monkeypatch):
    experiment = compose("seq-digits", "er", seed=0, overrides={"model": "mlp", "epochs": 1, "buffer": 50})
    folder, events = RunFolder(tmp_path / RUNS / "seed-0"), []

    def train(source, to_the_end=False):
        monkeypatch.setattr(runs_job, "source", lambda: source)
        before = folder.newest_checkpoint
        stop = (lambda: False) if to_the_end else (lambda: folder.newest_checkpoint != before)
        run_job(0, Job(experiment, folder), Execution(device="cpu"), events.append, stop=stop)

    for source in ("a1", "a1", "b2"):
        train(source)
    remarks = [event.remark for event in events if event.remark]
    assert len(remarks) == 1
    assert "was made by another source of gcr (a1); going on, and the result names both" in remarks[0]
    train("a1", to_the_end=True)
    result = folder.result()
    assert (result["source"], result["sources"]) == ("a1", ["a1", "b2", "a1"])


def test_checkpoints_without_a_source_and_runs_of_one(tmp_path, monkeypatch):
    experiment = compose("seq-digits", "er", seed=0, overrides={"model": "mlp", "epochs": 1, "buffer": 50})
    folder, events = RunFolder(tmp_path / RUNS / "seed-0"), []
    run_job(0, Job(experiment, folder), Execution(device="cpu"), events.append, stop=lambda: folder.saved)
    for file in folder.path.glob("checkpoint-*"):
        about, tensors = read_tensors(file)
        assert about.pop("sources") == [runs_job.source()]
        file.write_bytes(tensor_bytes(tensors, about))
    monkeypatch.setattr(runs_job, "source", lambda: "b2")
    run_job(0, Job(experiment, folder), Execution(device="cpu"), events.append)
    assert not [event.remark for event in events if event.remark]
    assert folder.result()["source"] == "b2"
    assert "sources" not in folder.result()


def test_other_options_than_the_checkpoints_are_refused(tmp_path, capsys):
    experiment = compose("seq-digits", "er", seed=0, overrides={"model": "mlp", "epochs": 2, "buffer": 50})
    folder = RunFolder(tmp_path / RUNS / "seed-0")
    events = []
    run_job(0, Job(experiment, folder), Execution(device="cpu"), events.append, stop=lambda: folder.saved)
    assert events[-1].stopped
    capsys.readouterr()
    assert run_cli([*COMMAND, "--out", str(tmp_path), "--threads", "2"]) == 1
    printed = capsys.readouterr().err
    assert "threads is 1 there, 2 here" in printed
    assert "--fresh" in printed


@pytest.mark.slow
def test_killing_only_the_parent_ends_its_workers(uninterrupted, tmp_path):
    code, _ = signalled(tmp_path, signal.SIGKILL, "--seeds", "0,1", whom="parent")
    assert code == -signal.SIGKILL
    runs = [RunFolder(tmp_path / RUNS / f"seed-{seed}") for seed in (0, 1)]
    wait_until(lambda: not any(run.busy for run in runs), "the end of the workers")
    finish(start(tmp_path, "--seeds", "0,1"))
    for seed in (0, 1):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)


def test_two_commands_do_not_train_the_same_run(tmp_path, capsys):
    """A process cannot lock a file twice either, if it opens it twice."""
    with RunFolder(tmp_path / RUNS / "seed-0").locked():
        assert run_cli([*COMMAND, "--out", str(tmp_path)]) == 1
    assert f"seed-0 is being trained by process {os.getpid()}" in " ".join(capsys.readouterr().err.split())


def torch_is_loading(process, out):
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def folders_are_made(process, out):
    return list(out.glob("*/seed-*"))


def workers_train(process, out):
    return list(out.glob("*/seed-*/metrics.jsonl"))


MOMENTS = [
    (torch_is_loading, "0"),  # one run is trained without workers
    pytest.param(folders_are_made, "0-3", marks=pytest.mark.slow),
    pytest.param(workers_train, "0-3", marks=pytest.mark.slow),  # quick above
]


@pytest.mark.parametrize(("moment", "seeds"), MOMENTS)
def test_a_signal_at_any_moment_ends_the_command(tmp_path, moment, seeds):
    process = start(tmp_path, "--seeds", seeds)
    wait_until(lambda: moment(process, tmp_path), moment.__name__, process)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode in (0, 130, -signal.SIGINT), printed  # the last: before Python listens


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(uninterrupted, tmp_path):
    code, printed = signalled(tmp_path, signal.SIGKILL, "--seeds", "0,1", whom="alone")
    assert code == 0, printed
    for seed in (0, 1):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)


# --- A terminal that is closed stops runs in good order, unless that is ignored, as under nohup


@pytest.fixture
def the_handler_of_before():
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("the_handler_of_before")
def test_ignored_hangups_stay_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_by_signal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.usefixtures("the_handler_of_before")
def test_a_hangup_stops_and_says_no_more_to_the_terminal(monkeypatch):
    closed = []
    monkeypatch.setattr("gcr.runs.signals.os.isatty", lambda output: output == 2)
    monkeypatch.setattr("gcr.runs.signals._write_nowhere", closed.append)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with stop_by_signal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == signal.SIGHUP
    assert closed == [[2]]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
