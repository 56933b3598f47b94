"""What is printed: tables on terminals of any width, the progress of runs, the size of memory."""

import io
import re
from functools import partial

import pytest

from gcr.analysis.formats import Entry, Sheet
from gcr.cli import console
from gcr.cli.console import Console
from gcr.cli.launch import memory_line
from gcr.cli.progress import LINE_SECONDS, TASK_SECONDS, RunProgress, TableProgress
from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Job, TaskEnd
from gcr.training import Epoch

LONG = "gcr + class-balanced (variant=paper, normalise=weights, contrast=logits)"
HEADINGS = ["method", "K", "seeds", "class-IL any-time accuracy", "ours: mean ± SEM", "paper: mean ± spread", "seconds"]
ROWS = [[LONG, "500", "15", "72.02 ± 0.32", "83.21 ± 0.63", "72.15 ± 1.31", "1623.8"]]
SHEET = Sheet("a table", HEADINGS, [[Entry(text) for text in row] for row in ROWS])


@pytest.fixture
def show(monkeypatch):
    def show(width):
        file = io.StringIO()
        terminal = {"force_terminal": True, "color_system": None} if width else {"force_terminal": False}
        monkeypatch.setattr(console, "Console", partial(Console, file=file, **terminal))
        monkeypatch.setattr(console, "out", console.Console(width=width))
        console.print_sheets([SHEET], ["a note"])
        return file.getvalue()

    return show


def words(text):
    return set(re.findall(r"[\w+=-]+", text))


@pytest.mark.parametrize("width", [None, 40, 60, 80, 100, 120, 200])
def test_nothing_is_cut(show, width):
    text = show(width)
    for number in ROWS[0][3:6]:
        assert number in text or number.replace(" ± ", "±") in text
    assert "…" not in text
    assert "- a note" in text
    if width not in (40, 60):  # there words of the name are in pieces
        assert words(LONG) <= words(text)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(show, width):
    assert max(map(len, show(width).splitlines())) <= width


def test_names_and_headings_fold_before_anything_is_left_out(show):
    assert LONG in show(200)
    folded = show(90)
    assert LONG not in folded
    assert "seconds" in folded
    assert "left out" not in folded
    assert "left out for lack of room: seconds\n" in show(80)
    assert "left out for lack of room: seconds, seeds\n" in show(70)


def test_where_leaving_out_does_not_help_all_is_shown(show):
    text = show(40)
    assert "seeds" in text
    assert "left out" not in text


def test_outside_a_terminal_lines_are_as_long_as_they_need_to_be(show):
    assert LONG in show(None)
    assert max(map(len, show(None).splitlines())) > 120


def test_names_in_a_line_are_no_markup_no_emoji_and_not_folded(capsys):
    text = "report: runs/[bold]x[/bold]/:ant:/" + "long/" * 60
    Console(width=40).say(text, "red")
    assert capsys.readouterr().out == f"{text}\n"


def test_a_long_table_looks_as_a_short_one(show, monkeypatch):
    short = show(None)
    monkeypatch.setattr(console, "MANY", 0)
    assert show(None) == short


# --- What the progress of a table says, by a clock of the test's own


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


@pytest.mark.parametrize("forced", [False, True], ids=["a log", "a log with FORCE_COLOR"])
def test_a_log_of_runs_has_plain_lines_at_ends_of_tasks_and_epochs(tmp_path, forced):
    made, clock, _ = watched(tmp_path, n=2)
    file = io.StringIO()
    with RunProgress(made.jobs, Console(file=file, force_terminal=forced, width=500), clock) as progress:

        def said(seconds, event):
            clock.now += seconds
            before = file.tell()
            progress.listen(event)
            return file.getvalue()[before:]

        name = "seq-digits-er-k100 seed 0: "
        assert said(5.0, Event(0, epoch=epoch(1))) == ""
        assert said(1.0, Event(0, task=TaskEnd(1, 5, 99.0))) == ""
        first = f"{name}epoch 1 of 1, task 1: loss 1.000, training accuracy 50.00"
        assert said(LINE_SECONDS, Event(0, epoch=epoch(4))) == f"{first}; 0/2 runs, 20% of steps, 2 min left\n"
        assert said(1.0, Event(0, task=TaskEnd(2, 5, 81.2))) == ""
        end = f"{name}task 3 of 5 done, class-IL 71.25; 0/2 runs, 20% of steps, "
        assert said(TASK_SECONDS, Event(0, task=TaskEnd(3, 5, 71.25))).startswith(end)
        assert said(2.0, Event(1, epoch=epoch(1))) == ""
        assert said(TASK_SECONDS, Event(0, accuracy=70.0)).startswith(f"{name}done, class-IL 70.00; 1/2 runs, ")
    assert "\x1b" not in file.getvalue()


def test_the_time_left_of_continued_runs_goes_by_what_is_done_now(tmp_path):
    made, clock, file = watched(tmp_path, n=1)
    made.jobs[0].folder.path.mkdir(parents=True)
    (made.jobs[0].folder.path / "checkpoint-8.safetensors").touch()
    progress = RunProgress(made.jobs, Console(file=file, width=500), clock)
    progress.listen(Event(0, epoch=epoch(80, 100)))
    clock.now = LINE_SECONDS
    progress.listen(Event(0, epoch=epoch(90, 100)))
    assert file.getvalue().endswith("0/1 runs, 90% of steps, 30 s left\n")


def test_a_log_with_colours_forced_has_plain_lines_of_tables_too(tmp_path):
    made, clock, file = watched(tmp_path)
    with TableProgress(
        made.jobs, Console(file=file, force_terminal=True, width=500), [1.0] * 4, clock=clock
    ) as progress:
        clock.now = LINE_SECONDS
        progress.listen(Event(0, epoch=epoch(2)))
    assert file.getvalue().startswith("0/4 runs done, 1 running, 3 queued; ")
    assert "\x1b" not in file.getvalue()


# --- The size of memory


def test_the_size_of_memory_is_said_where_all_runs_agree():
    gcr, er, finetune = (compose("seq-digits", method, seed=0) for method in ("gcr", "er", "finetune"))
    row = 64 + 8 + 40 + 4 + 8
    assert memory_line([gcr, finetune]) == f"memory: 100 examples + 100 candidates, {200 * row / 1e6:.2f} MB"
    assert memory_line([er]) == "memory: 100 examples, 0.01 MB"
    assert memory_line([gcr, er]) == memory_line([finetune]) == memory_line([]) == ""
