"""Printing on the terminal: tables, lists, warnings."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.console
from rich.cells import cell_len
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gcr.settings import printable, unknown

if TYPE_CHECKING:
    from gcr.analysis.formats import Sheet
    from gcr.analysis.load import Runs

SIGNS = {"±": "+/-", "–": "-", "−": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "×": "x"}


class Console(rich.console.Console):
    """Names of folders, files and classes are text: what a terminal would obey in them is escaped."""

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        for text, style, control in super().render(*arguments, **options):
            yield Segment(text if control else printable(text, lines=True), style, control)

    @property
    def redraws(self) -> bool:
        """Whether a line may be drawn again. With ``FORCE_COLOR`` a log counts as a terminal, but never here."""
        return self.is_interactive and self.file.isatty()

    def say(self, text: str, style: str | None = None) -> None:
        """The text as it is: names in it are no markup, no emoji, and not folded."""
        self.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def write(text: str) -> None:
    """To the standard output, escaped likewise."""
    sys.stdout.write(printable(text, lines=True))


def spelled(error: UnicodeError) -> tuple[str, int]:
    """For ``codecs.register_error``: what an encoding lacks, as "±" in the C locale, in other signs."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


out = Console()
err = Console(stderr=True)
NAME_WIDTH = 13  # of a row, at the least, where it has to fold
MANY = 200  # rows, beyond which a table is not fitted to the terminal
LEFT_OUT = ("seconds", "seeds")  # columns, in this order, where there is no room


def warn_of_unreadable(runs: Runs) -> None:
    for bad in runs.unreadable:
        err.say(f"left out: {printable(str(bad))}", "yellow")


def warn_of_diverged(runs: Runs) -> None:
    """Where no table says it."""
    for note in runs.diverged_notes():
        err.say(printable(note), "yellow")


def print_sheets(sheets: Sequence[Sheet], notes: Sequence[str]) -> None:
    for sheet in sheets:
        out.say(printable(sheet.title), "bold")
        if len(sheet.rows) > MANY:
            out.file.write(long_table(sheet))
            continue
        drawn = _drawn(sheet)
        if out.is_terminal and _width(drawn) > out.width:
            _print_narrow(sheet)
        else:
            Console(width=_width(drawn)).print(drawn)
    for note in notes:
        _say(note)


def long_table(sheet: Sheet) -> str:
    """As ``rich`` draws it, in a hundredth of its time."""
    rows = [sheet.columns, *([printable(cell.text) for cell in row] for row in sheet.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str], bar: str) -> str:
        padded = [" " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)]
        cells = [pad + text if c else text + pad for c, (text, pad) in enumerate(zip(row, padded, strict=True))]
        return f"{bar} {f' {bar} '.join(cells)} {bar}\n"

    def rule(left: str, fill: str, middle: str, right: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + right + "\n"

    head = [rule("┏", "━", "┳", "┓"), line(rows[0], "┃"), rule("┡", "━", "╇", "┩")]
    return "".join([*head, *(line(row, "│") for row in rows[1:]), rule("└", "─", "┴", "┘")])


def _print_narrow(sheet: Sheet) -> None:
    """Names of rows fold and headings stand in lines; then what counts least is left out, or words of names fold too.
    Numbers are never cut: where nothing helps, lines are longer than the terminal."""
    names = [row[0].text for row in sheet.rows]
    longest, longest_word = (max(map(len, parts), default=0) for parts in (names, " ".join(names).split()))
    least = [name for name in LEFT_OUT if name in sheet.columns]
    for room, n in itertools.product((longest_word, NAME_WIDTH), range(len(least) + 1)):
        drawn, left_out = _drawn(sheet, narrow=True, left_out=least[:n]), least[:n]
        needed = _width(drawn) - max(0, longest - room)
        if needed <= out.width:
            break
    else:
        drawn, left_out = _drawn(sheet, narrow=True), []
        needed = _width(drawn) - max(0, longest - NAME_WIDTH)
    Console(width=max(out.width, needed)).print(drawn)
    if left_out:
        _say(f"left out for lack of room: {', '.join(left_out)}")


def _say(note: str) -> None:
    out.say(f"- {printable(note)}")


def _drawn(sheet: Sheet, narrow: bool = False, left_out: Sequence[str] = ()) -> Table:
    shown = [c for c, name in enumerate(sheet.columns) if name not in left_out]
    drawn = Table()
    for c in shown:
        heading = _held(sheet.columns[c])
        if narrow:
            heading = "\n".join(re.split(r"(?<![±-]) ", heading))  # a sign stays with what follows
        folds = narrow and c == 0
        drawn.add_column(heading, justify="right" if c else "left", no_wrap=not folds, overflow="fold")
    for row in sheet.rows:
        texts = [_held(row[c].text.replace(" ± ", "±") if narrow else row[c].text) for c in shown]
        drawn.add_row(*(Text(t, "bold" if row[c].bold else "") for t, c in zip(texts, shown, strict=True)))
    return drawn


def _held(text: str) -> str:
    """As it will be printed, so that columns are as wide as they should be."""
    text = printable(text)
    try:
        text.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return "".join(SIGNS.get(sign, sign) for sign in text)
    return text


def _width(drawn: Table) -> int:
    """With nothing folded."""
    return Console(width=10_000).measure(drawn).maximum


def print_table(form: str, sheets: Sequence[Sheet], records: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """In any of the formats that ``check_format`` takes."""
    from gcr.analysis import formats

    if form == "terminal":
        print_sheets(sheets, notes)
    elif form == "csv":
        write(formats.comma_separated(records))
    elif form == "json":
        write(formats.json_rows(records))
    else:
        write({"markdown": formats.markdown, "latex": formats.latex}[form](sheets, notes))


def check_format(form: str) -> None:
    from gcr.analysis.formats import FORMATS

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)


def print_names(kind: str, rows: list[tuple[str, str, str]], third: str = "settings and defaults") -> None:
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column(kind, no_wrap=True)
    drawn.add_column("what it is")
    if any(row[2] for row in rows):
        drawn.add_column(third)
    for row in rows:
        drawn.add_row(*map(printable, row[: len(drawn.columns)]))
    print_whole(drawn)


def print_whole(drawn: Table) -> None:
    """Outside a terminal there is no width to fit: print lines as long as they need to be."""
    Console(width=None if out.is_terminal else 200).print(drawn)
