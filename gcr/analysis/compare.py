"""What ``gcr compare`` shows: an experiment next to others, metric by metric.

``why_unpaired`` says which test is used, here and in ``gcr table --paper``. Holm's correction is over all lines of all
pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gcr.analysis.formats import Entry, Sheet
from gcr.analysis.load import METRICS, PROTOCOLS, Group, Runs, short_digest
from gcr.analysis.statistics import BOLD_P, NO_COMMON, Comparison, Spread, after_holm, compare, spread, welch
from gcr.analysis.tables import shortest_distinct
from gcr.experiments.describe import differing
from gcr.runs.folder import RunFolder
from gcr.settings import BadInput

COLUMNS = ["", "first", "second", "first - second", "seeds", "test", "p", "p (Holm)", "effect"]
ON_A_GPU = "online on a GPU equal seeds of two methods are hardly correlated"
AT_THE_END = ("accuracy",)  # metrics of the last evaluation alone, which all methods have at the same moment
SHOWN = ("accuracy", "forgetting", "anytime", "learning")  # unless asked for others


@dataclass(frozen=True)
class Line:
    protocol: str
    metric: str
    first: Spread | None  # over the seeds that the test takes, as all of the line
    second: Spread | None
    test: Comparison
    p_holm: float | None = None  # once it is ``corrected``

    @property
    def kind(self) -> str:
        """Of its test; without one, of the seeds that the means are over."""
        return "paired" if self.test.n_second is None else "Welch"


@dataclass(frozen=True)
class Pair:
    first: Group
    second: Group
    name: str  # of the second, distinct from those of other pairs
    lines: list[Line]
    unpaired: str  # why; empty: paired


def why_unpaired(first: Group, second: Group, paired: bool | None = None) -> str:
    """Why Welch's test over all seeds of each compares the two; empty: pairs of equal seeds do, in a paired t-test.

    The rule of ``gcr compare``, and of bold in ``gcr table --paper``. Pairs help where equal seeds share their noise:
    not online on a GPU, where a seed trained again ends elsewhere (docs/choose.md). ``paired``: what was asked for.
    """
    common = set(first.seeds) & set(second.seeds)
    if not common:
        return NO_COMMON
    if paired is not None:
        return "" if paired else f"asked for, {len(common)} common"
    both = (first, second)
    on_gpu = any(result.get("device", "cpu") != "cpu" for group in both for result in group.results)
    return ON_A_GPU if on_gpu and all(group.experiment.stream.online for group in both) else ""


def one_group(path: Path, runs: Runs) -> Group:
    if len(runs.groups) > 1:
        raise BadInput(f"{path} holds {len(runs.groups)} experiments; give one of them, as {path}/NAME")
    return runs.groups[0]


def pairs(
    first: Group, others: Sequence[Group], metrics: Sequence[str] | None = None, paired: bool | None = None
) -> list[Pair]:
    """The first experiment with each of the others. ``paired``: what the test is, where both are possible."""
    if metrics is None:  # final accuracy online hangs on the last stream
        metrics = sorted(SHOWN, key=lambda name: name != "anytime") if first.experiment.stream.online else SHOWN
    found = []
    for second, name in zip(others, shortest_distinct([second.folder.parts for second in others]), strict=True):
        why = why_unpaired(first, second, paired)
        found.append(Pair(first, second, name, _lines(first, second, metrics, paired=not why), why))
    return corrected(found)


def corrected(family: Sequence[Pair]) -> list[Pair]:
    """With Holm's correction over all lines of these."""
    values = iter(after_holm([line.test.p for pair in family for line in pair.lines]))
    return [replace(pair, lines=[replace(line, p_holm=next(values)) for line in pair.lines]) for pair in family]


