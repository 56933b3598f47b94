"""Figures of the docs, drawn by ``benchmarks/evidence.py``: accuracy over tasks, ours minus the paper's, growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evidence_runs as runs
import matplotlib
import measured
import numpy as np
from evidence_tables import judged
from matplotlib.figure import Figure

from gcr.analysis.statistics import interval

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gcr", "font.family": "sans-serif", "font.size": 9})
COLOURS = {
    "finetune": "#999999",
    "ER": "#56b4e9",
    "DER++": "#e69f00",
    "GCR": "#0072b2",
    "GCR+": "#d55e00",
    "GCR, random rows": "#009e73",
    "joint": "#333333",
}


def draw(folder: Path) -> None:
    for name, figure in (("tasks", over_tasks()), ("evidence", against_the_paper()), ("growth", growth())):
        figure.savefig(folder / f"{name}.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def over_tasks() -> Figure:
    """Class-IL accuracy on the tasks begun so far, mean and SEM over seeds."""
    figure = Figure(figsize=(8.2, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=False)
    digits, variants = runs.read("digits-all"), runs.read("online-variants")
    joint = digits["offline/seq-digits-joint"].mean("accuracy").mean
    left.axhline(joint, color=COLOURS["joint"], linestyle=":", label="joint (upper bound)")
    paths = {"GCR": "gcr-k100", "GCR+": "gcr-plus-k100", "DER++": "derpp-k100", "ER": "er-k100", "finetune": "finetune"}
    for name, path in paths.items():
        _curve(left, name, digits[f"offline/seq-digits-{path}"], first=[0, 1, 2, 3, 4], seen=[1, 2, 3, 4, 5])
    left.set(title="digits, offline, K = 100, 5 seeds", xlabel="tasks learned", xticks=range(1, 6))
    online = {
        runs.NAMES[c.method]: c.group
        for c in runs.cells("accuracy")
        if (c.regime, c.scenario, c.group.buffer) == ("online", "seq-cifar10", 500)
    }
    online["GCR, random rows"] = variants["seq-cifar10-online-gcr-k500-class-balanced"]
    online["GCR+"] = runs.read("gcr-plus")["seq-cifar10-online-gcr-plus-k500"]
    for name in ("GCR+", "GCR, random rows", "GCR", "DER++", "ER"):
        _curve(right, name, online[name], first=[0, 1, 3, 4, 6], seen=[6250 * (stage + 1) / 1000 for stage in range(8)])
    right.set(title="S-CIFAR-10, online, K = 500, 15 seeds", xlabel="thousand examples seen")
    for axes in (left, right):
        axes.set_ylabel("accuracy on tasks so far, %")
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curve(axes: Any, name: str, group: runs.Group, first: list[int], seen: list[float]) -> None:
    curves = [
        [np.mean([row[t] for t, begin in enumerate(first) if begin <= stage]) for stage, row in enumerate(matrix)]
        for matrix in (result["class_il"]["matrix"] for result in group.results.values())
    ]
    mean, sem = np.mean(curves, 0), np.std(curves, 0, ddof=1) / np.sqrt(len(curves))
    axes.plot(seen, mean, color=COLOURS[name], label=name, marker="o", markersize=3)
    axes.fill_between(seen, mean - sem, mean + sem, color=COLOURS[name], alpha=0.2, linewidth=0)


def against_the_paper() -> Figure:
    """Ours minus the paper's accuracy with our 95% interval; filled: starred in the table."""
    cells = [(cell, label) for cell, label in judged("accuracy") if cell.comparable]
    figure = Figure(figsize=(7.2, 0.6 + 0.19 * len(cells)), layout="constrained")
    axes = figure.subplots()
    labels = []
    for place, (cell, label) in enumerate(cells):
        bounds = interval(cell.ours)
        assert bounds is not None
        colour = "#0072b2" if cell.method == "gcr" else "#555555"
        axes.plot([bounds[0] - cell.paper, bounds[1] - cell.paper], [place, place], color=colour, linewidth=1.5)
        face = colour if "*" in label else "white"
        axes.plot(cell.ours.mean - cell.paper, place, "o", color=colour, markerfacecolor=face, markersize=6)
        name = f"{runs.DATA[cell.scenario]} {cell.regime}, {runs.NAMES[cell.method]}"
        labels.append(f"{name}, K = {cell.group.buffer:,} (n = {cell.ours.n})")
    axes.axvline(0, color="#999999", linewidth=1)
    label = "accuracy, ours minus the paper's, points; bar: 95% interval; filled: starred; blue: GCR"
    figure.supxlabel(label, fontsize=9)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def growth() -> Figure:
    """Seconds of a selection over the number of rows and over the number chosen, on two cores and on a GPU."""
    figure = Figure(figsize=(8.2, 3.1), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name, rest in zip(
        axes, ("n", "K"), ("K = 500; 10 classes: n / 4", "n = 10,000; 10 classes: 4,000"), strict=True
    ):
        for where, line in (("cpu", "-"), ("cuda", "--")):
            library = measured.read("selection-library" if where == "cpu" else "selection-library-cuda")
            rows = [row for row in library["growth"] if row["axis"] == name]
            classes = [row for row in measured.read(f"selection-{where}")["growth"] if row["axis"] == name]
            for what, mine, colour in (
                ("matching, no classes", rows, "#d55e00"),
                ("k-centre", [row | row["k_centre"] for row in rows], "#0072b2"),
                ("matching, 10 classes", classes, "#009e73"),
            ):
                label = what if where == "cpu" and name == "n" else None
                at, seconds = [row[name.lower()] for row in mine], [row["seconds"] for row in mine]
                axis.loglog(at, seconds, line, color=colour, label=label, marker="o", markersize=3)
        axis.set(xlabel=name, title=rest)
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds, two cores; dashed: H200")
    figure.suptitle("512 features and 10 residuals a row", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    return figure
