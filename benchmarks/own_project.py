"""Is a replay memory worth it in one's own project? ``gcr.Learner`` next to what one would use otherwise.

    python benchmarks/own_project.py                       all but Avalanche; writes results and page
    python benchmarks/own_project.py --avalanche PYTHON    with Avalanche's Replay, by a Python that has avalanche-lib
    python benchmarks/own_project.py --docs                only the page's table and figure, from the results
    python benchmarks/own_project.py --check               write nothing; exit with 1 if the page's table is another

Digits, and features of CIFAR-10 where ``gcr data get cifar10`` has put it: five steps of two classes, whose order the
seed decides. Without ``--avalanche`` the results' earlier rows of Avalanche stay. About 8 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from own_project_data import Data, cifar10_features, digits
from own_project_docs import check, write
from own_project_rivals import AVALANCHE, BATCH, EPOCHS, HIDDEN, LR, RIVALS, run, warm_up

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results/own_project.json"
AVALANCHE_PYTHON = ROOT / ".venv-avalanche/bin/python"  # of make avalanche


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="0, 1, …")
    parser.add_argument("--avalanche", type=Path, help="a Python with avalanche-lib; by default that of make avalanche")
    parser.add_argument("--docs", action="store_true", help="run nothing, write the page from the results")
    parser.add_argument("--check", action="store_true", help="run and write nothing, compare the page with the results")
    chosen = parser.parse_args()
    if chosen.check:
        sys.exit(check(json.loads(RESULTS.read_text())))
    if not chosen.docs:
        measure(chosen.seeds, chosen.avalanche or (AVALANCHE_PYTHON if AVALANCHE_PYTHON.exists() else None))
    write(json.loads(RESULTS.read_text()))


def measure(n_seeds: int, avalanche: Path | None) -> None:
    features = cifar10_features()
    if features is None:
        print("no CIFAR-10 here: digits alone; gcr data get cifar10 brings it")
    sets = [digits(), *([features] if features else [])]
    about_sets = {data.name: {"keep": data.keep, "train": len(data.train[1])} for data in sets}
    settings = {"epochs": EPOCHS, "batch": BATCH, "lr": LR, "hidden": HIDDEN, "steps": 5, "sets": about_sets}
    rows: list[dict[str, Any]] = []
    warm_up(RIVALS.values())
    for data in sets:
        for seed in range(n_seeds):  # rivals next to each other, so that changes of load hit all alike
            for name, rival in RIVALS.items():
                rows.append(run(name, rival, data, seed))
                show(rows[-1])
        rows += avalanche_rows(data, n_seeds, avalanche) if avalanche else earlier_rows(data, n_seeds, settings)
    names = ("torch", "numpy", "scikit-learn")
    about = {
        "device": f"CPU, {platform.machine()}, 1 thread",
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
        "settings": settings,
        "rows": rows,
    }
    text = json.dumps(about | {"rows": []}, indent=1).removesuffix("[]\n}")
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    RESULTS.write_text(f"{text}[\n  {lines}\n ]\n}}\n")
    print(f"written: {RESULTS.relative_to(ROOT)}")


def show(row: dict[str, Any]) -> None:
    accuracy = sum(row["matrix"][-1]) / len(row["matrix"][-1])
    print(f"{row['data']:18} {row['name']:26} seed {row['seed']} {accuracy:6.2f} % {row['seconds']:7.2f} s", flush=True)


def avalanche_rows(data: Data, n_seeds: int, python: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "data.npz", Path(folder) / "rows.json"
        data.save(given)
        script = Path(__file__).with_name("own_project_rivals.py")
        command = [str(python), str(script), str(given), str(made), *map(str, range(n_seeds))]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        rows: list[dict[str, Any]] = json.loads(made.read_text())
    for row in rows:
        show(row)
    return rows


def earlier_rows(data: Data, n_seeds: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Of Avalanche, measured before with the same settings."""
    old: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"settings": None}
    same = old["settings"] == settings
    rows = [row for row in old["rows"] if (row["name"], row["data"]) == (AVALANCHE, data.name)] if same else []
    print(f"{data.name}: {'kept' if rows else 'no'} rows of Avalanche; --avalanche PYTHON measures them")
    return [row for row in rows if row["seed"] < n_seeds]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
