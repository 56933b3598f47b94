"""A table of the paper as a list of runs: what it asks for, what is there, what is missing.

Runs are found by their folder, which is named by the experiment and the values chosen for it. So tables that ask for
the same runs share them (accuracy and forgetting do), and so do class-IL and task-IL where both chose the same values.

>>> plan = make_plan(Request("er-gcr", methods=("er",), buffers=(500,), seeds=(0, 1)), Path("runs/paper"))
>>> [job.folder.path.as_posix() for job in plan.jobs()][:2]
['runs/paper/seq-cifar10-er-k500-lr0.03/seed-0', 'runs/paper/seq-cifar10-er-k500-lr0.03/seed-1']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gcr import paper, scenarios
from gcr.experiments.variants import check_variant
from gcr.paper import Place, Table
from gcr.paper.grid_search import (
    Search,
    check_grid,
    choose,
    compose_label,
    paper_grid,
    run_name,
    write_choice,
)
from gcr.runs.folder import RunFolder
from gcr.runs.job import Job
from gcr.settings import BadInput, unknown
from gcr.training.numerics import PRECISIONS

VALUES = ("paper", "sweep")


@dataclass(frozen=True)
class Request:
    """What of a table is asked for. Empty filters let everything through."""

    table: str
    scenarios: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    buffers: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()  # empty: as many as the paper has, after those of trials where values are searched
    values: str = ""  # paper: those that its search chose; sweep: our own search; empty: paper where it has any
    epochs_scale: float = 1.0
    precision: str | None = None
    variant: str | None = None  # of GCR: paper or released
    trial_seeds: tuple[int, ...] = (0,)
    protocols: tuple[str, ...] = ()  # class-il, task-il: each has values, and so runs, of its own

    def __post_init__(self) -> None:
        if not 0 < self.epochs_scale <= 1:
            raise BadInput(f"epochs-scale must be above 0 and at most 1, got {self.epochs_scale:g}")
        if self.values and self.values not in VALUES:
            raise unknown("source of values", self.values, VALUES)
        if self.variant is not None:
            check_variant(self.variant)

    @property
    def mark(self) -> str:
        """What a quick look carries wherever it is shown."""
        return f"epochs ×{self.epochs_scale:g}" if self.epochs_scale < 1 else ""


@dataclass(frozen=True)
class Plan:
    """The part of a table that was asked for. ``chosen``: the settings of each place's runs, once they are known."""

    request: Request
    out: Path
    table: Table  # with the cells that were asked for
    seeds: tuple[int, ...]
    searches: dict[Place, Search]  # by place; places of two protocols share one. Empty with the paper's values
    chosen: dict[Place, dict[str, Any]]

    @property
    def places(self) -> list[Place]:
        return list({cell.place: None for cell in self.table.cells})

    def jobs_of(self, place: Place) -> list[Job]:
        """The runs of a place; none while its values are not known."""
        return self._jobs.get(place, [])

    def jobs(self) -> list[Job]:
        """All runs whose values are known, each once."""
        return distinct(job for place in self.places for job in self.jobs_of(place))

    @cached_property
    def _jobs(self) -> dict[Place, list[Job]]:
        """Asked for several times by each command, and a table has over a thousand."""
        return {place: self._make_jobs(place, values) for place, values in self.chosen.items()}

    def _make_jobs(self, place: Place, values: Mapping[str, Any]) -> list[Job]:
        regime, _, scenario, method, buffer = place
        first = compose_label(scenario, regime, method, buffer, self.seeds[0], values)
        name = run_name(first, values)
        experiments = [replace(first, seed=seed) for seed in self.seeds]
        return [Job(experiment, RunFolder.of(self.out, experiment, name)) for experiment in experiments]

    def trials(self) -> list[Job]:
        searches = {id(search): search for search in self.searches.values()}.values()
        return distinct(job for search in searches for job in search.trials(self.out))

    def with_choices(self, complain: Callable[[str], None] = lambda text: None) -> Plan:
        """The same plan with the choices of finished searches, which are written next to the runs."""
        chosen = dict(self.chosen)
        made: dict[int, Any] = {}
        for place, search in self.searches.items():
            if id(search) not in made:
                try:
                    made[id(search)] = choose(search, self.out)
                except BadInput as error:
                    made[id(search)] = None
                    complain(str(error))
                if made[id(search)] is not None:
                    write_choice(search, made[id(search)], self.out)
            if made[id(search)] is not None:
                chosen[place] = {**made[id(search)].values(place[1]), **search.common}
        return replace(self, chosen=chosen)

    def elsewhere(self) -> list[str]:
        """Whether missing runs are there with another precision, which has folders of its own."""
        missing = [number for number, job in enumerate(self.jobs()) if not job.folder.finished]
        if self.searches or not missing:
            return []
        notes = []
        for precision in (None, *PRECISIONS):
            if precision != self.request.precision:
                jobs = make_plan(replace(self.request, precision=precision), self.out).jobs()
                if n := sum(jobs[number].folder.finished for number in missing):
                    how = f"with --precision {precision}" if precision else "without --precision"
                    notes.append(f"of {len(missing)} missing runs {n} {'is' if n == 1 else 'are'} here {how}")
        return notes

    @property
    def values(self) -> Mapping[Place, Mapping[str, Any]] | None:
        """Values that replace the paper's chosen ones when runs are compared with its cells."""
        return self.chosen if self.searches or self.request.mark else None


