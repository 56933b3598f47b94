"""A pack of jobs on a node of a Ray cluster: trained by the local engine in a scratch folder, and sent home in
messages.

A run's state travels as the files of its folder: what home has when the task begins, a checkpoint from time to time,
all of it at the end. A node that dies takes only what came after the last message with it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir

from gcr import scenarios
from gcr.experiments.experiment import Experiment
from gcr.files import is_left, this_process
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Execution, Job
from gcr.runs.local import pick_device, run_here
from gcr.runs.processes import run_together
from gcr.settings import BadInput

SCRATCH = ".gcr."  # the beginning of the names of scratch folders
PULSE_SECONDS = 0.2  # between messages: many short epochs make one

Files = dict[str, bytes]


@dataclass(frozen=True)
class JobFiles:
    """One job on its way to a node."""

    number: int  # among all jobs, for its events
    experiment: Experiment
    data: str  # fingerprint of the data set at home
    home: str  # its folder, for messages
    files: Files  # metrics and checkpoints, if it is to be continued


@dataclass(frozen=True)
class Task:
    jobs: list[JobFiles]
    how: Execution
    send_seconds: float  # between the checkpoints that are sent home
    data_root: str | None  # GCR_DATA at home; None: the node's own


@dataclass
class Progress:
    """On its way home: what has happened, and files of the jobs' folders in the order in which to write them."""

    events: list[Event] = field(default_factory=list)
    files: dict[int, Files] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.events or self.files)


def train(packed: bytes) -> Iterator[Progress | str]:
    """The messages of a pack; or, as text, why nothing can be trained here."""
    task: Task = pickle.loads(packed)
    if task.data_root is not None:
        os.environ["GCR_DATA"] = task.data_root
    try:
        how = _here(task)
    except BadInput as error:
        yield str(error)
        return
    _sweep_scratch()
    with TemporaryDirectory(prefix=SCRATCH, suffix=f".{this_process()}.part") as scratch:
        yield from Pack(task, how, Path(scratch)).train()


def _sweep_scratch() -> None:
    """What packs left whose worker was killed."""
    for folder in Path(gettempdir()).glob(f"{SCRATCH}*.part"):
        if is_left(folder.name):
            rmtree(folder, ignore_errors=True)


def _here(task: Task) -> Execution:
    """How the pack is trained on this node. An error if it cannot be."""
    for sent in task.jobs:
        entry = scenarios.entry(sent.experiment.scenario)
        entry.check_present()
        if entry.fingerprint != sent.data:
            raise BadInput(
                f"it has other images of {entry.name} (data is {entry.fingerprint} there, {sent.data} here); "
                "import the same files on every node"
            )
    device = pick_device(task.how.device)
    return replace(task.how, engine="local", address=None, track="", device=str(device), processes=1)


class Pack:
    def __init__(self, task: Task, how: Execution, scratch: Path) -> None:
        self.task, self.how = task, how
        self.events: SimpleQueue[Event | None] = SimpleQueue()  # None: all jobs have ended
        self.done = False
        self.jobs = [Job(job.experiment, RunFolder(scratch / str(i))) for i, job in enumerate(task.jobs)]
        for job, sent in zip(self.jobs, task.jobs, strict=True):
            job.folder.receive(sent.files)
        self.sent_at = [time.monotonic()] * len(self.jobs)  # the last checkpoint of each
        self.ended: set[int] = set()

    def train(self) -> Iterator[Progress]:
        """The engine has a thread of its own, so that messages leave while it trains."""
        with ThreadPoolExecutor(1) as thread:
            training = thread.submit(self._run)
            training.add_done_callback(lambda _: self.events.put(None))
            while not self.done:
                if message := self._message():
                    yield message
            training.result()

    def _run(self) -> None:
        if self.how.gpus > 1 and self.how.device.startswith("cuda"):
            run_together(self.jobs, self.events.put, replace(self.how, device="cuda"), int(self.how.gpus))
        else:
            run_here(self.jobs, self.events.put, self.how)

    def _message(self) -> Progress:
        """What happens within a pulse, or until a job ends: nobody waits for a result that is there."""
        message = Progress()
        deadline = time.monotonic() + PULSE_SECONDS
        while not message.files and self._add_event(message, max(0.0, deadline - time.monotonic())):
            pass
        for number in range(len(self.jobs)):
            if number not in self.ended and time.monotonic() - self.sent_at[number] >= self.task.send_seconds:
                self._add_files(message, number, finished=False)
        while self._add_event(message, 0.0):  # of epochs that ended meanwhile: no checkpoint comes home before they do
            pass
        return message

    def _add_event(self, message: Progress, seconds: float) -> bool:
        """The next event, if there is one in time and it is not that all jobs have ended."""
        try:
            event = self.events.get(timeout=seconds)
        except Empty:
            return False
        if event is None:
            self.done = True
            return False
        if event.ends_job:
            self.ended.add(event.job)
            self._add_files(message, event.job, finished=event.accuracy is not None)
        message.events.append(self._for_home(event))
        return True

    def _add_files(self, message: Progress, number: int, finished: bool) -> None:
        self.sent_at[number] = time.monotonic()
        with suppress(FileNotFoundError):  # the run is just writing the next checkpoint: that one goes next time
            files = self.jobs[number].folder.contents(finished)
            message.files[self.task.jobs[number].number] = files

    def _for_home(self, event: Event) -> Event:
        """With the job's number at home, and its folder there in what is said."""
        sent, here = self.task.jobs[event.job], str(self.jobs[event.job].folder.path)
        return replace(
            event,
            job=sent.number,
            remark=event.remark and event.remark.replace(here, sent.home),
            error=event.error and event.error.replace(here, sent.home),
        )
