"""Ours against the paper's, over all of its tables that some of the runs repeat.

On the page of a table, that table comes first and is taken as it was made there. Where its runs have other values than
the paper's, no other table is compared: that would go by the paper's values again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcr import paper
from gcr.analysis.load import METRICS, Group
from gcr.paper.compare_to_paper import (
    Comparison,
    by_sheet,
    bytes_of,
    columns_of,
    compare,
    entries,
    interval_of,
    verdict_notes,
)
from gcr.paper.compare_to_paper import Row as CellRow
from gcr.report.cells import Cell, Facets, Row, Table, number_cell
from gcr.report.charts import Mark, Scatter, scatter
from gcr.settings import BadInput


@dataclass(frozen=True)
class HeadlineTable:
    """The table that a page was made for, first on it: what the terminal printed, bold and notes included.

    ``mark`` says that the runs are a quick look: the paper's values are left out then.
    """

    name: str
    found: Comparison
    notes: Sequence[str]
    searched: bool = False  # the values of its runs are those of our search, not the paper's
    mark: str = ""

    @property
    def by_paper(self) -> bool:
        """Whether its runs have the paper's values, so that other tables of it may be compared too."""
        return not self.searched and not self.mark

    @property
    def repeated(self) -> list[CellRow]:
        """The rows that may be compared with a value of the paper."""
        if self.mark:
            return []
        return [row for row in self.found.rows if row.ours is not None and row.cell.mean is not None]

    @property
    def title(self) -> str:
        parts = ["searched values"] if self.searched else []
        parts += [f"{self.mark}, a quick look"] if self.mark else []
        return f"The table: {'; '.join(parts)}" if parts else "The table"

    def tables(self, facets: Facets) -> list[Table]:
        """One per sheet of the terminal's, with the same rows and columns."""
        columns = columns_of(self.found, self.mark)
        return [
            Table(title, columns, [Row(facet_of(row, facets), _cells(row)[: len(columns)]) for row in members])
            for title, members in by_sheet(self.found, self.mark).items()
        ]

    def serves(self, group: Group) -> str:
        """The protocols whose values in the table come from these runs."""
        return ", ".join(dict.fromkeys(protocol_of(row) for row in self.found.rows if row.group is group))


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
    columns = ["method", "scenario", "regime", "protocol", "metric", "K", "ours", "95% interval"]
    columns += ["seeds", "bytes", "paper: mean ± spread", "difference", "verdict"]
    made = []
    for row in rows:
        cell, ours = row.cell, row.ours
        words = [row.name, cell.scenario, cell.regime, protocol_of(row), METRICS[cell.metric]]
        numbers = [
            number_cell(cell.buffer),
            Cell(str(ours), ours.mean if ours else None, bold=row.bold),
            Cell(interval_of(row)),
            number_cell(ours.n if ours else None),
            Cell(bytes_of(row), row.group.memory_bytes if row.group else None),
            Cell(str(cell), cell.mean, bold=cell.bold),
            number_cell(row.difference, "{:+.2f}"),
            Cell(row.verdict),
        ]
        made.append(Row(facet_of(row, facets), [*(Cell(word) for word in words), *numbers]))
    table = Table(f"next to the paper, {title}", columns, made, words=5)
    return table.without_constant(("scenario", "regime", "protocol", "metric", "K"))


def facet_of(row: CellRow, facets: Facets) -> int:
    cell = row.cell
    return facets.number(cell.scenario, cell.regime, str(cell.buffer), cell.method, row.name)


def protocol_of(row: CellRow) -> str:
    return row.cell.protocol.replace("il", "IL")


def _cells(row: CellRow) -> list[Cell]:
    ours, cell = row.ours, row.cell
    held = row.group.memory_bytes if row.group else None
    values = [None, cell.buffer, ours.mean if ours else None, None, ours.n if ours else 0, held]
    values += [cell.mean, row.difference, None]
    return [Cell(entry.text, value, bold=entry.bold) for entry, value in zip(entries(row), values, strict=True)]