def _lines(first: Group, second: Group, metrics: Sequence[str], paired: bool) -> list[Line]:
    made = []
    for protocol, metric in ((protocol, metric) for protocol in PROTOCOLS for metric in metrics):
        ours, theirs = first.by_seed(protocol, metric), second.by_seed(protocol, metric)
        common = ours.keys() & theirs.keys()
        means = [spread([value for seed, value in of.items() if not paired or seed in common]) for of in (ours, theirs)]
        test = (compare if paired else welch)(ours, theirs)
        if not ours or not theirs:  # there is nothing to doubt
            test = replace(test, warnings=())
        if metric not in AT_THE_END and not _evaluated_alike(first, second):
            test = replace(test, sem=None, p=None, effect=None, warnings=())
        if first.chose or second.chose:
            test = replace(test, p=None, warnings=())
        made.append(Line(protocol, metric, means[0], means[1], test))
    return made


def _evaluated_alike(first: Group, second: Group) -> bool:
    """Online, methods that need task boundaries are evaluated there, others after every stream."""
    online = [group.experiment.method.stages for group in (first, second) if group.experiment.stream.online]
    return {*online} != {"tasks", "streams"}


def sheet(found: Sequence[Pair]) -> Sheet:
    """With a column for the test, where rows differ in it."""
    several, kinds = len(found) > 1, _kinds(found)
    shown = [c for c, name in enumerate(COLUMNS) if name != "test" or len(kinds) > 1]
    rows = []
    for pair in found:
        for line in pair.lines:
            bold = line.p_holm is not None and line.p_holm < BOLD_P
            label, *numbers = _texts(line)
            texts = [f"{pair.name}: {label}" if several else label, *numbers]
            rows.append([Entry(texts[c], bold=bold) for c in shown])
    seeds = {"paired": "common seeds", "Welch": "all seeds of each, unpaired"}
    over = " or ".join(seeds[kind] for kind in kinds)
    against = f"{len(found)} others" if several else found[0].name
    title = f"{found[0].first.name} against {against}: percent, mean ± SEM over {over}"
    return Sheet(title, [COLUMNS[c] for c in shown], rows)


def _kinds(found: Sequence[Pair]) -> list[str]:
    """Of their tests, each once."""
    return [*dict.fromkeys(line.kind for pair in found for line in pair.lines)]


def _texts(line: Line) -> list[str]:
    test = line.test
    both = ["–" if p is None else f"{p:.2g}" for p in (test.p, line.p_holm)]
    effect = "–" if test.effect is None else f"{test.effect:.2f}"
    means = [str(of) if of else "–" for of in (line.first, line.second)]
    difference = "–" if test.difference is None else f"{test.difference:+.2f}"
    difference += "" if test.sem is None else f" ± {test.sem:.2f}"
    label = f"{PROTOCOLS[line.protocol]} {METRICS[line.metric]}"
    return [label, *means, difference, test.seeds, line.kind, *both, effect]


def repeated(pairs: Sequence[tuple[Group, Sequence[RunFolder]]]) -> Sheet:
    """Experiments next to the same trained again: class-IL accuracy over the seeds that were."""
    rows, names = [], Counter(group.name for group, _ in pairs)
    for group, folders in pairs:
        place = group.folder.absolute().parts[-1 if names[group.name] == 1 else -2 :]  # as settings=…/name
        then = group.by_seed("class_il", "accuracy")
        again = [(f.experiment().seed, f.result()) for f in folders if f.finished]
        now = {seed: float(result["class_il"]["accuracy"]) for seed, result in again}
        test, common = compare(now, then), [seed for seed in then if seed in now]
        means = [str(spread([of[seed] for seed in common]) or "–") for of in (then, now)]
        difference = "–" if test.difference is None else f"{test.difference:+.2f}"
        difference += "" if test.sem is None else f" ± {test.sem:.2f}"
        matrices = {seed: result["class_il"]["matrix"] for seed, result in zip(group.seeds, group.results, strict=True)}
        equal = sum(matrices[seed] == result["class_il"]["matrix"] for seed, result in again)
        texts = ["/".join(place), *means, difference, f"{equal} of {len(common)}"]
        rows.append([Entry(text) for text in texts])
    title = "Trained again: class-IL accuracy, percent, mean ± SEM over seeds"
    return Sheet(title, ["", "recorded", "again", "again - recorded", "equal seeds"], rows)


