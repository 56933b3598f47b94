"""Tables of ``gcr+`` for ``benchmarks/evidence.py``: its targets, and what it costs."""

from __future__ import annotations

import json

from evidence_runs import DATA, LEVEL, ROOT, Group, cells, difference, markdown, read

from gcr import paper
from gcr.analysis.statistics import compare, holm

# results/gcr-plus-registration.md: scenario, regime, steps a batch -> target by K
TARGETS = {
    ("seq-cifar10", "offline", 1): {200: 74, 500: 81, 2000: 87},
    ("seq-cifar100", "offline", 1): {200: 45, 500: 54, 2000: 65},
    ("seq-cifar10", "online", 1): {200: 57, 500: 66, 2000: 70},
    ("seq-cifar10", "online", 2): {200: 64, 500: 71, 2000: 76},
    ("seq-cifar100", "online", 1): {200: 20, 500: 26, 2000: 33},
}
Place = tuple[str, str, int, int]  # scenario, regime, steps a batch, K


def place_of(group: Group) -> Place:
    e = group.experiment
    return e["scenario"], "online" if e["stream"]["online"] else "offline", e["training"]["repeats"], group.buffer


def targets() -> str:
    """`gcr+` at each target, next to GCR and DER++ as published, trained by us."""
    ours = {place_of(group): group for group in read("gcr-plus").values()}
    theirs = {(c.scenario, c.regime, 1, c.group.buffer, c.method): c for c in cells("accuracy")}
    rows = []
    for (scenario, regime, repeats), wanted in TARGETS.items():
        for buffer, target in wanted.items():
            place = scenario, regime, repeats, buffer
            group, gcr, der = ours.get(place), theirs.get((*place, "gcr")), theirs.get((*place, "der++"))
            name = f"{DATA[scenario]} {regime}" + (", two steps" if repeats == 2 else "")
            found = f"{group.mean('accuracy')} ({len(group.results)})" if group else "not run"
            minus = difference(group, gcr.group, "accuracy")[1] if group and gcr else "–"
            others = [str(cell.ours) if cell else "–" for cell in (gcr, der)]
            (cell,) = paper.find(f"{regime}-accuracy", scenario=scenario, protocol="class-il", metric="accuracy",
                                 method="gcr", buffer=buffer)  # fmt: skip
            rows.append([name, f"{buffer:,}", found, str(target), minus, *others, f"{cell.mean:.2f}"])
    return markdown(["scenario", "K", "GCR+ (seeds)", "target", "minus GCR", "GCR", "DER++", "paper's GCR"], rows)


TESTS = 12  # three comparisons in four cells
AS_OTHERS = {"der": "DER++ with the same average and softmax", "gcr": "GCR with the same, its pool inside K"}


def comparisons() -> str:
    """`gcr+` minus each opponent with K = 500, over common seeds; corrected by Holm for all announced tests."""
    ours = {place_of(group): group for group in read("gcr-plus").values()}
    published = {
        (c.scenario, c.regime): c.group for c in cells("accuracy") if (c.method, c.group.buffer) == ("gcr", 500)
    }
    others = {(g.experiment["scenario"], g.experiment["stream"]["online"], name.split("-as-")[1].split("-")[0]): g
              for name, g in read("gcr-plus-comparisons").items() if "-as-" in name}  # fmt: skip
    found: list[tuple[str, str, int, str, float | None]] = []
    for regime, scenario in (
        (r, s) for r in ("online", "offline") for s in DATA if s in ("seq-cifar10", "seq-cifar100")
    ):
        opponents = {"GCR as published": published.get((scenario, regime))}
        opponents |= {text: others.get((scenario, regime == "online", key)) for key, text in AS_OTHERS.items()}
        plus = ours[scenario, regime, 1, 500]
        for name, group in opponents.items():
            if group is not None:
                mine, theirs = plus.by_seed("accuracy"), group.by_seed("accuracy")
                test, n = compare(mine, theirs), len(mine.keys() & theirs.keys())
                text = f"{test.difference:+.2f} ± {test.sem:.2f}"
                whole = n == (15 if regime == "online" else 5)
                found.append((f"{DATA[scenario]} {regime}", name, n, text, test.p if whole else None))
    corrected = iter(after_holm([p for *_, p in found if p is not None], TESTS))
    rows = []
    for where, name, n, text, p in found:
        after = f"{next(corrected):.2g}" if p is not None else "not tested"
        rows.append([where, name, str(n), text, after])
    return markdown(["scenario", "GCR+ minus", "seeds", "final accuracy", "p, corrected"], rows)


def after_holm(tested: list[float], announced: int) -> list[float]:
    """p-values corrected for all announced tests, of which some have not been run."""
    return holm([*tested, *[1.0] * (announced - len(tested))])[: len(tested)]


PARTS = {  # left out by
    "average": "average of weights (`decay=0`)",
    "softmax": "asymmetric softmax (`softmax=all`)",
    "contrast": "SupCon (`gamma=0`)",
    "logits": "distance to stored logits (`alpha=0`)",
    "old": "old network (`keep=0`)",
    "balance": "balance over classes (`--selector reservoir`)",
}
CELLS = [(scenario, online) for online in (True, False) for scenario in ("seq-cifar10", "seq-cifar100")]


