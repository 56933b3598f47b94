"""Runs compared with a table of the paper, cell by cell.

A run is compared with a cell if it keeps to all that the paper fixes for it (``paper.departures``). That includes the
values chosen for the cell's protocol: runs with class-IL's values are not compared with the paper's task-IL. Bold
follows the paper's rule in each column: the best, and all not significantly worse (p < 0.05, not corrected). The test
is that of ``gcr compare``. The paper's ± is shown, and no test uses it. Seeds that chose a setting do not prove it:
runs in a folder that says so are shown without a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gcr import paper
from gcr.analysis.compare import why_unpaired
from gcr.analysis.formats import Entry, Sheet
from gcr.analysis.load import CHOSE, FORGETTING, METRICS, PROTOCOLS, Group
from gcr.analysis.statistics import (
    BOLD_P,
    FEW_SEEDS,
    Best,
    Spread,
    best,
    interval,
    not_apart,
    one_sample_p,
    significant_after_holm,
    verdict,
)
from gcr.analysis.tables import distinctions
from gcr.paper import Cell, Place, Table
from gcr.settings import BadInput

COLUMNS = [
    "method",
    "K",
    "ours: mean ± SEM",
    "95% interval",
    "n",
    "bytes",
    "paper: mean ± spread",
    "difference",
    "verdict",
]
OURS_ALONE = 6  # columns that need no value of the paper
MISSING = "missing"
NAMED = 8  # runs left out that are named
PAPERS = {"paper_mean", "paper_spread", "paper_bold", "difference", "paper_inside_95", "verdict"}  # of a record


@dataclass(frozen=True)
class Row:
    """A cell of the paper and the runs that repeat it, if there are any."""

    cell: Cell
    name: str
    metric: str  # of ours: the cell's, but for another formula of forgetting
    ours: Spread | None = None  # None: missing
    interval: tuple[float, float] | None = None  # 95%; None for a single seed
    by_seed: dict[int, float] | None = None
    bold: bool = False
    group: Group | None = None  # the runs
    significant: bool = False  # apart from the paper's mean after Holm's correction over the table

    @property
    def difference(self) -> float | None:
        return self.ours.mean - self.cell.mean if self.ours and self.cell.mean is not None else None

    @property
    def inside(self) -> bool | None:
        """Whether the paper's mean lies in our interval."""
        if self.interval is None or self.cell.mean is None or not self.comparable:
            return None
        return self.interval[0] <= self.cell.mean <= self.interval[1]

    @property
    def apart(self) -> bool:
        """Online, methods with task boundaries are evaluated at these alone, which changes forgetting."""
        by_task = self.group is not None and self.group.experiment.method.stages == "tasks"
        return by_task and self.cell.regime == "online" and self.cell.metric == "forgetting"

    @property
    def comparable(self) -> bool:
        return not self.apart and not (self.group is not None and self.group.chose)

    @property
    def p(self) -> float | None:
        """Of ours against the paper's mean; None where there is nothing to test, or with too few seeds."""
        if self.ours is None or self.ours.n < FEW_SEEDS or self.cell.mean is None or not self.comparable:
            return None
        return one_sample_p(self.ours, self.cell.mean)

    @property
    def verdict(self) -> str:
        if self.ours is None or self.cell.mean is None or not self.comparable:
            return "–"
        return verdict(self.ours, self.cell.mean) + "*" * self.significant


@dataclass(frozen=True)
class Comparison:
    rows: list[Row]
    notes: list[str]


def compare(
    groups: Sequence[Group],
    table: str | Table,
    values: Mapping[Place, Mapping[str, Any]] | None = None,
    forgetting: str = "forgetting",
) -> Comparison:
    """All cells of a table of the paper, each with the groups that repeat it. ``values`` stand in for those that the
    paper's search chose; a place without any has no runs. ``forgetting``: the metric that is compared with the paper's
    forgetting."""
    about = paper.table(table) if isinstance(table, str) else table
    if values is None:
        check_of_paper(about)
    places: dict[tuple[object, ...], list[int]] = {}
    for number, group in enumerate(groups):
        places.setdefault(_place_of_group(group), []).append(number)
    rows: list[Row] = []
    departures: dict[int, list[str]] = {}  # of runs at the place of a cell, the fewest
    for cell in about.cells:
        matching = []
        for number in places.get(_place_of_cell(cell), []):
            if values is not None and cell.place not in values:
                continue
            found = paper.departures(groups[number].experiment, cell, values[cell.place] if values else None)
            departures[number] = min(departures.get(number, found), found, key=len)
            if not found:
                matching.append(groups[number])
        rows += _rows(cell, _without_repeats(matching), forgetting)
    columns: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        columns.setdefault(row.cell.column, []).append(row)
    bests = {column: _best(members) for column, members in columns.items()}
    apart = significant_after_holm([row.p for row in rows])
    rows = [
        replace(row, bold=row.ours is not None and row.name in bests[row.cell.column].labels, significant=of)
        for row, of in zip(rows, apart, strict=True)
    ]
    notes = _test_notes(list(bests.values()))
    if about.pairwise_p is not None:
        notes += [text for members in columns.values() for text in _pairwise_notes(members, about.pairwise_p)]
    printed = [f"of the paper's table: {note}" for note in about.notes]
    left_out = [(groups[number], found) for number, found in departures.items() if found]
    whose = _value_notes(about.cells) if values is None else []
    return Comparison(rows, [*notes, *_left_out_notes(left_out), *whose, *printed])