def made_with(results: Iterable[dict[str, Any]]) -> str:
    """What touches the numbers of these runs besides their settings."""
    kinds = Counter(
        f"{result.get('device', '?')} {result.get('machine', '')}".strip()
        + f", torch {result['versions'].get('torch', '?')}, source {short_digest(result.get('source', 'unknown'))}"
        + (f", plugins {short_digest(result['plugins'])}" if result.get("plugins") else "")
        + (f", {result['processes']} processes" if "processes" in result else "")
        for result in results
    )
    return "; ".join(f"{kind} ({count})" for kind, count in kinds.most_common(3)) + ("; others" * (len(kinds) > 3))


def records(found: Sequence[Pair]) -> list[dict[str, object]]:
    """The same for CSV and JSON, with numbers in full and the 95% interval of the difference."""
    return [
        {
            "first_name": pair.first.name,
            "second_name": pair.name,
            "protocol": PROTOCOLS[line.protocol].lower(),
            "metric": line.metric,
            "first": line.first and line.first.mean,
            "second": line.second and line.second.mean,
            "difference": line.test.difference,
            "sem": line.test.sem,
            "n": line.test.n,
            "n_second": line.test.n if line.kind == "paired" else line.test.n_second,
            "test": line.kind.lower(),
            "p": line.test.p,
            "effect": line.test.effect,
            "p_holm": line.p_holm,
            "low95": line.test.interval and line.test.interval[0],
            "high95": line.test.interval and line.test.interval[1],
            "first_bytes": pair.first.memory_bytes,
            "second_bytes": pair.second.memory_bytes,
        }
        for pair in found
        for line in pair.lines
    ]


def notes(found: Sequence[Pair]) -> list[str]:
    tests = sum(line.test.p is not None for pair in found for line in pair.lines)
    over = "1 line" if tests == 1 else f"{tests} lines"
    kinds = _kinds(found)
    several = len(kinds) > 1
    names = {"paired": "a paired t-test", "Welch": "Welch's t-test"}
    test = " or ".join(names[kind] for kind in kinds) + ", as each row says" * several
    effects = {
        "paired": "the mean of the differences in their standard deviations",
        "Welch": "the difference of the means in pooled standard deviations",
    }
    of_tests = f"p: {test}; p (Holm): after Holm's correction over {over}; bold: p (Holm) < {BOLD_P}"
    return [
        *_of_each(found, _differences),
        *([of_tests] if tests else []),
        *(f"effect{f', {kind}' * several}: {effects[kind]} (Cohen's d)" for kind in kinds),
        *_of_each(found, lambda pair: [warning for line in pair.lines for warning in line.test.warnings]),
    ]


def _of_each(found: Sequence[Pair], texts: Callable[[Pair], Iterable[str]]) -> list[str]:
    """Each text once, with the name of its pair where there are several."""
    return [f"{pair.name}: {text}" if len(found) > 1 else text for pair in found for text in dict.fromkeys(texts(pair))]


def _differences(pair: Pair) -> list[str]:
    first, second = pair.first, pair.second
    different = differing(replace(first.experiment, seed=0), replace(second.experiment, seed=0))
    changed = [f"{key} ({ours}, {theirs})" for key, (ours, theirs) in different.items()]
    said = [f"they differ in {', '.join(changed)}" if changed else "they are the same experiment"]
    on_chosen = [which for which, group in (("first", first), ("second", second)) if group.chose]
    said += [f"a setting was chosen on the seeds of the {which}: no test" for which in on_chosen]
    held = [first.memory_bytes, second.memory_bytes]
    if None not in held and held[0] != held[1]:
        said.append("memory: the first holds {:,} bytes, the second {:,}; compare at equal bytes".format(*held))
    if pair.unpaired:
        why = pair.unpaired + "; --paired for pairs" * (pair.unpaired == ON_A_GPU)
        n = len(first.seeds)
        seeds = f"{n} {'seed' if n == 1 else 'seeds'} of the first, {len(second.seeds)} of the second"
        said.append(f"unpaired ({why}): {seeds}")
    return said
