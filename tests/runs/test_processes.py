"""One run in several processes from the command line: killed, continued by one; hung; what is refused."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import made_data as made
import numpy as np
import pytest
import torch
from conftest import HANG_SECONDS, wait_until
from torch import distributed, multiprocessing

from gcr.cli.main import run_cli
from gcr.experiments.experiment import compose
from gcr.models.shares import PeerLost, Shares
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.place import Place
from gcr.runs.processes import check_shared, refuse_disagreement, run_together
from gcr.settings import BadInput

COMMAND = ["run", "seq-digits", "--method", "er", "--epochs", "2", "--checkpoint-steps", "4", "--set", "lr=0.003"]
COMMAND += ["--device", "cpu", "--no-model"]

# ``gcr`` where ImageNet-1k has three pictures of each class, one of them to test on, and no data set is resident.
FEW_PICTURES = """
from dataclasses import replace

from gcr.__main__ import main
from gcr.data import catalog
from gcr.scenarios import datasets

if __name__ == "__main__":
    datasets.RESIDENT_BYTES = 0
    catalog.CATALOG = tuple(
        replace(known, train=2000, test=(1,) * 1000) if known.name == "imagenet1k" else known
        for known in catalog.CATALOG
    )
    main()
"""


def torchrun(processes, *words):
    """Begun, its output in a pipe."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def saved_by_two(folder):
    """A run of two processes that has a checkpoint and goes on: its launcher, and its folder."""
    launcher = torchrun(2, "-m", "gcr", *COMMAND, "--out", str(folder))
    wait_until(lambda: list(folder.glob("*/seed-0/checkpoint-*")), "a checkpoint", launcher)
    (run,) = folder.glob("*/seed-0")
    return launcher, run


def finish(launcher):
    """What it printed, once it has ended."""
    try:
        return launcher.communicate(timeout=HANG_SECONDS)[0]
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)


def losses(folder):
    (run,) = folder.glob("*/seed-0")
    return [line["loss"] for line in RunFolder(run).metrics()]


@pytest.mark.slow
def test_a_killed_process_stops_the_run_and_one_process_continues_it(tmp_path):
    here = tmp_path / "two"
    launcher, run = saved_by_two(here)
    first = int((run / ".lock").read_text())
    (other,) = [pid for pid in children(launcher.pid) if pid != first]
    os.kill(other, signal.SIGKILL)
    printed = finish(launcher)
    assert launcher.returncode == 1
    assert "another process of this run ended or does not answer" in printed
    assert "continues it from its last checkpoint" in printed
    assert not RunFolder(run).finished
    assert RunFolder(run).saved
    assert run_cli([*COMMAND, "--out", str(here)]) == 0
    assert run_cli([*COMMAND, "--out", str(tmp_path / "one")]) == 0
    assert losses(here) == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert not RunFolder(run).saved


