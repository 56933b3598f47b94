"""Progress of runs on a terminal: runs done, steps, rate, time left, last accuracies."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gcr.experiments.job import Event, Job


class RunProgress:
    """One bar over the steps of all runs on a terminal, nothing elsewhere; remarks and failures are always said."""

    def __init__(self, jobs: list[Job], console: Console) -> None:
        self.console = console
        self.jobs, self.done, self.ended = jobs, [0] * len(jobs), 0
        self.totals: dict[int, int] = {}
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=None, rate="…")

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def listen(self, event: Event) -> None:
        experiment = self.jobs[event.job].experiment
        who = f"{experiment.label} seed {experiment.seed}"
        if event.epoch is not None:
            self.done[event.job], self.totals[event.job] = event.epoch.steps, event.epoch.total_steps
        self.ended += event.ends_job
        if event.remark is not None:
            self.console.print(f"{who}: {event.remark}", markup=False, highlight=False, soft_wrap=True)
        elif event.error is not None:
            self.console.print(
                f"failed: {who}: {event.error}", style="red", markup=False, highlight=False, soft_wrap=True
            )
        elif event.accuracy is not None and self.console.is_terminal:
            self.console.print(f"{who}: class-IL {event.accuracy:.2f}", highlight=False)
        known = sum(self.totals.values())
        total = known * len(self.jobs) / max(len(self.totals), 1)  # runs not started yet count as the average
        speed = self.bar.tasks[0].speed
        self.bar.update(
            self.task,
            description=f"{self.ended}/{len(self.jobs)} runs, {who}",
            completed=sum(self.done),
            total=round(total),
            rate=f"{speed:.0f}/s" if speed else "…",
        )
