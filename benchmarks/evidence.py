"""Tables and figures of README and docs from the raw seeds under ``results/``.

    python benchmarks/evidence.py            write tables between their markers, and docs/*.svg
    python benchmarks/evidence.py --check    write nothing; exit with 1 if a table or figure differs from its page
    python benchmarks/evidence.py --show steps roofline    print these tables, write nothing

A marker is ``<!-- table: NAME -->``; its table ends at ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from evidence_runs import ROOT
from evidence_tables import TABLES


def insert(page: str, name: str, table: str) -> str:
    """The page with this table between its markers."""
    pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
    found, count = re.subn(pattern, lambda match: f"{match[1]}\n{table}\n\n{match[2]}", page, flags=re.S)
    if count != 1:
        raise SystemExit(f"the page must have one marker <!-- table: {name} -->, found {count}")
    return found


def alike(one: str, other: str) -> bool:
    """Whether two drawings say the same: equal words, and numbers within 0.05, as machines round. Names of shapes hang
    on the last digit."""
    without_names = (re.sub(r"\b[mp][0-9a-f]{9,10}\b", "", text) for text in (one, other))
    parts = (re.split(r"(-?\d+\.\d+)", text) for text in without_names)
    return all(
        mine == theirs or (index % 2 and mine and theirs and math.isclose(float(mine), float(theirs), abs_tol=0.05))
        for index, (mine, theirs) in enumerate(zip_longest(*parts))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the pages with the files, write nothing")
    parser.add_argument("--show", nargs="+", choices=list(TABLES), metavar="NAME", help="print tables, write nothing")
    options = parser.parse_args()
    check = options.check
    for name in options.show or ():
        print(f"\n{name}, from results/\n\n{TABLES[name][1]()}")
    if options.show:
        return
    stale = []
    for name, (path, make) in TABLES.items():
        page = (ROOT / path).read_text()
        made = insert(page, name, make())
        if made != page:
            stale.append(f"{path}: table {name}")
            if not check:
                (ROOT / path).write_text(made)
    import evidence_plots

    with TemporaryDirectory() as folder:
        evidence_plots.draw(Path(folder))
        for drawn in sorted(Path(folder).iterdir()):
            figure = ROOT / "docs" / drawn.name
            if not figure.exists() or not alike(drawn.read_text(), figure.read_text()):
                stale.append(f"docs/{drawn.name}")
                if not check:
                    figure.write_text(drawn.read_text())
    lines = [f"{'differs from results/' if check else 'written'}: {line}" for line in stale]
    print("\n".join(lines) or "tables and figures agree with results/")
    if check:
        sys.exit(bool(stale))


if __name__ == "__main__":
    main()