def children(pid):
    """Of a process, those that run now (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _talk(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    said = Path(folder, f"{rank}.txt")
    try:
        refuse_disagreement({"seed": rank, "data": "abc", "version of torch": "2"}, Place(rank, 2, rank))
    except BadInput as error:
        said.write_text(str(error))
    group = distributed.group.WORLD
    distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    silent = Path(folder, "waited")
    if rank == 1:  # does not answer until the other has given up
        while not silent.exists():
            time.sleep(0.05)
        os._exit(0)
    try:
        Shares(rank, 2).reduced(torch.zeros(1))
    except PeerLost as error:
        said.write_text(said.read_text() + "\n" + str(error))
    silent.touch()
    os._exit(0)


def test_processes_that_disagree_or_hang_are_named():
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_talk, (folder,), nprocs=2)
        first, other = Path(folder, "0.txt").read_text().splitlines(), Path(folder, "1.txt").read_text().splitlines()
    assert first[0] == other[0]
    assert first[0].startswith("processes disagree: seed is 0 in process 0, 1 in process 1; give all the same command")
    assert "another process of this run ended or does not answer" in first[1]
    assert "Timed out" in first[1]


def job(**overrides):
    return Job(compose("seq-digits", "er", overrides=overrides), RunFolder(Path("runs/er/seed-0")))


@pytest.mark.parametrize(
    ("jobs", "how", "says"),
    [
        ([job(), job()], {}, "torchrun trains one run in 4 processes, got 2 runs; give one seed and one method"),
        ([job()], {"engine": "ray"}, "engine must be local under torchrun, got ray"),
        ([job()], {"pack": 8}, "a pack is of several runs on one GPU, torchrun trains one on 4; leave out --pack"),
        ([job()], {"processes": 2}, "--processes is of several runs, torchrun trains one in 4; leave it out"),
        ([job()], {"device": "cuda:1"}, "device must be auto, cpu or cuda under torchrun, got cuda:1"),
        ([job(ghost_batches=2)], {}, "ghost_batches must be 1 or a multiple of the 4 processes, got 2"),
        ([job(batch=7)], {}, "batch must be >= 8, two examples for each process, got 7"),
    ],
)
def test_what_several_processes_cannot_train_is_refused(jobs, how, says):
    with pytest.raises(BadInput) as refused:
        check_shared(jobs, Execution(**how), Place(0, 4, 0))
    assert says in str(refused.value)


def test_torchrun_is_for_one_command(monkeypatch, capsys):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert run_cli(["demo"]) == 2
    assert "torchrun is for gcr run, got gcr demo" in capsys.readouterr().err
    assert run_cli(["run", "seq-digits", "--seeds", "0-4"]) == 2
    assert "torchrun trains one run in 2 processes, got 5 runs" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "first")
    assert run_cli(["run", "seq-digits"]) == 2
    assert "must be whole numbers, as torchrun sets them" in capsys.readouterr().err


@pytest.mark.slow
def test_two_new_processes_train_a_job(tmp_path):
    """As a node of a Ray cluster does with its GPUs."""
    experiments = [compose("seq-digits", "er", overrides={"epochs": 1, "batch": batch}) for batch in (3, 32)]
    jobs = [Job(experiment, RunFolder(tmp_path / str(n))) for n, experiment in enumerate(experiments)]
    events = []
    run_together(jobs, events.append, Execution(device="cpu"), 2)
    assert [event.job for event in events if event.ends_job] == [0, 1]
    assert "batch must be >= 4" in events[0].error
    assert jobs[1].folder.result()["processes"] == 2
    assert len([event for event in events if event.epoch]) == 5


@pytest.mark.slow
def test_different_commands_are_refused_by_all(tmp_path):
    words = " ".join([*COMMAND, "--out", str(tmp_path), "--seeds", "$RANK"])
    launcher = torchrun(2, "--no-python", "bash", "-c", f"{sys.executable} -m gcr {words}")
    printed = finish(launcher)
    assert launcher.returncode != 0
    assert "error: processes disagree: seed is 0 in process 0, 1 in process 1" in printed
    assert not list(tmp_path.rglob("checkpoint-*"))


@pytest.mark.slow
def test_a_run_of_two_processes_that_was_stopped_continues_in_three(tmp_path):
    here = tmp_path / "many"
    launcher, run = saved_by_two(here)
    os.kill(int((run / ".lock").read_text()), signal.SIGTERM)  # the others stop with it
    printed = finish(launcher)
    assert launcher.returncode != 0
    assert "stopped: 1 of 1 runs are unfinished, 1 of them saved" in printed
    assert "continue with: torchrun --nproc-per-node 2 -m gcr run seq-digits" in printed
    again = torchrun(3, "-m", "gcr", *COMMAND, "--out", str(here))
    printed = finish(again)
    assert again.returncode == 0, printed
    assert RunFolder(run).result()["processes"] == 3
    assert run_cli([*COMMAND, "--out", str(tmp_path / "one")]) == 0
    assert losses(here) == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    finished = torchrun(2, "-m", "gcr", *COMMAND, "--out", str(here))  # nothing is left to do
    assert "1 of 1 runs were there already" in finish(finished)
    assert finished.returncode == 0


@pytest.mark.slow
def test_imagenet_in_two_processes(cache, tmp_path):
    """1,000 classes of made JPEGs: import at 224 pixels, 10 tasks, streamed images, 10,000 remembered, two epochs."""
    generator = np.random.default_rng(0)
    files = {}
    for label in range(1000):
        colour = generator.integers(0, 200, (3, 1, 1))
        for number, part in enumerate(("train", "train", "val")):
            pixels = (colour + generator.integers(0, 50, (3, 24 + number, 30))).astype(np.uint8)
            files[f"{part}/n{label:08d}/{number}.JPEG"] = made.png(pixels, "JPEG")
    made.write_folder(tmp_path / "pictures", files)
    gcr = tmp_path / "few_pictures.py"
    gcr.write_text(FEW_PICTURES)
    subprocess.run([sys.executable, gcr, "data", "import", "imagenet1k", tmp_path / "pictures"], check=True)
    words = ["run", "seq-imagenet1k", "--method", "gcr", "--epochs", "2", "--model", "mlp", "--device", "cpu"]
    given = ["tasks=10", "batch=100", "lr=0.003", "admit=all", "gamma=0"]  # without strong views, which are slow here
    words += [word for value in given for word in ("--set", value)]
    launcher = torchrun(2, str(gcr), *words, "--out", str(tmp_path / "runs"))
    printed = finish(launcher)
    assert launcher.returncode == 0, printed
    (run,) = (tmp_path / "runs").glob("*/seed-0")
    result, metrics = RunFolder(run).result(), RunFolder(run).metrics()
    kept = [about["kept"] for about in result["selections"]]
    assert result["processes"] == 2
    assert [(line["stage"], line["epoch"]) for line in metrics] == [(stage, n) for stage in range(10) for n in (0, 1)]
    assert np.isfinite([line["loss"] for line in metrics]).all()
    assert np.shape(result["class_il"]["matrix"]) == (10, 10)
    assert RunFolder(run).experiment().memory.buffer == 10_000
    assert len(kept) == 10
    assert kept == sorted(set(kept))  # all of them fit
    assert RunFolder(run).memory()["image"].shape == (kept[-1], 3, 224, 224)
