"""CSV and parquet files: a label column, and either a column of picture paths or columns of numbers.

>>> table = Table(Path("birds.csv"), {"path": ["a.png"], "class": ["robin"]})
>>> table.labels(), table.path_column()
(['robin'], 'path')
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from gcr.data.archive import in_short
from gcr.data.parquet_check import LIMITS, check_parquet, parquet_library
from gcr.settings import BadInput

SUFFIXES = (".csv", ".tsv", ".parquet")
LABEL_NAMES = ("label", "class", "target", "y")
PATH_NAMES = ("path", "file", "filename", "image")
DELIMITERS = (",", ";", "\t")
SHOWN = 8  # column names in a message
WHOLE = re.compile(r"^([+-]?\d+)\.0*$")  # 3.0 and 3., as some programs write 3


@dataclass(frozen=True)
class Table:
    file: Path
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def label_column(self, name: str | None = None) -> str:
        if found := self._named("label", name, LABEL_NAMES):
            return found
        raise BadInput(f"{self.file} must have a label column; name it by --label ({self._columns_in_words()})")

    def path_column(self, name: str | None = None) -> str | None:
        """The column of picture paths; None where the table holds numbers. One of numbers is a feature, whatever its
        name, unless ``name`` asks for it."""
        found = self._named("path", name, PATH_NAMES)
        return None if name is None and found is not None and _are_numbers(self.columns[found]) else found

    def labels(self, name: str | None = None) -> list[str]:
        """Class names as text: 3 and 3.0 are "3", in any kind of file."""
        column = self.label_column(name)
        values = self.columns[column]
        labels = [_label(value) for value in values]
        for row, (value, label) in enumerate(zip(values, labels, strict=True), 1):
            if not label:
                raise BadInput(f'{self.file} has no label in row {row}, column "{column}"; fill it in')
            if isinstance(value, float) and math.isinf(value):
                raise BadInput(
                    f'a label must be text or a finite number, got {value} in row {row}, column "{column}" '
                    f"of {self.file}; give it a name"
                )
        return labels

    def paths(self, column: str) -> list[Path]:
        """Relative ones begin at the folder of the table."""
        values = self.columns[column]
        for row, value in enumerate(values, 1):
            if not isinstance(value, str) or not value.strip():
                raise BadInput(f'{self.file} must have a path in row {row}, column "{column}", got "{value}"')
        return [self.file.parent / value.strip() for value in values]

    def numbers(self, names: Sequence[str]) -> NDArray[np.float32]:
        """[n, names]."""
        return np.stack([self._numbers(name) for name in names], axis=1)

    def _numbers(self, name: str) -> NDArray[np.float32]:
        values = self.columns[name]
        try:
            with np.errstate(over="ignore"):  # infinite, which is refused below
                column = np.asarray(values, dtype=np.float32)
            if column.ndim == 1 and np.isfinite(column).all():
                return column
        except (TypeError, ValueError, OverflowError):
            pass
        row = next((row for row, value in enumerate(values) if not _is_number(value)), 0)
        if isinstance(values[row], list):
            raise BadInput(f'column "{name}" of {self.file} must hold lists of one length in all rows; pad or cut them')
        raise BadInput(
            f'column "{name}" of {self.file} must be finite numbers, got "{values[row]}" in row {row + 1}; fill it in, '
            "remove the column, or name the column of labels by --label or of pictures by --path"
        )

    def _named(self, what: str, name: str | None, usual: Sequence[str]) -> str | None:
        if name is not None:
            if name in self.columns:
                return name
            raise BadInput(f'--{what} must name a column of {self.file}, got "{name}" ({self._columns_in_words()})')
        return next((column for word in usual for column in self.columns if column.strip().lower() == word), None)

    def _columns_in_words(self) -> str:
        names = list(self.columns)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"its columns: {', '.join(names[:SHOWN])}{more}"


def read_table(file: Path) -> Table:
    if not file.is_file():
        raise BadInput(f"{file} must be a file; it is not there, or it is a folder, a pipe or a device")
    columns = _read_parquet(file) if file.suffix.lower() == ".parquet" else _read_csv(file)
    table = Table(file, columns)
    if not columns or not len(table):
        raise BadInput(f"{file} must have a row of column names and at least one row of values; it has none")
    return table


def _read_csv(file: Path) -> dict[str, list[Any]]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            first = opened.readline()
            opened.seek(0)
            rows = list(csv.reader(opened, delimiter=max(DELIMITERS, key=first.count)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read ({error}); save it as CSV in UTF-8") from None
    names, rows = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    _check_distinct(file, names)
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise BadInput(f"row {number} of {file} must have {len(names)} values, as the first line, got {len(row)}")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _read_parquet(file: Path) -> dict[str, list[Any]]:
    check_parquet([(str(file), file)])
    try:
        table = parquet_library().ParquetFile(file, **LIMITS).read(use_threads=False)
        columns = [spread for name in table.column_names for spread in _spread(name, table.column(name).to_pylist())]
        _check_distinct(file, [name for name, _ in columns])
        return dict(columns)
    except BadInput:
        raise
    except Exception as error:  # of many kinds
        raise BadInput(f"{file} cannot be read as parquet ({in_short(error)}); get it again") from None


def _spread(name: str, values: list[Any]) -> list[tuple[str, list[Any]]]:
    """A column of lists of one length, as embeddings, as a column for each place; others as they are.

    >>> _spread("e", [[1.0, 2.0], [3.0, 4.0]])
    [('e[0]', [1.0, 3.0]), ('e[1]', [2.0, 4.0])]
    """
    widths = {len(value) if isinstance(value, list) else 0 for value in values}
    if len(widths) != 1 or widths == {0}:
        return [(name, values)]
    return [(f"{name}[{place}]", list(column)) for place, column in enumerate(zip(*values, strict=True))]


def _check_distinct(file: Path, names: Sequence[str]) -> None:
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise BadInput(f'{file} has two columns "{min(twice)}"; rename one')


def _label(value: Any) -> str:
    """Empty where there is none. Accents are written in one way, whatever the system that wrote the file."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return normalize("NFC", WHOLE.sub(r"\1", str(value).strip()))


def _is_number(value: Any) -> bool:
    """Finite as a float of 32 bits."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(value)))
    except (TypeError, ValueError, OverflowError):
        return False


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether there are numbers and, apart from gaps, nothing else."""
    there = [value for value in values if value is not None and str(value).strip()]
    try:
        return bool([float(value) for value in there])
    except (TypeError, ValueError):
        return False
