"""What a tracker is: it opens a record for each run, which takes numbers by the step and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gcr.runs.folder import TRIALS
from gcr.runs.job import Job

Numbers = dict[str, float]


class Record(Protocol):
    def add(self, step: int, numbers: Numbers) -> None:
        """Steps rise, but for the final numbers, which come at the last one. When a run is continued, all that is known
        of it comes again."""

    def end(self, how: str) -> None:
        """As "finished", "failed" or "stopped"; the last two may go on another time."""


class Tracker(Protocol):
    @property
    def name(self) -> str: ...

    def open(self, job: Job) -> Record: ...


def is_trial(job: Job) -> bool:
    return job.folder.out.name == TRIALS


def place(job: Job) -> Path:
    """The ``--out`` folder: trials have a folder of their own below it, but no store of their own."""
    out = job.folder.out.absolute()
    return out.parent if is_trial(job) else out
