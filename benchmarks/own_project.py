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
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from evidence import insert
from evidence_runs import markdown
from own_project_data import Data, cifar10_features, digits
from own_project_rivals import AVALANCHE, BATCH, EPOCHS, HIDDEN, LR, RIVALS, run, warm_up

from gcr.analysis.statistics import spread
from gcr.training.metrics import average_accuracy, forgetting

ROOT = Path(__file__).resolve().parents[1]
NAME = "own-project"  # in results/measured.json
AVALANCHE_PYTHON = ROOT / ".venv-avalanche/bin/python"  # of make avalanche
PAGE, FIGURE = ROOT / "docs/own_project.md", ROOT / "docs/own_project.svg"
ORDER = {
    "gcr.Learner": "#0072b2",
    "gcr.Learner with GCR+": "#009e73",
    AVALANCHE: "#cc79a7",
    "reservoir by hand": "#e69f00",
    "SGDClassifier.partial_fit": "#56b4e9",
    "fine-tuning": "#999999",
    "keep everything": "#333333",
}

LABELS = {"reservoir by hand": "reservoir in plain PyTorch"}  # on the page; the results keep their names

Groups = dict[tuple[str, str], list[dict[str, Any]]]  # (data, name) -> a row per seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="0, 1, …")
    parser.add_argument("--avalanche", type=Path, help="a Python with avalanche-lib; by default that of make avalanche")
    parser.add_argument("--docs", action="store_true", help="run nothing, write the page from the results")
    parser.add_argument("--check", action="store_true", help="run and write nothing, compare the page with the results")
    chosen = parser.parse_args()
    if chosen.check:
        sys.exit(check(measured.read(NAME)))
    if not chosen.docs:
        measure(chosen.seeds, chosen.avalanche or (AVALANCHE_PYTHON if AVALANCHE_PYTHON.exists() else None))
    write(measured.read(NAME))


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
    measured.write(NAME, about)
    print(f"written: {NAME}, in {measured.FILE}")


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
    old: dict[str, Any] = measured.read(NAME, {"settings": None})
    same = old["settings"] == settings
    rows = [row for row in old["rows"] if (row["name"], row["data"]) == (AVALANCHE, data.name)] if same else []
    print(f"{data.name}: {'kept' if rows else 'no'} rows of Avalanche; --avalanche PYTHON measures them")
    return [row for row in rows if row["seed"] < n_seeds]


def groups(results: dict[str, Any]) -> Groups:
    found: Groups = defaultdict(list)
    for row in sorted(results["rows"], key=lambda row: (list(ORDER).index(row["name"]), row["seed"])):
        found[row["data"], row["name"]].append(row)
    return found


def table(results: dict[str, Any]) -> str:
    lines = []
    for data, about in results["settings"]["sets"].items():
        for (of, name), rows in groups(results).items():
            if of != data:
                continue
            kept = {"keep everything": about["train"], "fine-tuning": 0, "SGDClassifier.partial_fit": 0}
            accuracy = spread([average_accuracy(row["matrix"]) for row in rows])
            lost = spread([forgetting(row["matrix"], list(range(5))) for row in rows])
            seconds = spread([row["seconds"] for row in rows])
            assert seconds is not None
            megabytes = rows[0]["bytes"] / 1e6
            line = [data, LABELS.get(name, name), f"{kept.get(name, about['keep']):,}", str(accuracy), str(lost)]
            lines.append([*line, f"{seconds.mean:.1f}", f"{megabytes:.2f}"])
    return markdown(["data", "learner", "examples kept", "accuracy", "forgetting", "CPU s", "MB of examples"], lines)


def cost() -> str:
    """Of ``observe``, from what ``benchmarks/observe.py`` measured."""
    lines = []
    for device in ("cpu", "cuda"):
        about = measured.read(f"observe-{device}")
        for row in about["rows"]:
            line = [about["device"], row["net"], f"{row['by_hand_ms']:.1f}", f"{row['observe_ms']:.1f}"]
            lines.append([*line, f"{100 * row['more']:+.1f} %"])
    return markdown(["device", "network", "plain PyTorch, ms", "`observe`, ms", "difference"], lines)


def page(results: dict[str, Any]) -> str:
    return insert(insert(PAGE.read_text(), "own_project", table(results)), "observe", cost())


def check(results: dict[str, Any]) -> int:
    """1 if the page's tables are not those of the results."""
    stale = page(results) != PAGE.read_text()
    print(f"differs from results/: {PAGE.relative_to(ROOT)}" if stale else "")
    return int(stale)


def write(results: dict[str, Any]) -> None:
    PAGE.write_text(page(results))
    draw(results)
    print(f"written: {PAGE.relative_to(ROOT)}, {FIGURE.relative_to(ROOT)}")


def draw(results: dict[str, Any]) -> None:
    """Accuracy on the classes so far, over steps; mean and SEM over seeds."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gcr", "font.size": 9})
    sets = results["settings"]["sets"]
    figure = Figure(figsize=(4.1 * len(sets), 3.3), layout="constrained")
    for axes, (data, about) in zip(np.atleast_1d(figure.subplots(1, len(sets))), sets.items(), strict=True):
        for (of, name), rows in groups(results).items():
            if of != data:
                continue
            curves = [[np.mean(line[: step + 1]) for step, line in enumerate(row["matrix"])] for row in rows]
            mean, sem = np.mean(curves, 0), np.std(curves, 0, ddof=1) / np.sqrt(len(curves))
            style = ":" if name == "keep everything" else "-"
            seen = np.arange(1, len(mean) + 1) * 2
            axes.plot(
                seen, mean, color=ORDER[name], label=LABELS.get(name, name), marker="o", markersize=3, linestyle=style
            )
            axes.fill_between(seen, mean - sem, mean + sem, color=ORDER[name], alpha=0.2, linewidth=0)
        axes.set(title=f"{data}, {about['keep']} of {about['train']:,} examples kept", ylim=(0, 101), xticks=seen)
        axes.set(xlabel="classes learned", ylabel="accuracy on them, %")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=7, loc="lower left")
    figure.savefig(FIGURE, bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
