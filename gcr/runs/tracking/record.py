"""What a tracker is: it opens a record for each run, which takes numbers by the step and ends."""

from __future__ import annotations

from typing import Protocol

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