def asked_table(request: Request) -> Table:
    """With the cells that were asked for."""
    table = paper.table(request.table)
    _check_filters(table, request)
    cells = tuple(cell for cell in table.cells if _asked_for(cell, request))
    if not cells:
        raise BadInput(f"nothing of {table.name} matches all filters together; leave one out")
    return replace(table, cells=cells)


def make_plan(request: Request, out: Path) -> Plan:
    table = asked_table(request)
    if request.mark and all(cell.regime == "online" for cell in table.cells):
        raise BadInput(f"epochs-scale has nothing to scale in {table.name}; a stream passes once. Leave it out")
    own = bool(table.grids)
    if own and request.values == "paper":
        raise BadInput(f"values must be sweep for {table.name}, got paper; the paper has none for it")
    searched = own or request.values == "sweep"
    first = max(request.trial_seeds) + 1 if searched else 0
    plan = Plan(request, out, table, request.seeds or tuple(range(first, first + table.seeds)), {}, {})
    if searched:
        return replace(plan, searches=_searches(table, request))
    chosen = {
        place: {**paper.chosen(*place).overrides, **_common(table, request, place[2], place[0], place[3])}
        for place in plan.places
    }
    return replace(plan, chosen=chosen)


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Each run once. Two experiments for one folder would be a mistake in its name."""
    found: dict[Path, Job] = {}
    for job in jobs:
        assert found.setdefault(job.folder.path, job).experiment == job.experiment, job.folder.path
    return list(found.values())


def unfinished(jobs: Iterable[Job]) -> list[Job]:
    return [job for job in jobs if not job.folder.ended]


def _searches(table: Table, request: Request) -> dict[Place, Search]:
    made: dict[tuple[str, str, str, int], Search] = {}
    found = {}
    for place in {cell.place: None for cell in table.cells}:
        regime, _, scenario, method, buffer = place
        key = (regime, scenario, method, buffer)
        if key not in made:
            common = _common(table, request, scenario, regime, method)
            raw = table.grids.get(method)
            grid = check_grid(raw, f"of {table.name}") if raw else paper_grid(regime, method)
            made[key] = Search(scenario, regime, method, buffer, grid, common, request.trial_seeds)
        found[place] = made[key]
    return found


def _common(table: Table, request: Request, scenario: str, regime: str, method: str) -> dict[str, Any]:
    """Settings of all runs of a table on a scenario, beyond the chosen values. Online, epochs is always 1."""
    common = dict(table.settings)
    if request.epochs_scale < 1 and regime == "offline":
        epochs = common.get("epochs", scenarios.entry(scenario).epochs)
        common["epochs"] = max(1, round(request.epochs_scale * epochs))
    if request.precision is not None:
        common["precision"] = request.precision
    if request.variant is not None and _changes(request.variant, scenario, regime, method):
        common["variant"] = request.variant
    return common


def _changes(variant: str, scenario: str, regime: str, method: str) -> bool:
    """Whether a variant changes the runs of a row; if not, they have their usual names."""
    without = compose_label(scenario, regime, method, None, 0, {})
    return without.has_variants and compose_label(scenario, regime, method, None, 0, {"variant": variant}) != without


def _asked_for(cell: paper.Cell, request: Request) -> bool:
    return (
        (not request.scenarios or cell.scenario in request.scenarios)
        and (not request.methods or cell.method in request.methods)
        and (not request.buffers or cell.buffer in request.buffers)
        and (not request.protocols or cell.protocol in request.protocols)
    )


def _check_filters(table: Table, request: Request) -> None:
    """Refuse what the table does not have, and say what it has."""
    has: dict[str, tuple[tuple[Any, ...], list[Any]]] = {
        "scenario": (request.scenarios, list(dict.fromkeys(cell.scenario for cell in table.cells))),
        "method": (request.methods, list(dict.fromkeys(cell.method for cell in table.cells))),
        "buffer": (request.buffers, sorted({cell.buffer for cell in table.cells})),
        "protocol": (request.protocols, list(dict.fromkeys(cell.protocol for cell in table.cells))),
    }
    for name, (asked, known) in has.items():
        if strange := [str(value) for value in asked if value not in known]:
            raise BadInput(
                f"{name} must be one of {', '.join(map(str, known))} in {table.name}, got {', '.join(strange)}"
            )
