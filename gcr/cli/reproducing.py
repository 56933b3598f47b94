"""From a plan to a table: checks, trials, choices, runs; and the table at any time, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gcr.cli.console import err, out, print_sheets, print_table, warn_of_unreadable
from gcr.cli.launch import check_ready, this_command
from gcr.settings import BadInput

if TYPE_CHECKING:
    from gcr.analysis.formats import Sheet
    from gcr.paper.grid_search import Choice, Search
    from gcr.paper.plan import Plan
    from gcr.runs.job import Execution, Job

MAIN_FIGURE = "main-figure"
SHOWN_POINTS = 10  # of a search


def reproduce(plan: Plan, how: Execution, form: str = "terminal") -> int:
    """Train what is missing and show the table. Returns the exit code."""
    from gcr.paper.plan import unfinished
    from gcr.report import needs_of_report

    figure = {"matplotlib"} if plan.table.name == MAIN_FIGURE else set()
    trials, n_failed = plan.trials(), 0
    plan = plan.with_choices()
    everything = unfinished([*trials, *plan.jobs()])
    check_ready([job.experiment for job in everything], how, needs_of_report() | figure | {"scipy"})
    for note in [*_of_trials(plan, plan.seeds), *plan.elsewhere()]:
        err.say(note, "yellow")
    _make(plan.out)
    if trials:
        signal = _train(trials, plan.out, replace(how, model=False), "trials")
        if signal:
            return _stopped(signal, len(unfinished(trials)), "trials")
        plan = plan.with_choices(complain=_complain)
        n_failed = len(plan.places) - len(plan.chosen)
    jobs = plan.jobs()
    signal = _train(jobs, plan.out, how, "runs")
    n_unreadable = show(plan, page=True, form=form)
    left = len(unfinished(jobs))
    if signal and left:
        return _stopped(signal, left, "runs")
    return 1 if left or n_failed or n_unreadable else 0


def sweep(search: Search, protocols: Sequence[str], final_seeds: Sequence[int], folder: Path, how: Execution) -> int:
    """Search, write down the choice, train the winner of each protocol on all data. Returns the exit code."""
    from gcr.analysis.load import group_runs
    from gcr.analysis.tables import sheets
    from gcr.paper.grid_search import check_choice, choose, write_choice
    from gcr.paper.plan import distinct, unfinished

    trials = search.trials(folder)
    check_choice(search, folder)
    check_ready([job.experiment for job in trials], how, set())
    for note in _common_seeds(search.seeds, final_seeds, "in --seeds and --final-seeds"):
        err.say(note, "yellow")
    _make(folder)
    if signal := _train(trials, folder, replace(how, model=False), "trials"):
        return _stopped(signal, len(unfinished(trials)), "trials")
    choice = choose(search, folder)
    if choice is None:
        return 1  # what failed has been said
    print_sheets(_ranking_sheets(search, choice, protocols), _more_points(choice, protocols))
    written = write_choice(search, choice, folder, protocols)
    out.say(f"choice: {written}")
    jobs = distinct(
        search.final(choice.values(protocol), seed, folder) for protocol in protocols for seed in final_seeds
    )
    signal = _train(jobs, folder, how, "runs")
    runs = group_runs(job.folder for job in jobs if job.folder.finished)
    warn_of_unreadable(runs)
    if runs.groups:
        print_sheets(sheets(runs.groups), runs.notes)
    left = len(unfinished(jobs))
    return _stopped(signal, left, "runs") if signal and left else int(left > 0)


def show(plan: Plan, page: bool, form: str = "terminal") -> int:
    """The table from what is there; missing cells are shown as missing. Returns how many results cannot be read."""
    from gcr.analysis.load import group_runs
    from gcr.paper import compare_to_paper

    plan = plan.with_choices() if page else plan.with_choices(complain=_complain)  # who has trained has said it
    mark = plan.request.mark
    runs = group_runs(job.folder for job in plan.jobs() if job.folder.finished)
    warn_of_unreadable(runs)
    found = compare_to_paper.compare(runs.groups, plan.table, plan.values)
    found_notes = [*compare_to_paper.verdict_notes(found, mark), *found.notes]
    notes = [*_notes_of(plan, plan.seeds), *plan.elsewhere(), *runs.notes, *found_notes]
    print_table(form, compare_to_paper.sheets(found, alone=mark), compare_to_paper.records(found, alone=mark), notes)
    if plan.table.name == MAIN_FIGURE and runs.groups:
        from gcr.paper.main_figure import draw_main_figure

        for file in draw_main_figure(found.rows, plan.out, mark, bool(plan.searches), plan.request.variant or ""):
            err.say(f"figure: {file}")
    if page and runs.groups:
        _write_page(plan)
    return len(runs.unreadable)


def _write_page(asked: Plan) -> None:
    """The page of the whole table, whatever part and seeds of it were asked for now: all its runs in the folder."""
    from gcr.analysis.load import group_runs
    from gcr.paper import compare_to_paper
    from gcr.paper.plan import make_plan
    from gcr.report import HeadlineTable, write_report
    from gcr.runs.folder import ended_runs

    request = replace(asked.request, scenarios=(), methods=(), buffers=(), seeds=(), protocols=())
    plan, mark = make_plan(request, asked.out).with_choices(), request.mark
    names = dict.fromkeys(job.folder.path.parent for job in plan.jobs())
    ended = [ended_runs(name) for name in names]
    runs = group_runs(
        [folder for finished, _, _ in ended for folder in finished],
        [folder for _, diverged, _ in ended for folder in diverged],
    )
    found = compare_to_paper.compare(runs.groups, plan.table, plan.values)
    seeds = {seed for group in runs.groups for seed in group.seeds}
    notes = [*_notes_of(plan, seeds), *runs.notes, *compare_to_paper.verdict_notes(found, mark), *found.notes]
    searched = bool(plan.searches)
    first = HeadlineTable(plan.table.name, found, notes, searched, mark)
    own_search = searched and not plan.table.grids
    marks = [f"variant={request.variant}"] if request.variant else []
    marks += ["searched values"] * own_search + [f"{mark}: a quick look"] * bool(mark)
    title = plan.table.title + (f" ({'; '.join(marks)})" if marks else "")
    asked_for = [request.precision or "", request.variant or ""]
    parts = [request.table, "sweep" * own_search, *asked_for, mark.replace(" ×", "-")]
    file = plan.out / f"{'-'.join(filter(None, parts))}.html"
    written = write_report(runs.groups, file, title, runs.unreadable, first)
    err.say(f"page: {written}")


def _of_trials(plan: Plan, seeds: Iterable[int]) -> list[str]:
    return _common_seeds(plan.request.trial_seeds, seeds, "of the trials, too") if plan.searches else []


def _common_seeds(trials: Iterable[int], finals: Iterable[int], where: str) -> list[str]:
    both = sorted({*trials} & {*finals})
    named = f"seed {both[0]} is" if len(both) == 1 else f"seeds {', '.join(map(str, both))} are"
    return [f"{named} {where}: seeds that chose a setting do not prove it"] if both else []


def _notes_of(plan: Plan, seeds: Iterable[int]) -> list[str]:
    notes = _of_trials(plan, seeds)
    if plan.request.mark:
        notes.append(f"{plan.request.mark}: a quick look, not a reproduction; the paper's values are left out")
    if plan.searches:
        notes.append("values were chosen by a search on 10% of the training images: sweep-*.json next to the runs")
        lacking = len(plan.places) - len(plan.chosen)
        if lacking:
            notes.append(
                f"{lacking} of {len(plan.places)} places have no chosen values yet: trials are missing or failed"
            )
    return notes


def _train(jobs: Sequence[Job], folder: Path, how: Execution, name: str) -> int:
    """Train what is missing, with progress, together with other processes that use the folder. The signal that stopped
    it, or 0."""
    from gcr.cli.progress import TableProgress
    from gcr.paper.plan import unfinished
    from gcr.runs.job import check_folders
    from gcr.runs.shared_folder import train_together

    check_folders(jobs)
    waiting = unfinished(jobs)
    before = len(jobs) - len(waiting)
    if before:
        err.say(f"{before} of {len(jobs)} {name} were there already")
    if not waiting:
        return 0
    with TableProgress(waiting, err, _weights(jobs, waiting, folder, how), before, name) as progress:
        ending = train_together(waiting, progress.listen, how, progress.say)
    here = progress.done - progress.elsewhere
    others = f", {progress.elsewhere} by another process" if progress.elsewhere else ""
    err.say(f"{name}: {here} trained here{others}, {progress.failed} failed")
    return ending.signal


def _weights(jobs: Sequence[Job], waiting: Sequence[Job], folder: Path, how: Execution) -> list[float]:
    """How long each run takes, relative to the others: as measured, or else by what goes through the network."""
    from gcr.runs.estimate import Estimator
    from gcr.runs.local import pick_device

    device = pick_device(how.device if how.engine == "local" else "auto")
    estimator = Estimator(folder / "estimate.json", how, device)
    estimator.learn(job for job in jobs if job.folder.finished)
    return estimator.weights([job.experiment for job in waiting])


def _ranking_sheets(search: Search, choice: Choice, protocols: Sequence[str]) -> list[Sheet]:
    """The best points of each protocol, the chosen one first."""
    from gcr.analysis.formats import Entry, Sheet
    from gcr.analysis.load import METRICS

    found = []
    for protocol in protocols:
        rows = []
        for place, point in enumerate(choice.ranking[protocol][:SHOWN_POINTS]):
            values = ", ".join(f"{key}={value}" for key, value in point["values"].items())
            mean = "failed" if point["mean"] is None else f"{point['mean']:.2f}"
            rows.append([Entry(values, bold=place == 0), Entry(mean, bold=place == 0), Entry(str(point["n"]))])
        judged = f"{protocol.replace('il', 'IL')} validation {METRICS[search.metric]}"
        title = f"{search.method} on {search.scenario}, {judged}: percent"
        found.append(Sheet(title, ["values", "mean", "n"], rows))
    return found


def _more_points(choice: Choice, protocols: Sequence[str]) -> list[str]:
    more = len(choice.ranking[protocols[0]]) - SHOWN_POINTS
    return [f"{more} more points of the grid are in the file"] if more > 0 else []


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {folder} ({error.strerror}); choose another --out") from None


def _complain(text: str) -> None:
    err.say(f"failed: {text}", "red")


def _stopped(signal: int, left: int, name: str) -> int:
    err.say(f"stopped: {left} {name} are unfinished", "red")
    err.say(f"continue with: {this_command()}", "red")
    return 128 + signal