def formula_of(table: Table, metrics: str | None) -> str:
    """The formula of forgetting that ``--metrics`` asks for."""
    if metrics is None:
        return FORGETTING[0]
    of_forgetting = any(cell.metric == "forgetting" for cell in table.cells)
    if metrics not in FORGETTING or not of_forgetting:
        remedy = f"give {' or '.join(FORGETTING)}" if of_forgetting else "leave out --metrics"
        what = "forgetting" if of_forgetting else "accuracy"
        raise BadInput(f"the paper's table {table.name} has {what}, got --metrics {metrics}; {remedy}")
    return metrics


def _without_repeats(groups: Sequence[Group]) -> list[Group]:
    """Single runs of an experiment that others repeat with several seeds measure noise, not a cell."""
    several = {replace(group.experiment, seed=0) for group in groups if len(group.runs) > 1}
    return [group for group in groups if len(group.runs) > 1 or replace(group.experiment, seed=0) not in several]


def check_of_paper(table: Table) -> None:
    if table.grids:
        raise BadInput(f"{table.name} is not the paper's; print it with: gcr reproduce {table.name} --show")


def sheets(found: Comparison, alone: str = "") -> list[Sheet]:
    """A table per scenario, regime, protocol and metric; its rows by buffer size. ``alone`` marks runs that must not be
    compared with the paper's values: these are left out then, as they are where the paper has none."""
    columns = columns_of(found, alone)
    return [
        Sheet(title, columns, [entries(row)[: len(columns)] for row in members])
        for title, members in by_sheet(found, alone).items()
    ]


def columns_of(found: Comparison, alone: str = "") -> list[str]:
    without = bool(alone) or all(row.cell.mean is None for row in found.rows)
    return COLUMNS[:OURS_ALONE] if without else COLUMNS


def verdict_notes(found: Comparison, alone: str = "") -> list[str]:
    """What the last column says, where it is shown."""
    if len(columns_of(found, alone)) == OURS_ALONE:
        return []
    tests = sum(row.p is not None for row in found.rows)
    notes = []
    if any(row.verdict != "–" for row in found.rows):
        words = "the paper's mean is inside our 95% interval, or ours is above or below it"
        notes.append(f"verdict: {words}; undecided: inside, or one seed, with fewer than {FEW_SEEDS}")
    if tests:
        over = f"{tests} {'row' if tests == 1 else 'rows'} with {FEW_SEEDS} seeds or more"
        notes.append(f"*: p < {BOLD_P} after Holm's correction over {over}")
    formulas = {row.cell.table: row.metric for row in found.rows if row.metric in FORGETTING and row.ours}
    for table, of in formulas.items():
        other = FORGETTING[of == FORGETTING[0]]
        notes.append(f"the other formula of forgetting: gcr table PATHS --paper {table} --metrics {other}")
    if apart := [row.name for row in found.rows if row.apart]:
        notes.append(f"{', '.join(dict.fromkeys(apart))}: forgetting at the ends of tasks, not compared")
    if any(row.group is not None and row.group.chose for row in found.rows):
        notes.append(f"{CHOSE}: a setting was chosen on them, so they have no verdict")
    return notes


def by_sheet(found: Comparison, alone: str = "") -> dict[str, list[Row]]:
    """The rows of each sheet under its title."""
    without = len(columns_of(found, alone)) == OURS_ALONE
    mark = (f", {alone}" if alone else "") + (": percent" if without else ": percent, next to the paper's")
    split: dict[str, list[Row]] = {}
    for row in found.rows:
        cell = row.cell
        protocol = cell.protocol.replace("il", "IL")
        title = f"{cell.scenario}, {cell.regime}, {protocol} {METRICS[row.metric]}{mark}"
        split.setdefault(title, []).append(row)
    return {title: sorted(members, key=lambda row: row.cell.buffer) for title, members in split.items()}


def records(found: Comparison, alone: str = "") -> list[dict[str, object]]:
    """The same for CSV, with numbers in full; ``alone``, if it says anything, leaves out the paper's."""
    full = [_record(row) for row in found.rows]
    if not alone:
        return full
    return [{key: value for key, value in record.items() if key not in PAPERS} for record in full]


def _record(row: Row) -> dict[str, object]:
    return {
        "table": row.cell.table,
        "scenario": row.cell.scenario,
        "regime": row.cell.regime,
        "protocol": row.cell.protocol,
        "metric": row.metric,
        "method": row.name,
        "buffer": row.cell.buffer,
        "mean": row.ours.mean if row.ours else None,
        "sem": row.ours.sem if row.ours else None,
        "n": row.ours.n if row.ours else 0,
        "memory_bytes": row.group.memory_bytes if row.group else None,
        "low_95": row.interval[0] if row.interval else None,
        "high_95": row.interval[1] if row.interval else None,
        "bold": _yes_no(row.bold) if row.ours else None,
        "paper_mean": row.cell.mean,
        "paper_spread": row.cell.spread,
        "paper_bold": _yes_no(row.cell.bold),
        "difference": row.difference,
        "paper_inside_95": _yes_no(row.inside),
        "verdict": row.verdict.replace("–", "") or None,
    }


