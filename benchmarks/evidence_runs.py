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
from gcr.analysis.load import metric_of
from gcr.analysis.statistics import Spread, compare, holm, one_sample_p, spread, welch
from gcr.experiments.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]
MORE_SEEDS = {"online": (), "offline": ("offline-selection",)}  # files with further seeds of the same experiments
LEVEL = 0.05
CHOSE_VARIANT = (("seq-cifar10", 500), ("seq-cifar100", 2000))  # GCR offline: its seeds below 5 chose its variant
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
        """S-CIFAR online. Equal seeds of two methods are not correlated there, but in any-time accuracy."""
        stream = self.experiment.get("stream", {})
        online = stream.get("online", stream.get("setting") == "online")
        return bool(online) and self.experiment["scenario"].startswith("seq-cifar")

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
    chose: Group | None = None  # seeds that chose a setting of it: the cell itself only until there are others

    @property
    def place(self) -> tuple[str, str, int, str]:
        return self.regime, self.scenario, self.group.buffer, self.method

    @property
    def ours(self) -> Spread:
        return self.group.mean(self.metric)

    @property
    def p(self) -> float:
        """Two-sided one-sample t-test; the paper's mean is taken as exact."""
        found = one_sample_p(self.ours, self.paper)
        assert found is not None
        return found

    @property
    def comparable(self) -> bool:
        at_task_ends = self.metric == "forgetting" and self.regime == "online" and self.method in AT_TASK_ENDS
        return not at_task_ends and self.group is not self.chose


@cache
def read(name: str) -> dict[str, Group]:
    """The groups of a packed file, by their path."""
    groups: dict[str, Group] = {}
    for row in lines_of(name):
        group = groups.setdefault(row["path"].rsplit("/", 1)[0], Group(row["experiment"], {}))
        group.results[row["experiment"]["seed"]] = row["result"]
    return groups


def lines_of(name: str) -> Iterator[dict[str, Any]]:
    """The runs of a packed file: path, experiment and result of each."""
    with gzip.open(ROOT / "results" / f"{name}.jsonl.gz", "rt") as lines:
        next(lines)  # the header
        yield from map(json.loads, lines)


@cache
def merged(names: tuple[str, ...]) -> list[Group]:
    """The groups of the first file, with further seeds of the same experiments from the others."""
    first, *others = (read(name) for name in names)
    alike = {_key(group): Group(group.experiment, dict(group.results)) for group in first.values()}
    for other in others:
        for group in other.values():
            if (same := alike.get(_key(group))) is not None:
                same.results.update(group.results)
    return list(alike.values())


def _key(group: Group) -> Experiment:
    """Equal for equal experiments, whichever version wrote them."""
    return Experiment.from_dict(group.experiment | {"seed": 0})


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
            chose = None
            if (regime, method) == ("offline", "gcr") and (group.experiment["scenario"], group.buffer) in CHOSE_VARIANT:
                chose = Group(group.experiment, {seed: of for seed, of in group.results.items() if seed < 5})
                fresh = Group(group.experiment, {seed: of for seed, of in group.results.items() if seed >= 5})
                group = fresh if fresh.results else chose
            wanted = {"protocol": "class-il", "scenario": group.experiment["scenario"], "metric": metric}
            for cell in paper.find(table, method=method, buffer=group.buffer, **wanted):
                if cell.mean is not None:
                    found.append(Cell(regime, cell.scenario, method, group, metric, cell.mean, chose))
    order = list(NAMES)
    return sorted(found, key=lambda c: (c.regime == "offline", c.scenario, c.group.buffer, order.index(c.method)))


@cache
def places() -> dict[tuple[str, str, int, str], Cell]:
    """Cells of accuracy by regime, scenario, buffer size and method."""
    return {cell.place: cell for cell in cells("accuracy")}


def variants_base(regime: str, scenario: str, buffer: int) -> Group:
    """GCR with the seeds of its variants, for paired tests. Where they chose a setting of it the paper's cell has fresh
    ones instead."""
    if regime == "offline":
        cell = places()[regime, scenario, buffer, "gcr"]
        return cell.chose or cell.group
    first_seeds = read("online-variants").get(f"{scenario}-online-gcr-k{buffer}-seeds-that-chose")
    return first_seeds or places()["online", scenario, buffer, "gcr"].group


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def difference(first: Group, second: Group, metric: str, paired: bool = True) -> tuple[float, str]:
    """p, and first minus second as text: paired over the seeds that both have; by Welch's test if not ``paired``,
    without common seeds, and where pairing does not help (``gpu_stream``)."""
    ours, theirs = first.by_seed(metric), second.by_seed(metric)
    paired &= bool(ours.keys() & theirs.keys()) and (metric == "anytime" or not first.gpu_stream)
    found = (compare if paired else welch)(ours, theirs)
    assert found.difference is not None
    assert found.p is not None
    return found.p, f"{found.difference:+.2f} ± {found.sem:.2f}".replace("-0.00", "+0.00")


def marked(differences: Sequence[Sequence[tuple[float, str] | None]]) -> list[list[str]]:
    """Texts of a table of differences; * where p < 0.05 after Holm's correction over the whole table."""
    tests = [one for row in differences for one in row if one is not None]
    corrected = iter(holm([p for p, _ in tests]))
    return [["–" if one is None else one[1] + "*" * (next(corrected) < LEVEL) for one in row] for row in differences]
