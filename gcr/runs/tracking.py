"""Reporting runs to other tools while they train: a listener that hands events to trackers, in a thread of its own.

Training never waits for a tracker and never fails with one: a tracker that raises is left out from then on, which is
said once. A run that is continued reports each epoch once: those before it come from ``metrics.jsonl``.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

from gcr.runs.job import Event, Execution, Job, Listener, in_words
from gcr.runs.trackers import EventFiles, MlflowStore, Numbers, Record, Tracker, WandbRuns
from gcr.settings import BadInput, unknown

TRACKERS: tuple[type[EventFiles] | type[MlflowStore] | type[WandbRuns], ...] = (EventFiles, MlflowStore, WandbRuns)
CLOSE_SECONDS = 60.0  # for what is still to be reported when all runs have ended


@contextmanager
def tracked(jobs: list[Job], listen: Listener, how: Execution) -> Iterator[Listener]:
    """``listen``, which also sends events to the trackers of ``how.track``."""
    if not how.track:
        yield listen
        return
    reporter = Reporter(jobs, listen, trackers(how))

    def send(event: Event) -> None:
        listen(event)
        reporter.events.put(event)

    try:
        yield send
    finally:
        reporter.close()


def trackers(how: Execution) -> list[Tracker]:
    """An error for those that do not exist or whose library is missing."""
    return [_tracker(name.strip(), how) for name in how.track.split(",")] if how.track else []


def _tracker(name: str, how: Execution) -> Tracker:
    for known in TRACKERS:
        if known.name == name:
            if missing := [library for library in known.needs if importlib.util.find_spec(library) is None]:
                extra = f"pip install 'gradient-coreset-replay[{name}]'"
                raise BadInput(f"--track {name} needs {', '.join(missing)}, not installed here; get it with: {extra}")
            return known(fresh=how.fresh)
    raise unknown("tracker", name, [known.name for known in TRACKERS])


class Reporter:
    def __init__(self, jobs: list[Job], listen: Listener, trackers: list[Tracker]) -> None:
        self.jobs, self.listen, self.trackers = jobs, listen, trackers
        self.events: SimpleQueue[Event | None] = SimpleQueue()
        self.records: dict[tuple[str, int], Record] = {}
        self.last_steps: dict[tuple[str, int], int] = {}
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.events.put(None)
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive() and self.trackers:
            names = " and ".join(tracker.name for tracker in self.trackers)
            self.listen(Event(0, remark=f"{names} did not take all in {CLOSE_SECONDS:g} seconds; the rest is left out"))

    def _work(self) -> None:
        while (event := self.events.get()) is not None:
            for tracker in list(self.trackers):
                try:
                    self._tell(tracker, event)
                except Exception as error:
                    self.trackers.remove(tracker)
                    text = f"not tracked by {tracker.name} any more ({in_words(error)[:300]}); training goes on"
                    self.listen(Event(event.job, remark=text))
        for record in self.records.values():  # of runs that the command left without a word
            with suppress(Exception):
                record.end("stopped")

    def _tell(self, tracker: Tracker, event: Event) -> None:
        key = (tracker.name, event.job)
        if key not in self.records:
            if event.epoch is None and event.accuracy is None:
                return  # it never began: perhaps another command is training it
            self._begin(tracker, event)
        record = self.records[key]
        if event.epoch is not None and event.epoch.steps > self.last_steps[key]:
            self.last_steps[key] = event.epoch.steps
            record.add(event.epoch.steps, training_numbers(vars(event.epoch)))
        if event.ends_job:
            result = self.jobs[event.job].folder.result() if event.accuracy is not None else None
            if result is not None:
                record.add(result["steps"], final_numbers(result))
            record.end("failed" if event.error else "stopped" if event.stopped else "finished")
            del self.records[key]

    def _begin(self, tracker: Tracker, event: Event) -> None:
        key, job = (tracker.name, event.job), self.jobs[event.job]
        record = self.records[key] = tracker.open(job)
        self.last_steps[key] = -1
        for epoch in job.folder.metrics():
            if event.epoch is None or epoch["steps"] < event.epoch.steps:
                self.last_steps[key] = epoch["steps"]
                record.add(epoch["steps"], training_numbers(epoch))


def training_numbers(epoch: dict[str, Any]) -> Numbers:
    return {f"training/{name}": float(epoch[name]) for name in ("loss", "accuracy", "seconds")}


def final_numbers(result: dict[str, Any]) -> Numbers:
    """The single numbers of a result.

    >>> protocols = {"class_il": {"accuracy": 90.0, "forgetting": None, "matrix": [[90.0]]}, "task_il": {}}
    >>> final_numbers(protocols | {"seconds": 2})
    {'class_il/accuracy': 90.0, 'result/seconds': 2.0}
    """
    protocols = {
        f"{protocol}/{name}": value for protocol in ("class_il", "task_il") for name, value in result[protocol].items()
    }
    numbers = {name: float(value) for name, value in protocols.items() if isinstance(value, int | float)}
    return numbers | {"result/seconds": float(result["seconds"])}
