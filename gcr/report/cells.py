"""What the page is made of: tables whose cells know what they are sorted by, and facets that everything is filtered by.

>>> Facets().number("seq-digits", "offline", "100", "er", "er (lr=0.1)")
0
>>> mean_cell(Spread(12.5, 0.25, 3)).text
'12.50 ± 0.25'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gcr.analysis.load import Group
from gcr.analysis.statistics import Spread
from gcr.experiments.experiment import Experiment

FACETS = ("scenario", "regime", "buffer", "method", "name")
MISSING = "–"


@dataclass
class Facets:
    """The combinations that occur. What is shown of one carries its number, and the page's script hides by number."""

    known: dict[tuple[str, ...], int] = field(default_factory=dict)

    def number(self, scenario: str, regime: str, buffer: str, method: str, name: str) -> int:
        return self.known.setdefault((scenario, regime, buffer, method, name), len(self.known))

    def of(self, experiment: Experiment, name: str) -> int:
        return self.number(
            experiment.scenario, experiment.stream.regime, buffer_text(experiment), experiment.label, name
        )

    def data(self) -> list[dict[str, str]]:
        return [dict(zip(FACETS, values, strict=True)) for values in self.known]


@dataclass(frozen=True)
class Shown:
    """A group under the name that distinguishes it from the others of its scenario."""

    group: Group
    name: str
    facet: int


@dataclass(frozen=True)
class Bar:
    """A bar below a number, in percent of the cell's width, and how far the standard error reaches."""

    zero: float
    start: float
    length: float
    low: float
    high: float


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what it is sorted by; None: its text, and last where that says it is missing
    spread: Spread | None = None
    bold: bool = False
    bar: Bar | None = None


@dataclass(frozen=True)
class Row:
    facet: int
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """``name`` says what it is, to readers and, across a page's versions, to the script."""

    name: str
    columns: list[str]
    rows: list[Row]
    words: int = 1  # columns of text, which come first

    def without_constant(self, names: Sequence[str]) -> Table:
        """Without those of the named columns that say the same in every row."""
        texts = [{row.cells[c].text for row in self.rows} for c in range(len(self.columns))]
        return self._only([c for c, column in enumerate(self.columns) if column not in names or len(texts[c]) > 1])

    def without_empty(self) -> Table:
        """Without columns that no row has a value for."""
        there = range(len(self.columns))
        return self._only([c for c in there if any(row.cells[c].text != MISSING for row in self.rows)])

    def _only(self, kept: Sequence[int]) -> Table:
        rows = [replace(row, cells=[row.cells[c] for c in kept]) for row in self.rows]
        return Table(self.name, [self.columns[c] for c in kept], rows, sum(c < self.words for c in kept))

    def with_bars(self, columns: Sequence[int], full: float = 0.0) -> Table:
        """Bars below the numbers of these columns, each column on a scale of its own that has zero and ``full``."""
        scales = {c: _scale([row.cells[c] for row in self.rows], full) for c in columns}
        rows = [
            replace(
                row, cells=[_with_bar(cell, scales[c]) if c in scales else cell for c, cell in enumerate(row.cells)]
            )
            for row in self.rows
        ]
        return replace(self, rows=rows)


def buffer_text(experiment: Experiment) -> str:
    return str(experiment.memory.buffer) if experiment.memory else MISSING


def buffer_cell(text: str) -> Cell:
    return Cell(text, float(text)) if text.isdigit() else Cell(text)


def number_cell(value: float | None, form: str = "{:g}") -> Cell:
    return Cell(MISSING) if value is None else Cell(form.format(value), float(value))


def mean_cell(of: Spread | None, digits: int = 2) -> Cell:
    if of is None:
        return Cell(MISSING)
    sem = "" if of.sem is None else f" ± {of.sem:.{digits}f}"
    return Cell(f"{of.mean:.{digits}f}{sem}", of.mean, of)


def bytes_cell(of: Spread | None) -> Cell:
    return Cell(MISSING) if of is None else Cell(bytes_text(of.mean), of.mean, of)


def bytes_text(n: float) -> str:
    """
    >>> bytes_text(512), bytes_text(1_500_000)
    ('512 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            break
        n /= 1000
    return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}" if n < 1000 else f"{n:,.0f} {unit}"


def _reach(cell: Cell) -> tuple[float, float]:
    sem = (cell.spread.sem or 0.0) if cell.spread else 0.0
    value = cell.value or 0.0
    return value - sem, value + sem


def _scale(cells: Sequence[Cell], full: float) -> tuple[float, float]:
    ends = [full, *(end for cell in cells if cell.value is not None for end in _reach(cell))]
    return min([0.0, *ends]), max([0.0, *ends])


def _with_bar(cell: Cell, scale: tuple[float, float]) -> Cell:
    low, high = scale
    if cell.value is None or high <= low:
        return cell
    per_unit = 100 / (high - low)
    ends = [(end - low) * per_unit for end in (0.0, min(cell.value, 0.0), max(cell.value, 0.0), *_reach(cell))]
    return replace(cell, bar=Bar(ends[0], ends[1], ends[2] - ends[1], ends[3], ends[4]))
