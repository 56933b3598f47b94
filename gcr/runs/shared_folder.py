"""Training into a folder that other processes may be training into too: nothing is trained twice, nothing is lost.

The lock of a run folder decides who trains a run. What another process is training is left for the end and waited for
there; if that process ends without finishing it, it is taken over from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gcr.runs.engine import Ending, run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Execution, Job, Listener, ended_by
from gcr.runs.signals import stop_by_signal
from gcr.settings import BadInput

POLL_SECONDS = 0.5
SAY_SECONDS = 60.0  # between two remarks that we are waiting


def train_together(
    jobs: Sequence[Job], listen: Listener, how: Execution, say: Callable[[str], None] = lambda text: None
) -> Ending:
    """Train all jobs that are not finished, whoever gets to them first. Returns when all have ended."""
    ending = Ending()
    for job in jobs:
        job.folder.tidy()
    waiting = [number for number, job in enumerate(jobs) if not job.folder.ended]
    while waiting:
        numbers, busy = list(waiting), set[int]()

        def hear(event: Event, numbers: list[int] = numbers, busy: set[int] = busy) -> None:
            event = replace(event, job=numbers[event.job])
            if event.kind == "busy":
                busy.add(event.job)
            else:
                ending.failed += event.error is not None
                listen(event)

        ending.signal = run_all([jobs[number] for number in numbers], hear, how).signal
        if ending.signal or not busy:
            break
        waiting, ending.signal = _wait(jobs, sorted(busy), listen, say)
        if ending.signal:
            break
    return ending


def _end_of(number: int, folder: RunFolder) -> Event:
    try:
        return Event(number, accuracy=folder.result()["class_il"]["accuracy"])
    except (BadInput, OSError, LookupError, TypeError) as error:
        return ended_by(number, error)


def _wait(jobs: Sequence[Job], busy: list[int], listen: Listener, say: Callable[[str], None]) -> tuple[list[int], int]:
    """Until others have finished or left the busy runs. Those that were left, and the signal that came meanwhile."""
    left: list[int] = []
    said_at = -SAY_SECONDS
    with stop_by_signal() as stop:
        while busy and not stop():
            still = []
            for number_of_job in busy:
                folder = jobs[number_of_job].folder
                if folder.finished:
                    listen(_end_of(number_of_job, folder))
                elif folder.ended:
                    listen(Event(number_of_job, error=folder.failure, kind="diverged"))
                elif folder.busy:
                    still.append(number_of_job)
                else:
                    left.append(number_of_job)
            busy = still
            if left:  # nothing is gained by leaving them while we wait for the others
                return [*left, *busy], 0
            if busy and time.monotonic() - said_at >= SAY_SECONDS:
                number = f"{len(busy)} {'run is' if len(busy) == 1 else 'runs are'}"
                say(f"{number} being trained by another process; waiting for it")
                said_at = time.monotonic()
            if busy:
                time.sleep(POLL_SECONDS)
    return left, stop.number
