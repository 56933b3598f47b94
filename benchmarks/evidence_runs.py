"""Raw seeds for ``benchmarks/evidence.py``: groups of runs, cells of the paper, Holm's correction."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scipy import stats

from gcr import paper
from gcr.analysis.statistics import Spread, compare, spread

ROOT = Path(__file__).resolve().parents[1]
MORE_SEEDS = {"online": (), "offline": ("offline-selection",)}  # files with further seeds of the same experiments
ENOUGH = 5  # seeds; with fewer, an interval that holds the paper's value decides nothing
LEVEL = 0.05
NAMES = {
    "finetune": "finetune", "er": "ER", "gem": "GEM", "a-gem": "A-GEM", "gss": "GSS", "icarl": "iCaRL", "mir": "MIR",
    "der": "DER", "der++": "DER++", "gcr": "GCR", "gcr+": "GCR+", "gcr + reservoir": "GCR, reservoir", "ocs": "OCS",
    "bilevel": "Bilevel", "er-ace": "ER-ACE", "cls-er": "CLS-ER", "gdumb": "GDumb", "joint": "joint",
}  # fmt: skip
DATA = {"seq-cifar10": "S-CIFAR-10", "seq-cifar100": "S-CIFAR-100", "seq-digits": "digits"}


@dataclass(frozen=True)
class Group:
    """Seeds of one experiment."""

    experiment: dict[str, Any]
    results: dict[int, dict[str, Any]]  # by seed

    def by_seed(self, metric: str) -> dict[int, float]:
        """Class-IL."""
        return {seed: result["class_il"][metric] for seed, result in self.results.items()}

    def mean(self, metric: str) -> Spread:
        found = spread(list(self.by_seed(metric).values()))
        assert found is not None
        return found

    @property
    def buffer(self) -> int:
        return int(self.experiment["memory"]["buffer"]) if self.experiment["memory"] else 0

    @property
    def memory_bytes(self) -> int:
        """The largest that a seed held."""
        return max(int(result["memory_bytes"]) for result in self.results.values())


@dataclass(frozen=True)
class Cell:
    """A cell of the paper's tables with our runs."""

    regime: str
    scenario: str
    method: str
    group: Group
    metric: str
    paper: float

    @property
    def ours(self) -> Spread:
        return self.group.mean(self.metric)

    @property
    def p(self) -> float:
        """Two-sided one-sample t-test; the paper's mean is taken as exact."""
        return float(stats.ttest_1samp(list(self.group.by_seed(self.metric).values()), self.paper).pvalue)


@cache
def read(name: str) -> dict[str, Group]:
    """The groups of a packed file, by their path."""
    groups: dict[str, Group] = {}
    with gzip.open(ROOT / "results" / f"{name}.jsonl.gz", "rt") as lines:
        next(lines)  # the header
        for line in lines:
            row = json.loads(line)
            group = groups.setdefault(row["path"].rsplit("/", 1)[0], Group(row["experiment"], {}))
            group.results[row["experiment"]["seed"]] = row["result"]
    return groups


@cache
def merged(names: tuple[str, ...]) -> list[Group]:
    """The groups of the first file, with further seeds of the same experiments from the others."""
    first, *others = (read(name) for name in names)
    alike = {json.dumps(group.experiment | {"seed": 0}): dict(group.results) for group in first.values()}
    for other in others:
        for group in other.values():
            alike.get(json.dumps(group.experiment | {"seed": 0}), {}).update(group.results)
    return [Group(group.experiment, alike[json.dumps(group.experiment | {"seed": 0})]) for group in first.values()]


@cache
def cells(metric: str) -> list[Cell]:
    """All cells of the paper that were repeated, online first."""
    found = []
    for regime in ("online", "offline"):
        for group in merged((regime, *MORE_SEEDS[regime])):
            method = group.experiment["method"]["name"]
            reservoir = method == "gcr" and group.experiment["memory"]["selector"]["name"] == "reservoir"
            method = "gcr + reservoir" if reservoir else method
            table = "ablation" if reservoir else f"{regime}-{metric}"
            wanted = {"protocol": "class-il", "scenario": group.experiment["scenario"], "metric": metric}
            for cell in paper.find(table, method=method, buffer=group.buffer, **wanted):
                if cell.mean is not None:
                    found.append(Cell(regime, cell.scenario, method, group, metric, cell.mean))
    order = list(NAMES)
    return sorted(found, key=lambda c: (c.regime == "offline", c.scenario, c.group.buffer, order.index(c.method)))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def difference(first: Group, second: Group, metric: str) -> tuple[float, str]:
    """p, and first minus second as text, over the seeds that both have."""
    found = compare(first.by_seed(metric), second.by_seed(metric))
    assert found.difference is not None
    assert found.p is not None
    return found.p, f"{found.difference:+.2f} ± {found.sem:.2f}".replace("-0.00", "+0.00")


def marked(differences: Sequence[Sequence[tuple[float, str] | None]]) -> list[list[str]]:
    """Texts of a table of differences; * where p < 0.05 after Holm's correction over the whole table."""
    tests = [one for row in differences for one in row if one is not None]
    corrected = iter(holm([p for p, _ in tests]))
    return [["–" if one is None else one[1] + "*" * (next(corrected) < LEVEL) for one in row] for row in differences]
