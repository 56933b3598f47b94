"""Figures in the README and the docs equal what the files under results/ give. The only tests that read these files."""

import json
import statistics
from pathlib import Path

from gcr.analysis.load import read_runs

ROOT = Path(__file__).parents[1]


def cells(page):
    """The rows of all tables of a page, terminal or Markdown, as lists of cells."""
    lines = [line.strip() for line in (ROOT / page).read_text().splitlines()]
    rows = [line[1:-1].replace("│", "|").split("|") for line in lines if line.startswith(("│", "|"))]
    return [[cell.strip().strip("*") for cell in row] for row in rows]


def test_every_results_file_can_be_read():
    runs = read_runs(ROOT / "results")
    assert not runs.unreadable
    assert sum(len(group.seeds) for group in runs.groups) > 3000


def test_results_stay_small():
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file() and file.name != "report.html"]
    assert len(files) <= 60
    assert sum(file.stat().st_size for file in files) <= 8_000_000


def test_the_avalanche_table():
    shown = cells("docs/frameworks.md")
    for row in json.loads((ROOT / "results/avalanche.json").read_text())["rows"]:
        mean, error = statistics.mean(row["accuracies"]), statistics.stdev(row["accuracies"])
        accuracy = f"{mean:.2f} ± {error / len(row['accuracies']) ** 0.5:.2f}"
        assert [row["plugin"], row["about"], accuracy, f"{row['seconds']:.1f}"] in shown
