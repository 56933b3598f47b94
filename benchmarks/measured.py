"""``results/measured.json``: all measurements in one JSON object, a line for each name.

    python benchmarks/measured.py                          names and bytes
    python benchmarks/measured.py OTHER.json [NAME ...]    take measurements from such a file, of another machine
    python benchmarks/measured.py OTHER.json --as NAME     take any JSON file as one measurement

``MEASURED=FILE`` in the environment is another file to read and write, here and in all benchmarks.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

FILE = Path(os.environ.get("MEASURED") or Path(__file__).parents[1] / "results" / "measured.json").resolve()

Row = dict[str, Any]


def read(name: str, default: Any = None) -> Any:
    """What was measured under this name; ``default`` if that is nothing yet."""
    lines = _lines(FILE)
    if name not in lines and default is None:
        raise SystemExit(f"{FILE} has no {name}; it has: {', '.join(lines) or 'nothing'}")
    return json.loads(lines[name]) if name in lines else default


def write(name: str, value: Any) -> None:
    """Replace one line. The others keep their bytes, also if another process writes one of them."""
    from gcr.files import write_whole  # not at the top: against_avalanche.py --setup runs without gcr

    FILE.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # not on the file, which is replaced
        lines = _lines(FILE) | {name: json.dumps(value, separators=(",", ":"))}
        text = "{\n" + ",\n".join(f'"{one}": {lines[one]}' for one in sorted(lines)) + "\n}\n"
        write_whole(FILE, text.encode())
    finally:
        os.close(folder)


def _lines(file: Path) -> dict[str, str]:
    """Name -> JSON, as the file has it."""
    lines = file.read_text().split("\n")[1:-2] if file.exists() else []
    pairs = (line.removesuffix(",").split(": ", 1) for line in lines)
    return {name.strip('"'): value for name, value in pairs}


def completed(name: str, run_one: Callable[..., Row], wanted: list[Row], processes: int, **same: Any) -> list[Row]:
    """All rows, after ``run_one(**one, **same)`` for each of ``wanted`` that none of them agrees with.

    Rows are written as runs end, so that what is there is not run again.
    """
    rows: list[Row] = read(name, [])
    missing = [one for one in wanted if not any(one.items() <= row.items() for row in map(_plain, rows))]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as executor:
        futures = [executor.submit(run_one, **one, **same) for one in missing]
        for done, future in enumerate(as_completed(futures), 1):
            rows.append(future.result())
            write(name, rows)
            case = ", ".join(f"{key} {rows[-1][key]}" for key in missing[0])
            print(f"{done}/{len(futures)} {case}: {rows[-1]['accuracy']:.2f}", flush=True)
    return rows


def _plain(row: Row) -> Row:
    """Without lists, which cannot be compared as items."""
    return {name: value for name, value in row.items() if isinstance(value, (str, int, float))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path, help="a JSON file")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to take from it; all if none is given")
    parser.add_argument("--as", dest="whole", metavar="NAME", help="take the whole file under this name")
    given = parser.parse_args()
    if given.other is None:
        print("\n".join(f"{len(text):9,} {name}" for name, text in _lines(FILE).items()))
        return
    values = json.loads(given.other.read_text())
    if lacking := set(given.names) - set(values):
        parser.error(f"{given.other} has no {', '.join(sorted(lacking))}; it has: {', '.join(values)}")
    taken = {given.whole: values} if given.whole else {name: values[name] for name in given.names or values}
    for name, value in taken.items():
        write(name, value)
        print(f"written: {name}, in {FILE}")


if __name__ == "__main__":
    main()
