"""What a table asks for: runs that are done, running and missing, data that is not here, and the time it will take."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gcr.cli.console import err, out, print_sheets
from gcr.settings import BadInput

if TYPE_CHECKING:
    from gcr.analysis.formats import Entry, Sheet
    from gcr.paper.plan import Plan
    from gcr.runs.job import Execution, Job

COLUMNS = ["method", "K", "values for", "runs", "done", "running", "missing"]


@dataclass
class Count:
    runs: int = 0
    done: int = 0
    running: int = 0

    @property
    def missing(self) -> int:
        return self.runs - self.done - self.running


def dry_run(plan: Plan, how: Execution, measure_seconds: float) -> None:
    """List the runs, then measure how long a step takes, unless that is known, and say how long all will take."""
    from gcr.paper.plan import unfinished

    plan = plan.with_choices(complain=lambda text: err.say(text, "red"))
    jobs, trials = plan.jobs(), plan.trials()
    print_sheets(_sheets(plan), [*_notes(plan, jobs, trials), *plan.elsewhere()])
    for scenario in dict.fromkeys(job.experiment.scenario for job in unfinished([*trials, *jobs])):
        _say_if_lacking(scenario)
    _say_time(plan, how, measure_seconds)


def count(jobs: Sequence[Job]) -> Count:
    done = [job.folder.ended for job in jobs]
    running = sum(job.folder.busy for job, is_done in zip(jobs, done, strict=True) if not is_done)
    return Count(len(jobs), sum(done), running)


def _sheets(plan: Plan) -> list[Sheet]:
    """A table per scenario and regime, a row per place: the runs for which its values were chosen."""
    from gcr.analysis.formats import Sheet

    rows: dict[str, list[list[Entry]]] = {}
    searches = {id(search): (place, search) for place, search in reversed(plan.searches.items())}
    for place, search in reversed(searches.values()):
        found = count(search.trials(plan.out))
        rows.setdefault(f"{place[2]}, {place[0]}: trials", []).append(_row(place[3], place[4], "both", found))
    for place in plan.places:
        regime, protocol, scenario, method, buffer = place
        found = count(plan.jobs_of(place)) if place in plan.chosen else Count(len(plan.seeds))
        protocol = protocol.replace("il", "IL") + ("" if place in plan.chosen else ", not chosen yet")
        rows.setdefault(f"{scenario}, {regime}: runs", []).append(_row(method, buffer, protocol, found))
    mark = f" ({plan.request.mark})" if plan.request.mark else ""
    return [Sheet(title + mark, COLUMNS, lines) for title, lines in rows.items()]


def _row(method: str, buffer: int, protocol: str, found: Count) -> list[Entry]:
    from gcr.analysis.formats import Entry

    numbers = [found.runs, found.done, found.running, found.missing]
    return [Entry(method), Entry(str(buffer)), Entry(protocol), *(Entry(str(number)) for number in numbers)]


def _notes(plan: Plan, jobs: Sequence[Job], trials: Sequence[Job]) -> list[str]:
    asked = len(plan.places) * len(plan.seeds)
    known = sum(len(plan.seeds) for place in plan.places if place in plan.chosen)
    notes = []
    if trials:
        found = count(trials)
        notes.append(f"{found.runs} trials: {found.done} done, {found.running} running, {found.missing} missing")
    found = count(jobs)
    shared = f"; {known - found.runs} serve two places" if known > found.runs else ""
    later = f"; up to {asked - known} more once values are chosen" if asked > known else ""
    counts = f"{found.done} done, {found.running} running, {found.missing} missing"
    if not known:
        notes.append(f"{asked} runs asked for; their values are chosen once the trials are done")
    elif shared or later:
        notes.append(f"{asked} runs asked for, {found.runs} of them different ones: {counts}{shared}{later}")
    else:
        notes.append(f"{asked} runs: {counts}")
    return notes


def _say_if_lacking(scenario: str) -> None:
    from gcr.scenarios import entry

    try:
        entry(scenario).check_present()
    except BadInput as error:
        out.say(f"- {error}")


def _say_time(plan: Plan, how: Execution, measure_seconds: float) -> None:
    from gcr.paper.plan import unfinished
    from gcr.runs.estimate import Estimator, in_words
    from gcr.runs.local import pick_device

    device = pick_device(how.device)
    estimator = Estimator(plan.out / "estimate.json", how, device)
    everything = [*plan.trials(), *plan.jobs()]
    left = [job.experiment for job in unfinished(everything)]
    for place, search in plan.searches.items():
        if place not in plan.chosen:
            left += [search.final({}, seed, plan.out).experiment for seed in plan.seeds]
    if not left:
        out.say("nothing is left to train")
        return
    estimator.learn(job for job in everything if job.folder.finished)
    if measure_seconds > 0 and not {estimator.kind(experiment) for experiment in left} <= {
        *estimator.steps,
        *estimator.runs,
    }:
        err.say(f"measuring steps, for {measure_seconds:g} s at most …")
        estimator.measure(left, measure_seconds)
    found = estimator.estimates(left)
    workers = min(how.processes or os.cpu_count() or 1, len(left)) if device.type == "cpu" else 1
    seconds = sum(estimate.seconds for estimate in found if estimate is not None) / workers
    sources = Counter(estimate.source if estimate else "unknown" for estimate in found)
    counts = ", ".join(f"{number} by {source}" for source, number in sources.most_common() if source != "unknown")
    unknown = f"; {sources['unknown']} runs are not in it: nothing like them was measured" if sources["unknown"] else ""
    where = f"{workers} at a time on the CPU" if device.type == "cpu" else "one by one on the GPU; packs take less"
    if counts:
        text = f"time left: about {in_words(seconds)}, {where} (runs estimated: {counts}{unknown})"
    else:
        text = "time left: unknown, since nothing was measured; give --measure 10"
    out.say(text)
