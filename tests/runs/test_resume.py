"""Runs that are killed or stopped, and continued by the same command."""

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
from gcr.runs.folder import RunFolder

COMMAND = ["run", "seq-digits", "--model", "mlp", "--epochs", "4", "--buffer", "50"]
MEASURED = {"seconds", "finished", "peak_bytes", "digest"}


def start(out, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "gcr", *COMMAND, "--out", str(out), *more],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process):
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, printed
    return printed


def numbers(out, seed=0):
    folder = out / "seq-digits-gcr-k50" / f"seed-{seed}"
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left = sorted(path.name for path in folder.iterdir())
    without_measured = [{key: line[key] for key in line.keys() - MEASURED} for line in [result, *lines]]
    return without_measured, (folder / "memory.safetensors").read_bytes(), left


def wait_for(process, folder, pattern):
    wait_until(lambda: any(folder.glob(pattern)), pattern, process)


def saved_steps(folder):
    """Of the newest checkpoint."""
    return max((int(file.stem.split("-")[1]) for file in folder.glob("checkpoint-*.safetensors")), default=0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert run_cli([*COMMAND, "--out", str(out), "--seeds", "0,1", "--processes", "1"]) == 0
    return out


def test_killed_at_random_moments(uninterrupted, tmp_path):
    """kill -9, again and again, with checkpoints in the middle of epochs: every number is that of the whole run."""
    later = random.Random(1)
    folder = tmp_path / "seq-digits-gcr-k50" / "seed-0"
    for _ in range(2):
        process, until = start(tmp_path, "--checkpoint-steps", "7"), saved_steps(folder) + later.randrange(7, 40)
        wait_until(lambda until=until: saved_steps(folder) >= until, f"step {until}", process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    finish(start(tmp_path, "--checkpoint-steps", "7"))
    assert numbers(tmp_path) == numbers(uninterrupted)


@pytest.mark.parametrize(("number", "code", "seeds"), [(signal.SIGINT, 130, "0"), (signal.SIGTERM, 143, "0,1")])
def test_a_signal_saves_and_says_how_to_go_on(number, code, seeds, uninterrupted, tmp_path):
    process = start(tmp_path, "--seeds", seeds)
    wait_for(process, tmp_path, "*/seed-0/checkpoint-*")
    os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == code, printed
    assert "runs are unfinished" in printed
    assert f"--out {tmp_path} --seeds {seeds} --resume" in printed
    assert "Traceback" not in printed
    finish(start(tmp_path, "--seeds", seeds, "--resume"))
    for seed in map(int, seeds.split(",")):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)


@pytest.mark.slow
def test_fresh_begins_again(uninterrupted, tmp_path):
    process = start(tmp_path)
    wait_for(process, tmp_path, "*/seed-0/checkpoint-*")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (kept,) = list(tmp_path.glob("*/seed-0/checkpoint-*"))[:1]
    kept.write_bytes(b"not a checkpoint")
    printed = finish(start(tmp_path, "--fresh"))
    assert "cannot be read" not in printed
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_other_options_than_the_checkpoints_are_refused(tmp_path):
    process = start(tmp_path)
    wait_for(process, tmp_path, "*/seed-0/checkpoint-*")
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=HANG_SECONDS)
    process = start(tmp_path, "--threads", "2")
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert "threads is 1 there, 2 here" in printed
    assert "--fresh" in printed


@pytest.mark.slow
def test_killing_only_the_parent_ends_its_workers(uninterrupted, tmp_path):
    process = start(tmp_path, "--seeds", "0,1")
    wait_for(process, tmp_path, "*/seed-0/checkpoint-*")
    wait_for(process, tmp_path, "*/seed-1/checkpoint-*")
    process.kill()
    process.communicate()
    finish(start(tmp_path, "--seeds", "0,1"))
    for seed in (0, 1):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)


def test_two_commands_do_not_train_the_same_run(tmp_path):
    with RunFolder(tmp_path / "seq-digits-gcr-k50" / "seed-0").locked():
        process = start(tmp_path)
        _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert f"seed-0 is being trained by process {os.getpid()}" in printed


def torch_is_loading(process, out):
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def folders_are_made(process, out):
    return list(out.glob("*/seed-*"))


def workers_train(process, out):
    return list(out.glob("*/seed-*/metrics.jsonl"))


@pytest.mark.parametrize("moment", [torch_is_loading, folders_are_made, workers_train])
def test_a_signal_at_any_moment_ends_the_command(tmp_path, moment):
    process = start(tmp_path, "--seeds", "0-3", "--method", "er")
    wait_until(lambda: moment(process, tmp_path), moment.__name__, process)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode in (0, 130, -signal.SIGINT), printed  # the last: before Python listens


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(uninterrupted, tmp_path):
    process = start(tmp_path, "--seeds", "0,1")
    wait_for(process, tmp_path, "*/seed-0/checkpoint-*")
    (lock,) = tmp_path.glob("*/seed-0/.lock")
    os.kill(int(lock.read_text()), signal.SIGKILL)
    finish(process)
    for seed in (0, 1):
        assert numbers(tmp_path, seed) == numbers(uninterrupted, seed)
