"""Tables and figure of ``docs/own_project.md``, from what ``own_project.py`` and ``observe.py`` measured."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from evidence import insert
from evidence_runs import markdown
from own_project_rivals import AVALANCHE

from gcr.analysis.statistics import spread
from gcr.training.metrics import average_accuracy, forgetting

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURE = ROOT / "docs/own_project.md", ROOT / "docs/own_project.svg"
ORDER = {
    "gcr.Learner": "#0072b2",
    AVALANCHE: "#cc79a7",
    "reservoir by hand": "#e69f00",
    "SGDClassifier.partial_fit": "#56b4e9",
    "fine-tuning": "#999999",
    "keep everything": "#333333",
}

Groups = dict[tuple[str, str], list[dict[str, Any]]]  # (data, name) -> a row per seed


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
            line = [data, name, f"{kept.get(name, about['keep']):,}", str(accuracy), str(lost)]
            lines.append([*line, f"{seconds.mean:.1f}", f"{megabytes:.2f}"])
    return markdown(["data", "learner", "examples kept", "accuracy", "forgetting", "CPU s", "MB"], lines)


def cost() -> str:
    """Of ``observe``, from what ``benchmarks/observe.py`` measured."""
    lines = []
    for device in ("cpu", "cuda"):
        measured = json.loads((ROOT / f"results/observe-{device}.json").read_text())
        for row in measured["rows"]:
            line = [measured["device"], row["net"], f"{row['by_hand_ms']:.1f}", f"{row['observe_ms']:.1f}"]
            lines.append([*line, f"{100 * row['more']:+.1f} %"])
    return markdown(["device", "network", "by hand, ms", "`observe`, ms", "difference"], lines)


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
            axes.plot(seen, mean, color=ORDER[name], label=name, marker="o", markersize=3, linestyle=style)
            axes.fill_between(seen, mean - sem, mean + sem, color=ORDER[name], alpha=0.2, linewidth=0)
        axes.set(title=f"{data}, {about['keep']} of {about['train']:,} examples kept", ylim=(0, 101), xticks=seen)
        axes.set(xlabel="classes learned", ylabel="accuracy on them, %")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=7, loc="lower left")
    figure.savefig(FIGURE, bbox_inches="tight", facecolor="white", metadata={"Date": None})
