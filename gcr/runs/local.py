"""Training a list of jobs on this machine: in processes on a CPU, in packs on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client
from multiprocessing.connection import Listener as Door
from typing import Any

import torch

from gcr.experiments.experiment import Experiment
from gcr.runs.job import Event, Execution, Job, Listener, job_steps, no_room, run_job
from gcr.runs.signals import Stop, signals_held_back, stop_by_signal
from gcr.settings import BadInput
from gcr.training.pack import OutOfMemory, run_pack

TRIES = 5  # rounds of worker processes in which no job gets any further
BEGUN_AGAIN = 77  # exit code of a worker that would train while it imports the script


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInput(f'device must be auto, cpu or cuda, got "{name}"')
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("device is cuda, but torch sees no GPU; use --device cpu")
    return device


def run_here(jobs: list[Job], count: Listener, how: Execution) -> Stop:
    """On this machine."""
    device = pick_device(how.device)
    how = replace(how, device=str(device))
    processes = min(how.processes or os.cpu_count() or 1, len(jobs))
    if device.type == "cuda":
        set_kernels(how.deterministic)
        with stop_by_signal() as stop:
            members: set[int] = set()
            waiting = (
                _in_pack(number, jobs[number], how, count, stop, members)
                for number in longest_first(jobs)
                if not stop()
            )
            run_pack(waiting, how.pack, device)
    elif processes > 1:
        stop = _run_in_processes(jobs, count, how, processes)
    else:
        with stop_by_signal() as stop:
            for number, job in enumerate(jobs):
                if not stop():
                    run_job(number, job, how, count, stop)
    return stop


def _in_pack(
    number: int, job: Job, how: Execution, listen: Listener, stop: Callable[[], bool], members: set[int]
) -> Iterator[bool]:
    """The steps of a job that shares a GPU with ``members``; out of memory, it continues when there are fewer."""
    members.add(number)
    try:
        yield from job_steps(number, job, how, listen, stop)
    except torch.OutOfMemoryError:
        n = len(members)
        if n == 1:
            listen(no_room(number))
            return
        listen(Event(number, remark=f"out of GPU memory with {n} runs at a time; continuing with --pack {n - 1}"))
        raise OutOfMemory(lambda: _in_pack(number, job, how, listen, stop, members)) from None
    finally:
        members.discard(number)


def set_kernels(deterministic: bool) -> None:
    """Choose convolution kernels by trial, or only such kernels as give the same bits every time."""
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


_inbox: Any = None  # in a worker process: the connection to the parent
_stop = Stop()  # in a worker process: set by a signal


def _start_worker(address: str) -> None:
    global _inbox
    _stop.set_by_signals()
    _inbox = Client(address, authkey=multiprocessing.current_process().authkey)
    threading.Thread(target=end_with_parent, daemon=True).start()


def check_begun_again() -> None:
    """A worker imports the script that runs. One that trains outside ``if __name__ == "__main__":`` would do so there
    again, and again in the workers of that."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as ``multiprocessing`` asks
        sys.exit(BEGUN_AGAIN)


def end_with_parent() -> None:
    """A parent that was killed has nobody to report to, and the same command may be running again already."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(number: int, job: Job, how: Execution) -> None:
    if not _stop():
        run_job(number, job, how, _inbox.send, _stop)


class Inbox:
    """Events from worker processes, each over a connection of its own: one that is killed takes no lock with it."""

    def __init__(self, receive: Listener) -> None:
        self.receive, self.one_at_a_time = receive, threading.Lock()
        self.door = Door(authkey=multiprocessing.current_process().authkey)
        self.readers: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self.door.accept()
                reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
                reader.start()
                self.readers.append(reader)

    def _read(self, connection: Any) -> None:
        with suppress(EOFError, OSError):  # at the worker's end, whatever it was
            while True:
                event = connection.recv()
                with self.one_at_a_time:
                    self.receive(event)

    def close(self) -> None:
        """After the workers have ended: all that they sent has been received."""
        for reader in self.readers:
            reader.join(timeout=10)
        self.door.close()


def _run_in_processes(jobs: list[Job], listen: Listener, how: Execution, processes: int) -> Stop:
    """In worker processes. Jobs that are lost because a process died are continued in new ones. They are given up
    where processes die again and again and no job gets any further."""
    waiting = longest_first(jobs)
    in_vain = 0
    while True:
        before = {number: jobs[number].folder.newest_checkpoint for number in waiting}
        ended, stop = _run_in_workers({number: jobs[number] for number in waiting}, listen, how, processes)
        waiting = [number for number in waiting if number not in ended]
        if not waiting or stop():
            return stop
        further = any(jobs[number].folder.newest_checkpoint != before[number] for number in waiting)
        in_vain = 0 if ended or further else in_vain + 1
        if in_vain == TRIES:
            error = f"its worker process died {TRIES} times before it got any further (out of memory?)"
            for number in waiting:
                listen(Event(number, error=f"{error}; try fewer --processes: the same command continues it"))
            return stop


def _run_in_workers(jobs: dict[int, Job], listen: Listener, how: Execution, processes: int) -> tuple[set[int], Stop]:
    """The numbers of jobs that came to an end, and whether a signal came."""
    ended: set[int] = set()

    def receive(event: Event) -> None:
        if event.stopped and not stop():
            return  # the executor stops all when one process dies: they will be continued
        if event.ends_job:
            ended.add(event.job)
        listen(event)

    inbox = Inbox(receive)
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start_worker, initargs=(inbox.door.address,)
    )

    def workers() -> list[Any]:
        return list((executor._processes or {}).values())

    def stop_workers() -> None:
        for process in workers():
            process.terminate()  # a signal to its ``Stop``: it finishes its step and saves, and begins no other job

    try:
        with stop_by_signal(stop_workers) as stop:
            with signals_held_back():  # workers are born here; a signal would kill them before they can handle it
                futures = [executor.submit(_run_in_worker, number, job, how) for number, job in jobs.items()]
                born = workers()
            for future in as_completed(futures):
                with suppress(BrokenProcessPool):
                    future.result()
    except BaseException:
        for process in workers():
            process.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        inbox.close()
    codes = [process.exitcode for process in born if (process.exitcode or 0) > 0]  # below 0: killed by a signal
    if codes and not inbox.readers and not stop():
        remedy = 'put what your script does under if __name__ == "__main__"' if BEGUN_AGAIN in codes else "see above"
        raise BadInput(f"worker processes ended before they began (exit code {codes[0]}); {remedy}, or --processes 1")
    return ended, stop


def longest_first(jobs: list[Job]) -> list[int]:
    """So that nothing waits for a long run at the end."""
    return sorted(range(len(jobs)), key=lambda number: -_passes(jobs[number].experiment))


def _passes(experiment: Experiment) -> int:
    """Passes of the network over an example, roughly."""
    return experiment.training.epochs * (1 + sum(len(replay.views) for replay in experiment.method.replays))
