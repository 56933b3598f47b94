"""Progress of runs: how many are done, rate, time left, last accuracies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gcr.cli.console import Console
from gcr.experiments.experiment import Experiment
from gcr.runs.estimate import in_words
from gcr.runs.job import Event, Job

LINE_SECONDS = 30.0  # between two lines where no bar can be drawn
TASK_SECONDS = 10.0  # of a run, from one line to the next at the end of a task; shorter ones would flood a log
LAST = 3  # accuracies shown with it


class RunProgress:
    """One bar over the steps of all runs on a terminal, elsewhere plain lines; remarks and failures are always said."""

    def __init__(self, jobs: list[Job], console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.jobs, self.done, self.ended = jobs, [0] * len(jobs), 0
        self.totals: dict[int, int] = {}
        self.lines = RunLines(jobs, console, clock)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.redraws,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=None, rate="…")

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def listen(self, event: Event) -> None:
        who, experiment = _who(self.jobs[event.job]), self.jobs[event.job].experiment
        briefly = f"{experiment.label} seed {experiment.seed}"
        if event.epoch is not None:
            self.done[event.job], self.totals[event.job] = event.epoch.steps, event.epoch.total_steps
        self.ended += event.ends_job
        if event.remark is not None:
            self.console.say(f"{who}: {event.remark}")
        elif event.error is not None:
            self.console.say(f"failed: {who}: {event.error}", "red")
        elif event.accuracy is not None and self.console.redraws:
            self.console.say(f"{briefly}: class-IL {event.accuracy:.2f}")
        if not self.console.redraws:
            self.lines.listen(event)
            return
        known = sum(self.totals.values())
        total = known * len(self.jobs) / max(len(self.totals), 1)  # runs not started yet count as the average
        speed = self.bar.tasks[0].speed
        self.bar.update(
            self.task,
            description=f"{self.ended}/{len(self.jobs)} runs, {briefly}",
            completed=sum(self.done),
            total=round(total),
            rate=f"{speed:.0f}/s" if speed else "…",
        )


class RunLines:
    """The same in plain lines: at ends of tasks and runs, and at those of epochs now and then. Runs of seconds have
    none."""

    def __init__(self, jobs: list[Job], console: Console, clock: Callable[[], float]) -> None:
        self.jobs, self.console, self.clock = jobs, console, clock
        self.shares = [0.0] * len(jobs)  # of the steps of each run, how much is done
        self.before = [0.0] * len(jobs)  # and was, where it is continued
        self.waits = {number for number, job in enumerate(jobs) if job.folder.saved}  # for its first epoch
        self.ended: set[int] = set()
        self.began = clock()
        self.printed_at: float | None = None
        self.said_at: dict[int, float] = {}  # by run

    def listen(self, event: Event) -> None:
        number, now = event.job, self.clock()
        if event.epoch is not None:
            self.shares[number] = event.epoch.steps / max(event.epoch.total_steps, 1)
            if number in self.waits:
                self.waits.remove(number)
                self.before[number] = self.shares[number]
        if event.ends_job:
            self.ended.add(number)
        what = _what(self.jobs[number].experiment, event)
        if not what:
            return
        if self.printed_at is None:
            self.printed_at = now
        since = now - self.said_at.setdefault(number, now)
        if now - self.printed_at >= LINE_SECONDS or (event.epoch is None and since >= TASK_SECONDS):
            self.printed_at = self.said_at[number] = now
            self.console.say(f"{_who(self.jobs[number])}: {what}; {self._all()}")

    def _all(self) -> str:
        parts = [f"{len(self.ended)}/{len(self.jobs)} runs", f"{sum(self.shares) / len(self.jobs):.0%} of steps"]
        left = sum(1 - share for number, share in enumerate(self.shares) if number not in self.ended)
        here = sum(self.shares) - sum(self.before)
        if here > 0 and left > 0:
            parts.append(f"{in_words((self.clock() - self.began) * left / here)} left")
        return ", ".join(parts)


class TableProgress:
    """Many runs of unequal length: how many are done, running, queued, their rate, the time left, the last accuracies.

    A bar on a terminal, elsewhere a line now and then; remarks and failures are always said. ``weights``: how long each
    run takes relative to the others, ``before``: how many more were done already.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        console: Console,
        weights: Sequence[float],
        before: int = 0,
        name: str = "runs",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.console, self.clock = jobs, console, clock
        self.weights, self.before, self.name = list(weights), before, name
        self.fractions = [0.0] * len(jobs)  # of each run, how much is done
        self.first: dict[int, float] = {}  # how much was done when it was first heard of: it was continued
        self.running: set[int] = set()
        self.done = self.failed = self.elsewhere = 0
        self.ended: set[int] = set()
        self.last: deque[str] = deque(maxlen=LAST)
        self.began = self.printed_at = clock()
        self.bar = Progress(
            BarColumn(20),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.redraws,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=sum(self.weights))

    def __enter__(self) -> TableProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def listen(self, event: Event) -> None:
        number = event.job
        if event.epoch is not None:
            share = event.epoch.steps / max(event.epoch.total_steps, 1)
            if number not in self.first:  # of a continued run, an epoch is ours at most
                self.first[number] = max(0.0, share - 1 / max(1, self.jobs[number].experiment.training.epochs))
            self.fractions[number] = share
            self.running.add(number)
        if event.ends_job:
            self._end(event)
        if event.remark is not None:
            self.say(f"{_who(self.jobs[number])}: {event.remark}")
        self._show()

    def say(self, text: str, style: str = "") -> None:
        self.console.say(text, style)

    def _end(self, event: Event) -> None:
        number, who = event.job, _who(self.jobs[event.job])
        self.ended.add(number)
        if event.error is not None:
            self.failed += 1
            self.say(f"failed: {who}: {event.error}", "red")
        elif event.accuracy is not None:
            self.done += 1
            self.elsewhere += number not in self.running
            self.fractions[number] = 1.0
            self.first.setdefault(number, 1.0)
            self.last.append(f"{who} {event.accuracy:.2f}")
            if self.console.redraws:
                self.say(f"{who}: class-IL {event.accuracy:.2f}")
        self.running.discard(number)

    @property
    def seconds_left(self) -> float | None:
        """None until there is a rate to go by."""
        parts = list(enumerate(zip(self.weights, self.fractions, strict=True)))
        by_us = sum(weight * (done - self.first.get(n, 0.0)) for n, (weight, done) in parts)
        left = sum(weight * (1 - done) for n, (weight, done) in parts if n not in self.ended)
        elapsed = self.clock() - self.began
        return elapsed * left / by_us if by_us > 0 else None

    def text(self) -> str:
        """All of it in a line."""
        queued = len(self.jobs) - len(self.ended) - len(self.running)
        of = f"{self.before + self.done}/{self.before + len(self.jobs)}"
        parts = [f"{of} {self.name} done, {len(self.running)} running, {queued} queued"]
        if self.failed:
            parts[0] += f", {self.failed} failed"
        minutes = (self.clock() - self.began) / 60
        if self.done and minutes > 0:
            parts.append(f"{self.done / minutes:.3g}/min")
        if self.seconds_left is not None:
            parts.append(f"{in_words(self.seconds_left)} left")
        if self.last and not self.console.redraws:  # there each has a line above the bar
            parts.append("last class-IL: " + ", ".join(self.last))
        return "; ".join(parts)

    def _show(self) -> None:
        if self.console.redraws:
            done = sum(w * f for w, f in zip(self.weights, self.fractions, strict=True))
            self.bar.update(self.task, description=self.text(), completed=done)
        elif self.clock() - self.printed_at >= LINE_SECONDS:
            self.printed_at = self.clock()
            self.say(self.text())


def _what(experiment: Experiment, event: Event) -> str:
    """How far a run is; empty where an event does not say it."""
    if event.epoch is not None:
        at, stage = event.epoch, "stream" if experiment.stream.online else "task"
        where = f"epoch {at.epoch + 1} of {experiment.training.epochs}, {stage} {at.stage + 1}"
        return f"{where}: loss {at.loss:.3f}, training accuracy {at.accuracy:.2f}"
    if event.task is not None:
        return f"task {event.task.number} of {event.task.of} done, class-IL {event.task.accuracy:.2f}"
    return "" if event.accuracy is None else f"done, class-IL {event.accuracy:.2f}"


def _who(job: Job) -> str:
    """By its folder, which says the values too: there may be many runs of a method."""
    return f"{job.folder.path.parent.name} seed {job.experiment.seed}"
