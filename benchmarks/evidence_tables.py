"""The tables that ``benchmarks/evidence.py`` writes into README and docs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import evidence_library as library
import evidence_other as other
import evidence_plus as plus
from evidence_due import ONLINE, ROWS
from evidence_runs import (
    AT_TASK_ENDS,
    DATA,
    LEVEL,
    METRICS,
    NAMES,
    Cell,
    Difference,
    Group,
    cells,
    difference,
    first_seeds,
    markdown,
    marked,
    places,
    read,
)

from gcr.analysis.statistics import FEW_SEEDS, significant_after_holm, verdict


def judged(metric: str, formula: str = "", welch: bool = False) -> list[tuple[Cell, str]]:
    """Cells with their verdicts; * where Holm's correction over all cells with five seeds keeps the difference.
    ``formula``: another one of our values. ``welch``: the paper's mean is that of 15 seeds, not exact."""
    found = [replace(cell, metric=formula or metric) for cell in cells(metric)]
    ps = [(cell.p_of_welch if welch else cell.p) if cell.comparable else None for cell in found]
    apart = significant_after_holm(
        [p if cell.ours.n >= FEW_SEEDS else None for cell, p in zip(found, ps, strict=True)], LEVEL
    )
    words = []
    for cell, p, star in zip(found, ps, apart, strict=True):
        side = verdict(cell.ours, cell.paper)
        if welch and p is not None:
            sides = "inside" if cell.ours.n >= FEW_SEEDS else "undecided", "above" if cell.difference > 0 else "below"
            side = sides[p < LEVEL]
        words.append(side + "*" * star if cell.comparable else "–")
    return list(zip(found, words, strict=True))


COUNTED = {
    "accuracy": ("accuracy", "", False),
    "accuracy, Welch": ("accuracy", "", True),
    "forgetting": ("forgetting", "", False),
    "forgetting, last counted": ("forgetting", "forgetting_with_last", False),
}


def counts() -> str:
    """How many cells agree with the paper's."""
    rows = []
    for name, how in COUNTED.items():
        row = [name]
        for regime in ("online", "offline"):
            labels = [of for cell, of in judged(*how) if cell.regime == regime and cell.comparable]
            found = Counter(label.strip("*") for label in labels)
            sides = [f"{found[side]} ({labels.count(side + '*')})" for side in ("above", "below")]
            row += [str(len(labels)), str(found["inside"]), *sides, str(found["undecided"])]
        rows.append(row)
    sides = ["inside", "above (starred)", "below (starred)", "undecided"]
    return markdown(["", "cells online", *sides, "cells offline", *sides], rows)


def others(regime: str, metric: str, theirs: Mapping[int, tuple[int, ...]] | None = None) -> str:
    """GCR minus every other method. ``theirs``: the others' sizes of K for each of GCR's; without it they are equal."""
    groups = {(c.scenario, c.group.buffer, c.method): c.group for c in cells("accuracy") if c.regime == regime}
    wanted = list(dict.fromkeys((scenario, buffer) for scenario, buffer, _ in groups))
    file = "online-variants" if regime == "online" else "offline-selection"  # with sizes that the paper has not got
    more = [group for name, group in read(file).items() if name.endswith(("-k1000", "-k4000"))]
    groups |= {(of.experiment["scenario"], of.buffer, of.experiment["method"]["name"]): of for of in more}
    offline = regime == "offline"
    left_out = ("gcr", "gcr + reservoir", *(AT_TASK_ENDS if metric == "anytime" else ()))
    starts, differences = [], []
    pairs = [(*place, its) for place in wanted for its in ((place[1],) if theirs is None else theirs.get(place[1], ()))]
    run = {method for scenario, _, its in pairs for data, buffer, method in groups if (data, buffer) == (scenario, its)}
    methods = [name for name in NAMES if name in run and name not in left_out]
    for scenario, buffer, its in pairs:
        if (scenario, its, "der++") not in groups:
            continue
        gcr = groups[scenario, buffer, "gcr"]
        rivals = [groups.get((scenario, its, method)) for method in methods]
        sizes = f"{buffer:,}" if its == buffer else f"{buffer:,}, others {its:,}"
        held = [f"{of.memory_bytes:,}" for of in (gcr, groups[scenario, its, "der++"])]
        seeds = ["/".join("–" if of is None else str(len(of.results)) for of in (gcr, *rivals))]
        starts.append([DATA[scenario], sizes, *(seeds if offline else []), *held, str(gcr.mean(metric))])
        differences.append([None if of is None else difference(gcr, of, metric) for of in rivals])
    minus = [f"minus {NAMES[method]}" for method in methods]
    seeds = [f"seeds, {'/'.join(NAMES[method] for method in ('gcr', *methods))}"] if offline else []
    head = ["data", "K", *seeds, "bytes, GCR", "DER++", f"GCR, {METRICS[metric]}", *minus]
    return markdown(head, [start + row for start, row in zip(starts, marked(differences), strict=True)])


