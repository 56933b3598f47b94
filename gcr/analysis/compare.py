"""What ``gcr compare`` shows: two experiments on the seeds that both have, metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gcr.analysis.formats import Entry, Sheet
from gcr.analysis.load import METRICS, PROTOCOLS, Group, Runs
from gcr.analysis.statistics import BOLD_P, Comparison, Spread, compare, spread
from gcr.experiments.differences import differing
from gcr.settings import BadInput

COLUMNS = ["", "first", "second", "first - second", "seeds", "p", "effect"]


@dataclass(frozen=True)
class Line:
    protocol: str
    metric: str
    first: Spread | None  # over the common seeds, as all of the line
    second: Spread | None
    test: Comparison


def one_group(path: Path, runs: Runs) -> Group:
    if len(runs.groups) > 1:
        raise BadInput(f"{path} holds {len(runs.groups)} experiments; give one of them, as {path}/NAME")
    return runs.groups[0]


def lines(first: Group, second: Group, metrics: Sequence[str]) -> list[Line]:
    if not set(first.seeds) & set(second.seeds):
        raise BadInput("the two have no seed in common; train both on the same seeds")
    made = []
    for protocol, metric in ((protocol, metric) for protocol in PROTOCOLS for metric in metrics):
        ours, theirs = first.by_seed(protocol, metric), second.by_seed(protocol, metric)
        seeds = sorted(ours.keys() & theirs.keys())
        means = [spread([of[seed] for seed in seeds]) for of in (ours, theirs)]
        made.append(Line(protocol, metric, means[0], means[1], compare(ours, theirs)))
    return made


def sheet(first: Group, second: Group, found: Sequence[Line]) -> Sheet:
    def texts(line: Line) -> list[str]:
        test = line.test
        p = "–" if test.p is None else f"{test.p:.2g}"
        effect = "–" if test.effect is None else f"{test.effect:.2f}"
        means = [str(of) if of else "–" for of in (line.first, line.second)]
        difference = "–" if test.difference is None else f"{test.difference:+.2f}"
        difference += "" if test.sem is None else f" ± {test.sem:.2f}"
        return [f"{PROTOCOLS[line.protocol]} {METRICS[line.metric]}", *means, difference, str(test.n), p, effect]

    rows = [[Entry(text, bold=line.test.significant()) for text in texts(line)] for line in found]
    names = [group.folder.name for group in (first, second)]
    return Sheet(f"{names[0]} against {names[1]}: percent, mean ± SEM over common seeds", COLUMNS, rows)


def records(found: Sequence[Line]) -> list[dict[str, object]]:
    """The same for CSV, with numbers in full."""
    return [
        {
            "protocol": PROTOCOLS[line.protocol].lower(),
            "metric": line.metric,
            "first": line.first and line.first.mean,
            "second": line.second and line.second.mean,
            "difference": line.test.difference,
            "sem": line.test.sem,
            "n": line.test.n,
            "p": line.test.p,
            "effect": line.test.effect,
        }
        for line in found
    ]


def notes(first: Group, second: Group, found: Sequence[Line]) -> list[str]:
    different = differing(replace(first.experiment, seed=0), replace(second.experiment, seed=0))
    changed = [f"{key} ({ours}, {theirs})" for key, (ours, theirs) in different.items()]
    return [
        f"they differ in {', '.join(changed)}" if changed else "they are the same experiment",
        f"bold: p < {BOLD_P} in a paired t-test, not corrected for the number of lines",
        "effect: the mean of the differences in their standard deviations (Cohen's d)",
        *dict.fromkeys(warning for line in found for warning in line.test.warnings),
    ]
