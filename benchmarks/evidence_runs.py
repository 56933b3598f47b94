"""Raw seeds for ``benchmarks/evidence.py``: groups of runs, cells of the paper, tests between groups."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gcr import paper
from gcr.analysis.load import CHOSE, metric_of
from gcr.analysis.statistics import FEW_SEEDS, Spread, compare, one_sample_p, significant_after_holm, spread, welch
from gcr.experiments.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]
LEVEL = 0.05
AT_TASK_ENDS = ("gem", "icarl")  # evaluated there alone, online: their forgetting and any-time accuracy do not compare
NAMES = {
    "finetune": "finetune", "er": "ER", "gem": "GEM", "a-gem": "A-GEM", "gss": "GSS", "icarl": "iCaRL", "mir": "MIR",
    "der": "DER", "der++": "DER++", "gcr": "GCR", "gcr+": "GCR+", "gcr + reservoir": "GCR, reservoir", "ocs": "OCS",
    "bilevel": "Bilevel", "er-ace": "ER-ACE", "cls-er": "CLS-ER", "gdumb": "GDumb", "joint": "joint",
}  # fmt: skip
METRICS = {"accuracy": "final", "anytime": "any-time"}
DATA = {
    "seq-cifar10": "S-CIFAR-10", "seq-cifar100": "S-CIFAR-100", "seq-tinyimagenet": "Tiny-ImageNet",
    "seq-digits": "digits",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Seeds of one experiment."""

    experiment: dict[str, Any]
    results: dict[int, dict[str, Any]]  # by seed
    chose: bool = False  # a setting was chosen on these seeds, so nothing is tested with them

    def by_seed(self, metric: str) -> dict[int, float]:
        """Class-IL."""
        values = {seed: metric_of(result, "class_il", metric) for seed, result in sorted(self.results.items())}
        return {seed: value for seed, value in values.items() if value is not None}

    def mean(self, metric: str) -> Spread:
        found = spread(list(self.by_seed(metric).values()))
        assert found is not None
        return found

    @property
    def gpu_stream(self) -> bool:
        """Online on a GPU: equal seeds of two methods are hardly correlated there."""
        stream = self.experiment.get("stream", {})
        online = stream.get("online", stream.get("setting") == "online")
        return bool(online) and self.experiment["scenario"] != "seq-digits"

    @property
    def buffer(self) -> int:
        return int(self.experiment["memory"]["buffer"]) if self.experiment["memory"] else 0

    @property
    def memory_bytes(self) -> int:
        """The largest that a seed held."""
        return max(int(result["memory_bytes"]) for result in self.results.values())

    @property
    def sources(self) -> str:
        """In words, where it is not one that is known."""
        of = [result.get("source") for result in self.results.values()]
        named, unnamed = len({*of} - {None}), of.count(None)
        return (f"{unnamed} unnamed" if named else "unnamed") if unnamed else f"{named} sources" if named > 1 else ""

    def seeds(self, n: int | None = None) -> str:
        """How many there are, or ``n`` of them that count, and their sources."""
        return " ".join(
            filter(None, [str(len(self.results) if n is None else n), self.sources and f"({self.sources})"])
        )


@dataclass(frozen=True)
class Cell:
    """A cell of the paper's tables with our runs."""

    regime: str
    scenario: str
    method: str
    group: Group
    metric: str
    paper: float
    paper_spread: float | None = None  # its ±
    chose: Group | None = None  # seeds that chose a setting of it; the cell itself until there are others

    @property
    def place(self) -> tuple[str, str, int, str]:
        return self.regime, self.scenario, self.group.buffer, self.method

    @property
    def ours(self) -> Spread:
        return self.group.mean(self.metric)

    @property
    def difference(self) -> float:
        return self.ours.mean - self.paper

    @property
    def p(self) -> float:
        """Two-sided one-sample t-test; the paper's mean is taken as exact."""
        found = one_sample_p(self.ours, self.paper)
        assert found is not None
        return found

    @property
    def p_of_welch(self) -> float | None:
        """The same if the paper's ± is the deviation of its 15 seeds."""
        from scipy.stats import ttest_ind_from_stats

        if self.paper_spread is None or self.ours.sem is None:
            return None
        ours = self.ours.mean, self.ours.sem * self.ours.n**0.5, self.ours.n
        return float(ttest_ind_from_stats(*ours, self.paper, self.paper_spread, 15, equal_var=False).pvalue)

    @property
    def comparable(self) -> bool:
        at_task_ends = self.metric.startswith("forgetting") and self.regime == "online" and self.method in AT_TASK_ENDS
        return not at_task_ends and not self.group.chose


