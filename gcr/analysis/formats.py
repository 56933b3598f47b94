"""Tables as text: Markdown, LaTeX with booktabs, CSV, JSON. The terminal's are drawn by the command line.

>>> sheet = Sheet("a|b: percent", ["method", "K"], [[Entry("gcr"), Entry("12.0 ± 0.1", bold=True)]])
>>> print(markdown([sheet]))
### a\\|b: percent
<BLANKLINE>
| method | K |
|:--|--:|
| gcr | **12.0 ± 0.1** |
<BLANKLINE>
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FORMATS = ("terminal", "markdown", "csv", "json", "latex")
OF_RECORDS = ("csv", "json")  # those made of records, with numbers in full and without notes


@dataclass(frozen=True)
class Entry:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """One table: the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[Entry]]


def markdown(sheets: Sequence[Sheet], notes: Sequence[str] = ()) -> str:
    lines = []
    for sheet in sheets:
        lines += [f"### {_markdown_text(sheet.title)}", ""]
        lines.append(_markdown_row(_markdown_text(column) for column in sheet.columns))
        lines.append("|" + "|".join([":--", *["--:"] * (len(sheet.columns) - 1)]) + "|")
        for row in sheet.rows:
            texts = [(_markdown_text(entry.text), entry.bold) for entry in row]
            lines.append(_markdown_row(f"**{text}**" if bold else text for text, bold in texts))
        lines.append("")
    lines += [f"- {_markdown_text(note)}" for note in notes]
    return "\n".join(lines) + ("\n" if notes else "")


def latex(sheets: Sequence[Sheet], notes: Sequence[str] = ()) -> str:
    """A table environment per sheet. All text is escaped; notes stand below, in a list."""
    lines = [r"% needs \usepackage{booktabs}"]
    for sheet in sheets:
        lines += [r"\begin{table}[ht]", r"\centering", rf"\caption{{{_latex_text(sheet.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(sheet.columns) - 1)}}}", r"\toprule"]
        lines += [_latex_row(map(_latex_text, sheet.columns)), r"\midrule"]
        for row in sheet.rows:
            texts = [(_latex_text(entry.text), entry.bold) for entry in row]
            lines.append(_latex_row(rf"\textbf{{{text}}}" if bold else text for text, bold in texts))
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    if notes:
        lines += [r"\begin{itemize}", *(rf"\item {_latex_text(note)}" for note in notes), r"\end{itemize}"]
    return "\n".join(lines) + "\n"


def comma_separated(records: Sequence[Mapping[str, object]]) -> str:
    """CSV with a line per record, under the keys of the first; None is an empty field, numbers are not rounded."""
    file = io.StringIO()
    if records:
        writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return file.getvalue()


def json_rows(records: Sequence[Mapping[str, object]]) -> str:
    """A JSON array with an object per record, each a line; what is not there, or not finite, is null.

    >>> print(json_rows([{"method": "er", "mean": 12.5, "sem": None, "effect": math.inf}]), end="")
    [
    {"method": "er", "mean": 12.5, "sem": null, "effect": null}
    ]
    """
    rows = [{key: None if _not_finite(value) else value for key, value in record.items()} for record in records]
    return "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]\n"


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_text(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\|*_`<>[]#" else sign for sign in " ".join(text.split()))


LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after a line's end, [ and * would be read as its arguments
    "*": "{*}",
    "±": r"$\pm$",
    "–": "--",
    "−": r"$-$",
}


def _latex_text(text: str) -> str:
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in " ".join(text.split()))