def coverage() -> str:
    verdicts = {(metric, cell.place): (cell, label) for metric in ("accuracy", "forgetting")
                for cell, label in judged(metric)}  # fmt: skip
    rows = []
    for cell in cells("accuracy"):
        row = [f"{DATA[cell.scenario]} {cell.regime}", NAMES[cell.method], f"{cell.group.buffer:,}", cell.group.seeds()]
        for metric in ("accuracy", "forgetting"):
            of, label = verdicts.get((metric, cell.place), (None, ""))
            row += [str(of.ours), f"{of.paper:.2f}", label] if of else [str(cell.group.mean(metric)), "–", "–"]
        rows.append([*row, str(cell.group.mean("forgetting_with_last")), f"{cell.group.memory_bytes:,}"])
    head = [
        "scenario",
        "method",
        "K",
        "seeds",
        "accuracy",
        "paper",
        "verdict",
        "forgetting",
        "paper",
        "verdict",
        "last counted",
        "bytes",
    ]
    return markdown(head, rows)


def selection(*metrics: str) -> str:
    """Matched or random rows x fitted or unit weights; differences to matched rows with fitted weights."""
    online, offline, points = read("online-variants"), read("offline-variants"), read("digits-open-points")
    again = read("offline-selection")  # seeds that no choice was made by
    kinds = ("default", "weights-unit", "rows-random", "class-balanced")
    cases: dict[str, list[Group | None]] = {
        f"{DATA[scenario]}, K = {buffer:,}, online": [
            places()["online", scenario, buffer, "gcr"].group,
            *(online.get(f"{scenario}-online-gcr-k{buffer}-{what}") for what in ROWS),
        ]
        for scenario, buffer, _ in ONLINE
        if any(f"{scenario}-online-gcr-k{buffer}-{what}" in online for what in ROWS)
    } | {
        "S-CIFAR-10, K = 500, offline": [
            again["seq-cifar10-gcr-k500"],
            None,
            None,
            offline["seq-cifar10-gcr-k500-class-balanced"],
        ],
        "S-CIFAR-100, K = 2,000, offline": [
            again["seq-cifar100-gcr-k2000"],
            None,
            None,
            again["seq-cifar100-gcr-class-balanced-k2000"],
        ],
        "digits, online": [points["online-" + kind] for kind in kinds],
        "digits, offline": [points["offline-" + kind] for kind in kinds],
    }
    head = [
        "data",
        "seeds",
        "metric",
        "matched rows, fitted weights",
        "matched, unit",
        "random, fitted",
        "random, unit",
    ]
    starts, differences = [], []
    for data, (base, *arms) in cases.items():
        assert base is not None
        seeds = "/".join("–" if of is None else f"{len(of.results)}{_version_mark(of)}" for of in (base, *arms))
        for metric in metrics if data.endswith("online") else metrics[::-1]:
            starts.append([data, seeds, METRICS.get(metric, metric), str(base.mean(metric))])
            differences.append([None if group is None else difference(group, base, metric) for group in arms])
    return markdown(head, [start + row for start, row in zip(starts, marked(differences), strict=True)])


def _version_mark(of: Group) -> str:
    """† seeds of several versions, ‡ of one that is not recorded."""
    return "‡" if "unnamed" in of.sources else "†" * ("sources" in of.sources)


