"""A tiny scenario of made images: 3 tasks of 2 classes, small enough for whole runs in a test."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a child that is forked from several threads can hang

import gc
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import hypothesis
import pytest
import torch

from gcr.augment import Views
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.training import loop

sys.path.insert(0, str(Path(__file__).parent))  # for `reference`
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
torch.set_num_threads(1)
gc.set_threshold(100_000, 50, 50)  # as the command line: looking through all that torch made takes a second
SAVING_SECONDS, loop.SAVING_SECONDS = (
    loop.SAVING_SECONDS,
    math.inf,
)  # a checkpoint at the end of every epoch, however long a busy disk takes for it

HANG_SECONDS = 7200  # a guard against hangs on a busy machine, never a measurement
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = str(ROOT)  # subprocesses import this tree
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # and read what one of them has compiled

# No example has a deadline: on a busy machine any of them is slow.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


def wait_until(
    condition: Callable[[], object],
    what: str,
    process: subprocess.Popen | None = None,
    seconds: float = HANG_SECONDS,
) -> None:
    """Return once ``condition()`` is true, which must happen before ``process`` ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"the process ended before {what}"
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.01)


def forked(work: Callable[[Connection], object]) -> tuple[BaseProcess, Connection]:
    """``work`` in another process, and our end of a pipe to it. Forked: a new one takes seconds to import torch."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def hold(lock: Callable[[], AbstractContextManager[object]]) -> tuple[BaseProcess, Connection]:
    """Another process that has a lock until it is killed or something is sent to it."""

    def work(pipe: Connection) -> None:
        with lock():
            pipe.send("locked")
            pipe.recv()

    process, pipe = forked(work)
    assert pipe.recv() == "locked"
    return process, pipe


def make_scenario(n_per_class: int = 12, channels: int = 1, size: int = 6, flip: bool = True) -> Scenario:
    """Every class is a pattern of its own, with noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(6, 1, channels, size, size, generator=generator)

    def draw(n: int) -> Images:
        noise = torch.rand(6, n, channels, size, size, generator=generator)
        pixels = (255 * (0.7 * patterns + 0.3 * noise)).to(torch.uint8).flatten(0, 1)
        return Images(pixels, torch.arange(6).repeat_interleave(n))

    return Scenario(
        name="made",
        train=draw(n_per_class),
        test=draw(5),
        tasks=equal_tasks(6, 3),
        views=Views(mean=(0.5,) * channels, std=(0.25,) * channels, pad=1, flip=flip),
        class_names=tuple("abcdef"),
    )


@pytest.fixture
def scenario() -> Scenario:
    return make_scenario()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of data sets of the test's own."""
    monkeypatch.setenv("GCR_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"
