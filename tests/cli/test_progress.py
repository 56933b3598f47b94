"""What the progress of a table says, by a clock of the test's own."""

import io

from rich.console import Console

from gcr.cli.progress import LINE_SECONDS, TableProgress
from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Job
from gcr.training import Epoch


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def watched(tmp_path, n=4, weights=None, before=0):
    experiments = [compose("seq-digits", "er", seed=seed, overrides={"epochs": 1}) for seed in range(n)]
    jobs = [Job(experiment, RunFolder.of(tmp_path, experiment)) for experiment in experiments]
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, force_terminal=False, width=500)
    return TableProgress(jobs, console, weights or [1.0] * n, before, clock=clock), clock, file


def epoch(steps, total=10):
    return Epoch(stage=0, epoch=0, steps=steps, total_steps=total, loss=1.0, accuracy=50.0, seconds=1.0)


def test_done_running_queued_rate_left_and_last(tmp_path):
    progress, clock, _ = watched(tmp_path, before=6)
    clock.now = 30.0
    progress.listen(Event(0, epoch=epoch(10)))
    progress.listen(Event(0, accuracy=71.25))
    progress.listen(Event(1, epoch=epoch(5)))
    text = progress.text()
    assert text.startswith("7/10 runs done, 1 running, 2 queued; 2/min; 50 s left; ")  # 1.5 of 4 in 30 s
    assert text.endswith("last class-IL: seq-digits-er-k100 seed 0 71.25")


def test_time_left_goes_by_the_weights(tmp_path):
    progress, clock, _ = watched(tmp_path, n=2, weights=[1.0, 9.0])
    clock.now = 10.0
    progress.listen(Event(0, epoch=epoch(10)))
    progress.listen(Event(0, accuracy=70.0))
    assert progress.seconds_left == 90.0


def test_what_was_done_before_does_not_count_for_the_rate(tmp_path):
    """A continued run: its first epoch here ends at 9 of 10 steps, and only the last tenth or so was ours."""
    progress, clock, _ = watched(tmp_path, n=2)
    clock.now = 10.0
    progress.jobs = [
        Job(compose("seq-digits", "er", seed=s, overrides={"epochs": 10}), job.folder)
        for s, job in enumerate(progress.jobs)
    ]
    progress.listen(Event(0, epoch=epoch(9)))
    assert abs(progress.seconds_left - 110.0) < 1e-6  # a tenth of a run in 10 s, 1.1 runs to go


def test_lines_come_now_and_then_and_failures_always(tmp_path):
    progress, clock, file = watched(tmp_path)
    progress.listen(Event(0, epoch=epoch(1)))
    assert file.getvalue() == ""
    clock.now = LINE_SECONDS
    progress.listen(Event(0, epoch=epoch(2)))
    assert file.getvalue().count("\n") == 1
    progress.listen(Event(0, error="no room"))
    assert "failed: seq-digits-er-k100 seed 0: no room" in file.getvalue()
    assert "1 failed" in progress.text()


def test_a_run_that_others_trained_is_counted_apart(tmp_path):
    progress, _, _ = watched(tmp_path)
    progress.listen(Event(0, epoch=epoch(10)))
    progress.listen(Event(0, accuracy=70.0))
    progress.listen(Event(1, accuracy=71.0))
    assert (progress.done, progress.elsewhere) == (2, 1)