@cache
def read(name: str) -> dict[str, Group]:
    """The groups of a packed file, by their path."""
    groups: dict[str, Group] = {}
    for row in lines_of(name):
        place = row["path"].rsplit("/", 1)[0]
        group = groups.setdefault(place, Group(row["experiment"], {}, chose=place.endswith(CHOSE)))
        group.results[row["experiment"]["seed"]] = row["result"]
    return groups


def lines_of(name: str) -> Iterator[dict[str, Any]]:
    """The runs of a packed file: path, experiment and result of each."""
    with gzip.open(ROOT / "results" / f"{name}.jsonl.gz", "rt") as lines:
        next(lines)  # the header
        yield from map(json.loads, lines)


def fresh(group: Group) -> Group:
    """Other seeds of an experiment whose own chose a setting of it; its own until there are any."""
    for other in read("offline-selection").values() if group.chose else ():
        if _key(other) == _key(group):
            return other
    return group


def _key(group: Group) -> Experiment:
    """Equal for equal experiments, whichever version wrote them."""
    return Experiment.from_dict(group.experiment | {"seed": 0})


@cache
def cells(metric: str) -> list[Cell]:
    """All cells of the paper that were repeated, online first."""
    found = []
    for regime in ("online", "offline"):
        for ours in read(regime).values():
            group, chose = fresh(ours), ours if ours.chose else None
            method = group.experiment["method"]["name"]
            reservoir = method == "gcr" and group.experiment["memory"]["selector"]["name"] == "reservoir"
            method = "gcr + reservoir" if reservoir else method
            table = "ablation" if reservoir else f"{regime}-{metric}"
            wanted = {"protocol": "class-il", "scenario": group.experiment["scenario"], "metric": metric}
            for cell in paper.find(table, method=method, buffer=group.buffer, **wanted):
                if cell.mean is not None:
                    found.append(Cell(regime, cell.scenario, method, group, metric, cell.mean, cell.spread, chose))
    order = list(NAMES)
    return sorted(found, key=lambda c: (c.regime == "offline", c.scenario, c.group.buffer, order.index(c.method)))


@cache
def places() -> dict[tuple[str, str, int, str], Cell]:
    """Cells of accuracy by regime, scenario, buffer size and method."""
    return {cell.place: cell for cell in cells("accuracy")}


def first_seeds(regime: str, scenario: str, buffer: int) -> Group:
    """GCR with seeds from 0 on. Where they chose a setting of it the paper's cell has fresh ones instead."""
    cell = places()[regime, scenario, buffer, "gcr"]
    if regime == "offline":
        return cell.chose or cell.group
    return read("online-variants").get(f"{scenario}-online-gcr-k{buffer}-seeds-that-chose") or cell.group


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Difference = tuple[float | None, str]  # p, None where nothing is tested; the text


def difference(first: Group, second: Group, metric: str) -> Difference:
    """First minus second: paired over the seeds that both have; by Welch's test without common seeds and where they
    are hardly correlated (``gpu_stream``). Fewer than five seeds, and those that chose a setting, have no test."""
    ours, theirs = first.by_seed(metric), second.by_seed(metric)
    paired = bool(ours.keys() & theirs.keys()) and not first.gpu_stream
    found = (compare if paired else welch)(ours, theirs)
    assert found.difference is not None
    tested = not (first.chose or second.chose) and min(found.n, found.n_second or found.n) >= FEW_SEEDS
    return found.p if tested else None, f"{found.difference:+.2f} ± {found.sem:.2f}".replace("-0.00", "+0.00")


def marked(differences: Sequence[Sequence[Difference | None]]) -> list[list[str]]:
    """Texts of a table of differences; * where p < 0.05 after Holm's correction over the whole table."""
    apart = iter(significant_after_holm([one and one[0] for row in differences for one in row], LEVEL))
    return [
        [
            "–" if one is None else one[1] + (" (no test)" if one[0] is None else "*" * of)
            for one, of in zip(row, apart, strict=False)
        ]
        for row in differences
    ]