def _rows(cell: Cell, groups: Sequence[Group], forgetting: str) -> list[Row]:
    protocol, metric = cell.protocol.replace("-", "_"), forgetting if cell.metric == "forgetting" else cell.metric
    assert protocol in PROTOCOLS
    rows = []
    for group, words in zip(groups, distinctions(groups) if groups else [], strict=True):
        ours = group.spread(protocol, metric)
        if ours is not None:
            name = f"{cell.method} ({words})" if words else cell.method
            rows.append(Row(cell, name, metric, ours, interval(ours), group.by_seed(protocol, metric), group=group))
    return rows or [Row(cell, cell.method, metric)]


def _best(rows: Sequence[Row]) -> Best:
    higher = rows[0].cell.metric == "accuracy"
    return best(_present(rows), higher=higher, why_unpaired=_why_unpaired(rows))


def _present(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    return {row.name: row.by_seed for row in rows if row.by_seed and row.comparable}


def _why_unpaired(rows: Sequence[Row]) -> Callable[[str, str], str]:
    groups = {row.name: row.group for row in rows if row.group}
    return lambda a, b: why_unpaired(groups[a], groups[b])


def entries(row: Row) -> list[Entry]:
    """A row of a sheet, under ``COLUMNS``."""
    cell = row.cell
    return [
        Entry(row.name),
        Entry(str(cell.buffer)),
        Entry(str(row.ours) if row.ours else MISSING, row.bold),
        Entry(interval_of(row)),
        Entry(str(row.ours.n) if row.ours else "0"),
        Entry(bytes_of(row)),
        Entry(str(cell), cell.bold),
        Entry(f"{round(row.difference, 2) + 0.0:+.2f}" if row.difference is not None else "–"),
        Entry(row.verdict),
    ]


def interval_of(row: Row) -> str:
    return "–" if row.interval is None else f"{row.interval[0]:.2f} to {row.interval[1]:.2f}"


def bytes_of(row: Row) -> str:
    held = row.group.memory_bytes if row.group else None
    return "–" if held is None else f"{held:,}"


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _place_of_cell(cell: Cell) -> tuple[object, ...]:
    about = paper.label(cell.method)
    return cell.scenario, cell.regime, about.method, about.selector, cell.buffer


def _place_of_group(group: Group) -> tuple[object, ...]:
    made = group.experiment
    selector = buffer = None
    if made.memory is not None:
        buffer = made.memory.buffer
        if made.memory.selector.name != made.method.default_selector:
            selector = made.memory.selector.name
    return made.scenario, made.stream.regime, made.method.name, selector, buffer


def _test_notes(bests: Sequence[Best]) -> list[str]:
    notes = [f"bold: the best of a column and all not significantly worse (p < {BOLD_P}, not corrected)"]
    tests = [f"bold by {test}" for found in bests for test in found.tests]
    doubts = [text for found in bests for _, text in found.doubts]
    for text, count in Counter(tests + doubts).items():
        notes.append(f"{text} ({count} {'comparison' if count == 1 else 'comparisons'})")
    return notes


def _pairwise_notes(rows: Sequence[Row], level: float) -> list[str]:
    everything = _present(rows)
    present = {name: values for name, values in everything.items() if len(values) >= FEW_SEEDS}
    where = f"K = {rows[0].cell.buffer}"
    few = [f"{where}: {name} is not tested, seeds: {len(of)}" for name, of in everything.items() if name not in present]
    if len(present) < 2:
        return few if len(everything) > 1 else []
    pairs = [
        f"{a} and {b} (p = {found.p:.2g}, d = {found.effect:.2g})" if found.p is not None else f"{a} and {b} (untested)"
        for a, b, found in not_apart(present, level, _why_unpaired(rows))
    ]
    if not pairs:
        return [*few, f"{where}: {', '.join(present)} differ pairwise with p < {level:g}"]
    return [*few, f"{where}: not apart at p < {level:g}: {'; '.join(pairs)}"]


def _left_out_notes(left_out: Sequence[tuple[Group, list[str]]]) -> list[str]:
    """Runs at the place of a cell that do not repeat it."""
    notes = [f"left out: {group.name}, since {'; '.join(departures)}" for group, departures in left_out[:NAMED]]
    return [*notes, f"left out: {len(left_out) - NAMED} more"] if len(left_out) > NAMED else notes


def _value_notes(cells: Sequence[Cell]) -> list[str]:
    """Where the chosen values are our choice."""
    taken: dict[str, list[str]] = {}
    for cell in cells:
        found = paper.chosen(*cell.place)
        if found.ours:
            names = taken.setdefault(found.why, [])
            names += [cell.method] if cell.method not in names else []
    return [f"chosen values are our choice for {', '.join(names)}: those of {why}" for why, names in taken.items()]