POINTS = (  # setting, the paper's text, the released code
    ("normalise", "size", "weights"), ("contrast", "features", "logits"), ("sampling", "coin", "split"),
    ("admit", "all", "correct"), ("pool_view", "plain", "weak"), ("pool_mode", "evaluation", "class"),
    ("shares", "class", "task"), ("negative", "excluded", "dropped"), ("atoms", "plain", "weighted"),
)  # fmt: skip


def points() -> str:
    """What each point is worth: the released code's choice minus the paper's, all other points at the default."""
    digits, cifar = read("digits-open-points"), read("online-variants")
    base = places()["online", "seq-cifar10", 500, "gcr"].group
    measured = {name: cifar[f"seq-cifar10-online-gcr-k500-{kind}-seeds-that-chose"] for name, kind in
                (("normalise", "normalise-size"), ("contrast", "logits"))}  # fmt: skip
    differences: list[list[Difference | None]] = []
    for name, text, code in POINTS:
        real: Difference | None
        offline = difference(digits["offline-default"], digits[f"offline-{name}-{text}"], "accuracy")
        if name == "normalise":  # whose default online is the released code's
            online = difference(digits["online-default"], digits["online-normalise-size"], "anytime")
            real = difference(base, measured[name], "anytime")
        else:
            online = difference(digits[f"online-{name}-{code}"], digits["online-default"], "anytime")
            real = difference(measured[name], base, "anytime") if name in measured else None
        differences.append([offline, online, real])
    rows = [
        [f"`{name}`", f"`{text}`", f"`{code}`", *label]
        for (name, text, code), label in zip(POINTS, marked(differences), strict=True)
    ]
    head = [
        "setting",
        "paper",
        "released",
        "digits offline, final",
        "digits online, any-time",
        "S-CIFAR-10 online, any-time",
    ]
    return markdown(head, rows)


def figures() -> str:
    """The small table of the README."""
    ours = {plus.place_of(group): group for group in read("gcr-plus").values()}
    rows = []
    for regime, scenario, buffer in (
        ("online", "seq-cifar10", 500),
        ("online", "seq-cifar100", 500),
        ("offline", "seq-cifar10", 500),
        ("offline", "seq-cifar100", 500),
        ("offline", "seq-cifar100", 2000),
    ):
        label = f"{DATA[scenario]}, {regime}, K = {buffer:,}"
        for cell in filter(None, (places().get((regime, scenario, buffer, method)) for method in ("der++", "gcr"))):
            rows.append([label, NAMES[cell.method], *_numbers(cell.group, f"{cell.paper:.2f}")])
        group = ours.get((scenario, regime, 1, buffer))
        if group:
            rows.append([label, NAMES["gcr+"], *_numbers(group, f"GCR {plus.papers_gcr(regime, scenario, buffer)}")])
    return markdown(["scenario", "method", "seeds", "accuracy", "paper", "any-time", "memory bytes"], rows)


def _numbers(group: Group, paper: str) -> list[str]:
    means = [str(group.mean(metric)) for metric in METRICS]
    return [str(len(group.results)), means[0], paper, means[1], f"{group.memory_bytes:,}"]


def methods() -> str:
    """Every method on digits, and the bytes that its memory holds."""
    groups = read("digits-all")
    rows = []
    for name, label in NAMES.items():
        pair = [group for group in groups.values() if group.experiment["method"]["name"] == name]
        if pair:
            rows.append([label, *(str(group.mean("accuracy")) for group in pair), f"{pair[0].memory_bytes:,}"])
    return markdown(["method", "offline", "online", "memory bytes"], rows)


