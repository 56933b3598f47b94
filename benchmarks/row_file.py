"""A JSON file with a row per run, written as runs end, so that what is there is not run again."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    return rows


def completed(path: Path, run_one: Callable[..., Row], wanted: list[Row], processes: int, **same: Any) -> list[Row]:
    """All rows, after ``run_one(**one, **same)`` for each of ``wanted`` that none of them agrees with."""
    rows = read(path)
    missing = [one for one in wanted if not any(one.items() <= row.items() for row in map(_plain, rows))]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as executor:
        futures = [executor.submit(run_one, **one, **same) for one in missing]
        for done, future in enumerate(as_completed(futures), 1):
            rows.append(future.result())
            temporary = path.with_suffix(".part")
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
            temporary.replace(path)
            case = ", ".join(f"{name} {rows[-1][name]}" for name in missing[0])
            print(f"{done}/{len(futures)} {case}: {rows[-1]['accuracy']:.2f}", flush=True)
    return rows


def _plain(row: Row) -> Row:
    """Without lists, which cannot be compared as items."""
    return {name: value for name, value in row.items() if isinstance(value, (str, int, float))}
