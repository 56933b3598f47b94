"""Printing on the terminal: tables, lists, warnings."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gcr.settings import unknown

if TYPE_CHECKING:
    from gcr.experiments.formats import Sheet
    from gcr.experiments.groups import Runs

out = Console()
err = Console(stderr=True)


def warn_of_unreadable(runs: Runs) -> None:
    for bad in runs.unreadable:
        err.print(f"left out: {bad}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def print_sheets(sheets: Sequence[Sheet], notes: Sequence[str]) -> None:
    for sheet in sheets:
        view = _drawn(sheet)
        needed = _widths(view).maximum
        if out.is_terminal and needed > out.width:
            _print_narrow(sheet)
        else:
            Console(width=needed).print(view)
    for note in notes:
        out.print(f"- {note}", markup=False, highlight=False, soft_wrap=True)


def _print_narrow(sheet: Sheet) -> None:
    """Names of rows are folded and headings stand in lines; what counts least is left out. Numbers are never cut: where
    all that does not help, lines are longer than the terminal."""
    for left_out in ((), ("seconds",), ("seconds", "seeds")):
        view = _drawn(sheet, narrow=True, left_out=left_out)
        needed = _widths(view).minimum
        if needed <= out.width:
            break
    Console(width=max(out.width, needed)).print(view)


def _drawn(sheet: Sheet, narrow: bool = False, left_out: Sequence[str] = ()) -> Table:
    shown = [c for c, name in enumerate(sheet.columns) if name not in left_out]
    view = Table(title=sheet.title, title_justify="left", title_style="bold")
    for c in shown:
        heading = sheet.columns[c].replace(" ", "\n") if narrow else sheet.columns[c]
        view.add_column(heading, justify="right" if c else "left", no_wrap=not narrow or c > 0)
    for row in sheet.rows:
        texts = [row[c].text.replace(" ± ", "±") if narrow else row[c].text for c in shown]
        view.add_row(*(Text(t, "bold" if row[c].bold else "") for t, c in zip(texts, shown, strict=True)))
    return view


def _widths(view: Table) -> Measurement:
    """With its longest words whole, and with all on one line."""
    return Console(width=10_000).measure(view)


def print_table(form: str, sheets: Sequence[Sheet], records: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """In any of the formats that ``check_format`` takes."""
    from gcr.experiments import formats

    if form == "terminal":
        print_sheets(sheets, notes)
    elif form == "csv":
        sys.stdout.write(formats.comma_separated(records))
    else:
        sys.stdout.write({"markdown": formats.markdown, "latex": formats.latex}[form](sheets, notes))


def check_format(form: str) -> None:
    from gcr.experiments.formats import FORMATS

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)


def print_names(kind: str, rows: list[tuple[str, str, str]], third: str = "settings and defaults") -> None:
    view = Table(box=None, pad_edge=False, header_style="bold")
    view.add_column(kind, no_wrap=True)
    view.add_column("what it is")
    if any(row[2] for row in rows):
        view.add_column(third)
    for row in rows:
        view.add_row(*row[: len(view.columns)])
    print_whole(view)


def print_whole(view: Table) -> None:
    """Outside a terminal there is no width to fit: print lines as long as they need to be."""
    Console(width=None if out.is_terminal else 200).print(view)