def variants() -> str:
    """Variants of GCR as a whole on CIFAR."""
    online, offline = read("online-variants"), read("offline-variants")
    cases: list[tuple[str, tuple[str, str, int], dict[str, Group]]] = []
    for buffer in (200, 500):
        start = f"seq-cifar10-online-gcr-k{buffer}-"
        chose = "-seeds-that-chose" if buffer == 500 else ""
        others = {"paper": online[f"{start}normalise-size{chose}"], "released": online[start + "reading-code"]}
        cases.append((f"S-CIFAR-10 online, K = {buffer}", ("online", "seq-cifar10", buffer), others))
    others = {"paper, `normalise=weights`": offline["seq-cifar10-gcr-k500-text-features-seeds-that-chose"]}
    cases.append(("S-CIFAR-10 offline, K = 500", ("offline", "seq-cifar10", 500), others))
    lines: list[list[str]] = []
    tests: list[list[Difference | None]] = []
    for label, place, others in cases:
        cell, online_cell = places()[*place, "gcr"], place[0] == "online"
        base, paper = cell.group if online_cell else first_seeds(*place), f"{cell.paper:.2f}"
        default = "default" if online_cell else "default (released), seeds that chose"
        lines.append([label, default, str(len(base.results)), str(base.mean("accuracy")), paper])
        tests.append([None, None])
        for name, group in others.items():
            lines.append([label, name, str(len(group.results)), str(group.mean("accuracy")), paper])
            tests.append([difference(group, base, metric) for metric in ("accuracy", "anytime")])
    head = ["cell", "variant", "seeds", "accuracy", "paper's figure", "minus default, final", "minus default, any-time"]
    return markdown(head, [line + row for line, row in zip(lines, marked(tests), strict=True)])


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "coverage": ("docs/evidence.md", coverage),
    "counts": ("docs/evidence.md", counts),
    "online": ("docs/online.md", partial(others, "online", "anytime")),
    "online-bytes": ("docs/online.md", partial(others, "online", "anytime", theirs={200: (500,), 500: (1000,)})),
    "online-bytes-final": ("docs/online.md", partial(others, "online", "accuracy", theirs={500: (1000,)})),
    "online-final": ("docs/online.md", partial(others, "online", "accuracy")),
    "offline": (
        "docs/evidence.md",
        partial(others, "offline", "accuracy", theirs={500: (500, 1000), 2000: (2000, 4000)}),
    ),
    "selection": ("docs/rows.md", partial(selection, "anytime", "accuracy")),
    "selection-forgetting": ("docs/rows.md", partial(selection, "forgetting")),
    "points": ("docs/reproduce.md", points),
    "figures": ("README.md", figures),
    "methods": ("docs/methods.md", methods),
    "variants": ("docs/reproduce.md", variants),
    "demo": ("README.md", other.demo),
    "demo-at-start": ("docs/index.md", other.demo),
    "steps": ("docs/performance.md", other.steps),
    "step-of-each": ("docs/performance.md", other.step_of_each),
    "step-on-cpu": ("docs/performance.md", other.step_on_cpu),
    "start-up": ("docs/performance.md", other.start_up),
    "roofline": ("docs/performance.md", other.roofline),
    "solvers": ("docs/selection.md", other.solvers),
    "library-speed": ("docs/performance.md", library.speed),
    "imagenet-cost": ("docs/scale-out.md", library.imagenet_cost),
    "pruning": ("docs/library.md", library.pruning),
    "selectors": ("docs/selection.md", other.selectors),
    "statistics": ("docs/appendix.md", other.statistics),
    "causes": ("docs/appendix.md", other.causes),
    "pairing": ("docs/appendix.md", other.pairing),
    "as-mammoth": ("docs/appendix.md", other.as_mammoth),
    "options": ("docs/appendix.md", other.options),
    "noise": ("docs/choose.md", other.noise),
    "precision": ("docs/reproduce.md", other.precision),
    "corrupted": ("docs/appendix.md", other.corrupted),
    "provenance": ("results/README.md", other.provenance),
    "faults": ("docs/faults.md", other.faults),
    "gcr-plus": ("docs/gcr-plus.md", plus.targets),
    "gcr-plus-published": ("docs/gcr-plus.md", plus.published),
    "gcr-plus-comparisons": ("docs/gcr-plus-parts.md", plus.comparisons),
    "gcr-plus-ablation": ("docs/gcr-plus-parts.md", plus.ablation),
    "gcr-plus-selection": ("docs/gcr-plus-parts.md", plus.selections),
    "gcr-plus-cost": ("docs/gcr-plus.md", plus.cost),
    "gcr-plus-bytes": ("docs/gcr-plus.md", plus.equal_bytes),
    "fuzz": ("docs/faults.md", other.fuzz),
    "busy": ("docs/faults.md", other.busy),
    "kills": ("docs/faults.md", other.kills),
    "integrity": ("docs/faults.md", other.integrity),
}
