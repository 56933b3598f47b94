"""Training a list of experiments on this machine: in processes on a CPU, one after another on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

import gcr
from gcr import scenarios
from gcr.experiments.experiment import Experiment
from gcr.experiments.run_folder import RunFolder
from gcr.settings import BadInput
from gcr.training import Diverged, Epoch, train


@dataclass(frozen=True)
class Job:
    experiment: Experiment
    folder: RunFolder


@dataclass(frozen=True)
class Event:
    """Something happened in job number ``job``: an epoch ended, or the job did (``accuracy`` or ``error`` is set)."""

    job: int
    epoch: Epoch | None = None
    accuracy: float | None = None
    error: str | None = None


Listener = Callable[[Event], None]


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInput(f'device must be auto, cpu or cuda, got "{name}"')
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("device is cuda, but torch sees no GPU; use --device cpu")
    return device


def run_all(jobs: list[Job], listen: Listener, device: str = "auto", processes: int = 0, threads: int = 1) -> int:
    """Train all jobs and return how many failed. One failure does not stop the others.

    ``processes`` 0 means one per core on a CPU. A run on CPU uses ``threads`` threads: with the same number the bits
    are the same, whatever else runs beside it.
    """
    where = pick_device(device)
    if where.type == "cuda":
        processes = 1
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    failed = 0

    def count(event: Event) -> None:
        nonlocal failed
        failed += event.error is not None
        listen(event)

    if processes <= 1:
        for number, job in enumerate(jobs):
            _run_job(number, job, str(where), threads, count)
    else:
        _run_in_processes(jobs, count, str(where), processes, threads)
    return failed


def run_one(job: Job, device: str, threads: int, on_epoch: Callable[[Epoch], None]) -> dict[str, Any]:
    """Train one experiment into its folder and return its result."""
    experiment = job.experiment
    job.folder.begin(experiment)

    def each_epoch(epoch: Epoch) -> None:
        job.folder.add_epoch(epoch)
        on_epoch(epoch)

    outcome = train(
        scenario=scenarios.load(experiment.scenario, experiment.stream),
        model=experiment.model,
        method=experiment.method,
        policy=experiment.memory,
        training=experiment.training,
        seed=experiment.seed,
        device=device,
        threads=threads,
        on_epoch=each_epoch,
    )
    result = {
        "class_il": outcome.class_il,
        "task_il": outcome.task_il,
        "selections": outcome.state.selections,
        "seconds": outcome.seconds,
        "steps": outcome.steps,
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "threads": threads,
    }
    memory = outcome.state.memory
    kept = None
    if memory is not None:
        kept = {name: column[: int(memory.kept)].cpu().contiguous() for name, column in memory.columns.items()}
    job.folder.finish(result, kept)
    return result


def _run_job(number: int, job: Job, device: str, threads: int, listen: Listener) -> None:
    try:
        result = run_one(job, device, threads, lambda epoch: listen(Event(number, epoch=epoch)))
        listen(Event(number, accuracy=result["class_il"]["accuracy"]))
    except Exception as error:
        kind = "" if isinstance(error, BadInput | Diverged) else f"{type(error).__name__}: "
        listen(Event(number, error=kind + " ".join(str(error).split())))


_events: Any = None  # in a worker process: the queue to the parent


def _start_worker(events: Any) -> None:
    global _events
    _events = events


def _run_in_worker(number: int, job: Job, device: str, threads: int) -> None:
    _run_job(number, job, device, threads, _events.put)


def _run_in_processes(jobs: list[Job], listen: Listener, device: str, processes: int, threads: int) -> None:
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    ended: set[int] = set()

    def forward() -> None:
        while (event := events.get()) is not None:
            if event.accuracy is not None or event.error is not None:
                ended.add(event.job)
            listen(event)

    reader = threading.Thread(target=forward, daemon=True)
    reader.start()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(events,))
    lost = ""
    try:
        longest_first = sorted(range(len(jobs)), key=lambda number: -_passes(jobs[number].experiment))
        futures = [pool.submit(_run_in_worker, number, jobs[number], device, threads) for number in longest_first]
        for future in as_completed(futures):
            try:
                future.result()
            except BrokenProcessPool:
                lost = "a worker process died (out of memory?); run the same command again for the missing seeds"
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        events.put(None)
        reader.join(timeout=10)  # a worker that was killed may have taken the queue's lock with it
    for number in range(len(jobs)):
        if lost and number not in ended:
            listen(Event(number, error=lost))


def _passes(experiment: Experiment) -> int:
    """Passes of the network over an example, roughly: longer runs start first, so that no core waits at the end."""
    return experiment.training.epochs * (1 + sum(len(kinds) for kinds in experiment.method.replays))
