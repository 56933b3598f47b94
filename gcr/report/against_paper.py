"""Ours against the paper's, over all of its tables that some of the runs repeat.

On the page of a table, that table comes first and is taken as it was made there. Where its runs have other values than
the paper's, no other table is compared: that would go by the paper's values again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcr import paper
from gcr.analysis.load import METRICS, Group
from gcr.paper.compare_to_paper import Row as CellRow
from gcr.paper.compare_to_paper import bytes_of, compare, verdict_notes
from gcr.report.cells import Cell, Facets, Row, Table, number_cell
from gcr.report.charts import Mark, Scatter, scatter
from gcr.report.headline_table import HeadlineTable, facet_of, protocol_of
from gcr.settings import BadInput


@dataclass(frozen=True)
class PaperTable:
    title: str
    n_repeated: int
    n_cells: int
    table: Table
    notes: list[str]


@dataclass(frozen=True)
class AgainstPaper:
    charts: list[Scatter]
    tables: list[PaperTable]
    notes: list[str]


def against_paper(groups: Sequence[Group], facets: Facets, first: HeadlineTable | None = None) -> AgainstPaper:
    """Empty where no run repeats a cell of the paper."""
    tables, repeated = [], first.repeated if first else []
    others = paper.tables() if first is None or first.by_paper else ()
    for name in others:
        if first is not None and name == first.name:
            continue
        try:
            found = compare(groups, name)
        except BadInput as error:  # intervals need a library that may not be here
            return AgainstPaper([], [], [f"the runs are not compared with the paper's tables: {error}"])
        rows = [row for row in found.rows if row.ours is not None and row.cell.mean is not None]
        if rows:
            repeated += rows
            about = paper.table(name)
            n_repeated = len({row.cell for row in rows})
            table = _table(about.title, rows, facets)
            notes = [*verdict_notes(found), *found.notes]
            tables.append(PaperTable(about.title, n_repeated, len(about.cells), table, notes))
    charts = []
    series = list(dict.fromkeys(row.cell.method for row in repeated))
    for metric in METRICS:
        if marks := [_mark(row, facets) for row in repeated if row.cell.metric == metric]:
            charts.append(scatter(METRICS[metric], marks, series))
    return AgainstPaper(charts, tables, [])


def _mark(row: CellRow, facets: Facets) -> Mark:
    cell = row.cell
    assert row.ours is not None
    assert cell.mean is not None
    where = f"{row.name}, {cell.scenario}, {cell.regime}, {protocol_of(row)}, K = {cell.buffer}"
    title = f"{where}: ours {row.ours} (n = {row.ours.n}), the paper's {cell}"
    return Mark(facet_of(row, facets), cell.method, cell.protocol == "task-il", row.ours, cell.mean, title)


def _table(title: str, rows: Sequence[CellRow], facets: Facets) -> Table:
    columns = ["method", "scenario", "regime", "protocol", "metric", "K", "ours", "seeds"]
    columns += ["bytes", "paper: mean ± spread", "difference", "verdict"]
    made = []
    for row in rows:
        cell, ours = row.cell, row.ours
        words = [row.name, cell.scenario, cell.regime, protocol_of(row), METRICS[cell.metric]]
        numbers = [
            number_cell(cell.buffer),
            Cell(str(ours), ours.mean if ours else None, bold=row.bold),
            number_cell(ours.n if ours else None),
            Cell(bytes_of(row), row.group.memory_bytes if row.group else None),
            Cell(str(cell), cell.mean, bold=cell.bold),
            number_cell(row.difference, "{:+.2f}"),
            Cell(row.verdict),
        ]
        made.append(Row(facet_of(row, facets), [*(Cell(word) for word in words), *numbers]))
    table = Table(f"next to the paper, {title}", columns, made, words=5)
    return table.without_constant(("scenario", "regime", "protocol", "metric", "K"))