def ablation() -> str:
    """`gcr+` without one part, minus the whole, K = 500; * after Holm's correction for all announced tests.

    A cell that lacks seeds is shown with their number and not tested.
    """
    groups = {(g.experiment["scenario"], g.experiment["stream"]["online"], name.split("-plus-")[1].split("-k")[0]): g
              for name, g in read("gcr-plus-ablation").items()}  # fmt: skip
    online = {g.experiment["scenario"]: g for g in read("gcr-plus").values() if place_of(g)[1:] == ("online", 1, 500)}
    found: dict[tuple[str, str, bool], tuple[str, float | None]] = {}
    for part in PARTS:
        for scenario, on in CELLS:
            without = groups.get((scenario, on, f"without-{part}"))
            whole = online[scenario] if on else groups.get((scenario, on, "whole"))
            if without and whole:
                test = compare(without.by_seed("accuracy"), whole.by_seed("accuracy"))
                complete = test.n == (15 if on else 3)
                text = f"{test.difference:+.2f} ± {test.sem:.2f}" + ("" if complete else f" ({test.n} seeds)")
                found[part, scenario, on] = text, test.p if complete else None
    tested = {key: p for key, (_, p) in found.items() if p is not None}
    corrected = dict(zip(tested, after_holm(list(tested.values()), len(PARTS) * len(CELLS)), strict=True))
    rows = [[name, *(found.get((part, *cell), ("not run", None))[0] + "*" * (corrected.get((part, *cell), 1) < LEVEL)
                     for cell in CELLS)] for part, name in PARTS.items()]  # fmt: skip
    head = ["without", *(f"{DATA[scenario]} {'online' if on else 'offline'}" for scenario, on in CELLS)]
    return markdown(head, rows)


ARMS = {  # name of the runs -> rows kept by
    "class-balanced": "random rows of each class",
    "herding": "`herding`",
    "density": "`density`",
    "k-centre": "`k-centre`",
    "typicality": "`typicality`",
    "reducible-loss": "`reducible-loss`",
    "grad-approx": "`grad-approx`",
    "grad-approx-unit": "`grad-approx`, unit weights",
    "grad-approx-power-0.5": "`grad-approx`, `power=0.5`",
    "grad-approx-power-0": "`grad-approx`, `power=0`",
    "herding-predictor": "`herding` on the average's features",
    "grad-approx-predictor": "`grad-approx` on the average's gradients",
    "low-loss": "`balanced-reservoir`, `evict=loss`",
}


def selections() -> str:
    """`gcr+` with other selections minus its own, 500 examples in all; * after Holm's correction over a cell's arms."""
    groups: dict[tuple[str, bool, str], Group] = {}
    for name, group in read("gcr-plus-comparisons").items():
        cell = group.experiment["scenario"], group.experiment["stream"]["online"]
        if "-keeps-" in name:
            groups[(*cell, name.split("-keeps-")[1].rsplit("-k", 1)[0])] = group
        elif "-as-gcr-" in name and cell[1]:  # offline it has fewer seeds than were announced here
            groups[(*cell, "grad-approx")] = group
    for group in read("gcr-plus").values():
        if place_of(group)[1:] == ("online", 1, 500):
            groups[group.experiment["scenario"], True, "balanced-reservoir"] = group
    found: dict[tuple[str, str, bool], str] = {}
    for cell in CELLS:
        own = groups.get((*cell, "balanced-reservoir"))
        arms = {arm: groups[(*cell, arm)] for arm in ARMS if own and (*cell, arm) in groups}
        tests = {arm: compare(group.by_seed("accuracy"), own.by_seed("accuracy")) for arm, group in arms.items() if own}
        tested = {arm: test.p for arm, test in tests.items() if test.p is not None and test.n == (15 if cell[1] else 8)}
        corrected = dict(zip(tested, after_holm(list(tested.values()), len(ARMS)), strict=True))
        for arm, test in tests.items():
            text = f"{test.difference:+.2f} ± {test.sem:.2f}" + ("" if arm in tested else f" ({test.n} seeds)")
            found[arm, *cell] = text + "*" * (corrected.get(arm, 1) < LEVEL)
    run = [arm for arm in ARMS if any(key[0] == arm for key in found)]
    rows = [[ARMS[arm], *(found.get((arm, *cell), "not run") for cell in CELLS)] for arm in run]
    return markdown(["rows kept by", *(f"{DATA[s]} {'online' if on else 'offline'}" for s, on in CELLS)], rows)


def cost() -> str:
    """Milliseconds a step, and bytes of memory with K = 500 on S-CIFAR-10."""
    steps = json.loads((ROOT / "results" / "step-cuda-gcr-plus.json").read_text())["rows"]
    ms = {(row["method"], row["pack"]): row["ms"] for row in steps}
    held = {c.method: c.group.memory_bytes for c in cells("accuracy") if (c.scenario, c.group.buffer, c.regime) ==
            ("seq-cifar10", 500, "online")}  # fmt: skip
    (plus,) = (g for g in read("gcr-plus").values() if place_of(g) == ("seq-cifar10", "online", 1, 500))
    examples = held["der++"] + 4 * 500  # a priority for each
    rows = []
    for method, name, kept, copies in (
        ("der++", "DER++", held["der++"], 0),
        ("gcr", "GCR", held["gcr"], 0),
        ("gcr+", "GCR+", examples, plus.memory_bytes - examples),
    ):
        times = [f"{ms[method, pack]:.2f}" for pack in (1, 8)]
        rows.append([name, *times, f"{ms[method, 8] / ms['gcr', 8]:.2f}", f"{kept:,}", f"{copies:,}"])
    head = ["method", "ms a step, alone", "pack of 8", "of GCR's", "bytes of examples and logits", "of network copies"]
    return markdown(head, rows)
