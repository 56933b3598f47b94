"""Training experiments from the command line: checks before anything starts, progress, table, report, what is left."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcr.cli.console import err, out, print_sheets, warn_of_unreadable
from gcr.runs.place import Place
from gcr.settings import BadInput

if TYPE_CHECKING:
    from gcr.experiments.experiment import Experiment
    from gcr.runs.job import Execution, Job

words: list[str] = []  # of the command that runs, to be able to repeat it


def train_and_show(
    jobs: list[Job],
    folder: Path,
    how: Execution,
    title: str | None = None,
    given: Mapping[str, object] | None = None,
    varied: Sequence[str] = (),
) -> int:
    """Train what is not there yet and print all; with a ``title``, write a report into ``folder``. The exit code.

    Settings that were ``given`` are listed below the table, those that are ``varied`` in its rows.
    """
    place = Place.of_environment()
    if place is None:
        return _train_and_show(jobs, folder, how, title, given, varied)
    from gcr.runs.processes import begins, check_shared, joined

    check_shared(jobs, how, place)
    check_ready([job.experiment for job in jobs], how, set())
    with joined(jobs[0], how, place) as how:
        if place.rank == 0:
            return _train_and_show(jobs, folder, how, title, given, varied)
        return _follow(jobs[0], how) if begins(how) else 0


def _follow(job: Job, how: Execution) -> int:
    """Train along with the first process, which says all but errors."""
    from gcr.runs.job import Event
    from gcr.runs.processes import run_shared

    errors: list[str] = []

    def listen(event: Event) -> None:
        if event.error is not None:
            errors.append(event.error)
            line = f"failed: process {how.rank}: {event.error}"
            err.say(line, "red")

    stop = run_shared(job, listen, how)
    return 128 + stop.number if stop() else 1 if errors else 0


def _train_and_show(
    jobs: list[Job],
    folder: Path,
    how: Execution,
    title: str | None,
    given: Mapping[str, object] | None,
    varied: Sequence[str],
) -> int:
    from gcr.analysis.load import group_runs
    from gcr.analysis.tables import sheets
    from gcr.cli.progress import RunProgress
    from gcr.report import needs_of_report, write_report
    from gcr.runs.engine import Ending, run_all
    from gcr.runs.job import check_folders

    waiting = [job for job in jobs if not job.folder.finished]
    for job in jobs:
        job.folder.tidy()
    check_ready([job.experiment for job in waiting], how, needs_of_report() if title else set())
    check_folders(jobs)
    for job in waiting:
        job.folder.make()
    if reused := len(jobs) - len(waiting):
        bad = len(group_runs([job.folder for job in jobs if job not in waiting]).unreadable)
        damaged = f", {bad} of them damaged: move what is named below away and give this command again" if bad else ""
        err.say(f"{reused} of {len(jobs)} runs were there already{damaged}")
    if err.is_terminal and (line := memory_line([job.experiment for job in waiting])):
        err.say(line)
    ending = Ending()
    if how.world > 1:
        from gcr.runs.processes import begins

        begins(how, bool(waiting))
    if waiting:
        with RunProgress(waiting, err) as progress:
            ending = run_all(waiting, progress.listen, how)
    done = [job.folder for job in jobs if job.folder.finished]
    runs = group_runs(done, [job.folder for job in jobs if job.folder.ended and job.folder not in done])
    warn_of_unreadable(runs)
    if runs.groups:
        words = ", ".join(f"{name}={value}" for name, value in (given or {}).items())
        print_sheets(sheets(runs.groups, always=varied), [*([f"given: {words}"] if words else []), *runs.notes])
    if runs.groups and title:
        page = write_report(runs.groups, folder / "report.html", title, notes=runs.caveats)
        out.say(f"report: {page}")
    unfinished = [job for job in waiting if not job.folder.finished]
    if ending.signal and unfinished:
        saved = sum(job.folder.saved for job in unfinished)
        err.say(f"stopped: {len(unfinished)} of {len(jobs)} runs are unfinished, {saved} of them saved", "red")
        err.say(f"continue with: {this_command()}", "red")
        return 128 + ending.signal
    return 1 if unfinished or runs.unreadable else 0


def check_ready(experiments: Sequence[Experiment], how: Execution, needs: set[str]) -> None:
    """An error with its remedy, before anything starts, if device, libraries or data are not there."""
    from gcr.experiments import plugins
    from gcr.runs.engine import check_engine
    from gcr.runs.local import pick_device
    from gcr.scenarios import entry
    from gcr.training.step_runner import pick_mode

    check_engine(how)
    if how.engine == "local":  # what the nodes of a cluster have is theirs to say
        pick_mode(how.mode, pick_device(how.device))
    about = {name: entry(name) for name in sorted({experiment.scenario for experiment in experiments})}
    for needed in {library for one in about.values() for library in one.needs} | needs:
        if importlib.util.find_spec(needed) is None:
            raise BadInput(f"this needs the library {needed}; install it with pip")
    for one in about.values():
        one.check_present()
    for experiment in experiments:
        plugins.network(experiment.model)
        experiment.check_classes(about[experiment.scenario])


def memory_line(experiments: Sequence[Experiment]) -> str:
    """How much memory the runs keep, where it is the same for all.

    For example "memory: 100 examples + 100 candidates, 0.02 MB".
    """
    from gcr.runs.estimate import shape_and_examples
    from gcr.scenarios import entry

    sizes = set()
    for scenario, memory in {(experiment.scenario, experiment.memory) for experiment in experiments}:
        if memory is not None:
            shape, _ = shape_and_examples(scenario)
            nbytes = memory.nbytes(shape, entry(scenario).n_classes)
            sizes.add((memory.buffer, memory.pool_size, nbytes))
    if len(sizes) != 1:
        return ""
    kept, candidates, nbytes = sizes.pop()
    pooled = f" + {candidates:,} candidates" if candidates else ""
    return f"memory: {kept:,} examples{pooled}, {nbytes / 1e6:.2f} MB"


def this_command() -> str:
    program = ["python", "-m", "gcr"] if sys.argv[0].endswith("__main__.py") else [sys.argv[0]]
    if place := Place.of_environment():
        processes = os.environ.get("LOCAL_WORLD_SIZE", str(place.world))
        program = ["torchrun", "--nproc-per-node", processes, "-m", "gcr"]
    kept = [word for word in words if word not in ("--fresh", "--resume")]
    command = next((word for word in kept if word in ("run", "demo", "reproduce", "sweep")), "")
    return shlex.join([*program, *kept, *(["--resume"] if command == "run" else [])])
