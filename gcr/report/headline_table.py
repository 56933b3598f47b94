"""The table that a page was made for, first on it: what the terminal printed, bold and notes included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcr.analysis.load import Group
from gcr.paper.compare_to_paper import Comparison, by_sheet, columns_of, entries
from gcr.paper.compare_to_paper import Row as CellRow
from gcr.report.cells import Cell, Facets, Row, Table


@dataclass(frozen=True)
class HeadlineTable:
    """``mark`` says that the runs are a quick look: the paper's values are left out then."""

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


def facet_of(row: CellRow, facets: Facets) -> int:
    cell = row.cell
    return facets.number(cell.scenario, cell.regime, str(cell.buffer), cell.method, row.name)


def protocol_of(row: CellRow) -> str:
    return row.cell.protocol.replace("il", "IL")


def _cells(row: CellRow) -> list[Cell]:
    ours, cell = row.ours, row.cell
    held = row.group.memory_bytes if row.group else None
    values = [None, cell.buffer, ours.mean if ours else None, ours.n if ours else 0, held]
    values += [cell.mean, row.difference, None]
    return [Cell(entry.text, value, bold=entry.bold) for entry, value in zip(entries(row), values, strict=True)]
