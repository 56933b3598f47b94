"""Tables of ``gcr+`` for ``benchmarks/evidence.py``: its targets, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

import measured
from evidence_runs import DATA, LEVEL, METRICS, NAMES, Group, difference, first_seeds, markdown, places, read
from gcr_plus_runs import ARMS, PARTS, SHORT, UNTESTED_ARMS

from gcr import paper
from gcr.analysis.statistics import Comparison, compare, holm

# results/gcr-plus-registration.md: scenario, regime, steps a batch -> target by K
TARGETS = {
    ("seq-cifar10", "offline", 1): {200: 74, 500: 81, 2000: 87},
    ("seq-cifar100", "offline", 1): {200: 45, 500: 54, 2000: 65},
    ("seq-cifar10", "online", 1): {200: 57, 500: 66, 2000: 70},
    ("seq-cifar10", "online", 2): {200: 64, 500: 71, 2000: 76},
    ("seq-cifar100", "online", 1): {200: 20, 500: 26, 2000: 33},
}
Place = tuple[str, str, int, int]  # scenario, regime, steps a batch, K
# The highest that we found published at equal K with a ResNet-18, scenario, regime and K -> method and figure
PUBLISHED = {
    ("seq-cifar10", "offline", 200): {"CLS-ER": "66.19 ± 0.75"},
    ("seq-cifar10", "offline", 500): {"CLS-ER": "75.22 ± 0.71"},
    ("seq-cifar100", "offline", 200): {"CLS-ER": "43.80 ± 1.89", "IMEX-Reg": "48.54"},
    ("seq-cifar100", "offline", 500): {"CLS-ER": "51.40 ± 1.00", "IMEX-Reg": "56.53"},
    ("seq-cifar10", "online", 200): {"OnPro": "65.5 ± 1.0"},
    ("seq-cifar10", "online", 500): {"OnPro": "72.6 ± 0.8"},
}


def place_of(group: Group) -> Place:
    e = group.experiment
    return e["scenario"], "online" if e["stream"]["online"] else "offline", e["training"]["repeats"], group.buffer


def targets() -> str:
    """`gcr+` at each target, next to GCR and DER++ as published, trained by us."""
    ours = {place_of(group): group for group in read("gcr-plus").values()}
    rows = []
    for (scenario, regime, repeats), wanted in TARGETS.items():
        for buffer, target in wanted.items():
            group = ours.get((scenario, regime, repeats, buffer))
            published = places() if repeats == 1 else {}
            gcr, der = (published.get((regime, scenario, buffer, method)) for method in ("gcr", "der++"))
            name = f"{DATA[scenario]} {regime}" + (", two steps" if repeats == 2 else "")
            seeds = ", ".join(filter(None, [str(len(group.results)), group.sources])) if group else ""
            found = f"{group.mean('accuracy')} ({seeds})" if group else "not run"
            minus = difference(group, gcr.group, "accuracy")[1] if group and gcr else "–"
            others = [str(cell.ours) if cell else "–" for cell in (gcr, der)]
            held = [f"{of.memory_bytes:,}" if of else "–" for of in (group, gcr and gcr.group, der and der.group)]
            theirs = papers_gcr(regime, scenario, buffer)
            rows.append([name, f"{buffer:,}", found, str(target), minus, *others, theirs, *held])
    head = ["scenario", "K", "GCR+ (seeds)", "target", "minus GCR", "GCR", "DER++", "paper's GCR"]
    return markdown([*head, "bytes, GCR+", "GCR", "DER++"], rows)


def papers_gcr(regime: str, scenario: str, buffer: int) -> str:
    (cell,) = paper.find(f"{regime}-accuracy", scenario=scenario, protocol="class-il", metric="accuracy",
                         method="gcr", buffer=buffer)  # fmt: skip
    return f"{cell.mean:.2f}"


def published() -> str:
    """`gcr+`, online with one step a batch and two, next to figures of others' publications."""
    ours = {place_of(group): group for group in read("gcr-plus").values()}
    rows = []
    for (scenario, regime, buffer), figures in PUBLISHED.items():
        groups = [ours.get((scenario, regime, repeats, buffer)) for repeats in (1, 2)]
        means = [str(group.mean("accuracy")) for group in groups if group]
        there = ", ".join(f"{method} {figure}" for method, figure in figures.items())
        rows.append([f"{DATA[scenario]} {regime}", f"{buffer:,}", ", ".join(means) or "not run", there])
    return markdown(["scenario", "K", "GCR+", "published"], rows)


CELLS = [(scenario, online) for online in (True, False) for scenario in ("seq-cifar10", "seq-cifar100")]
TESTS = 12  # three comparisons in four cells
AS_OTHERS = {
    "der-k500": "GCR+ with DER++'s terms and memory",
    "gcr-k250": "GCR+ with GCR's memory, its pool inside K",
}
UNTESTED = ("DER++ as published", "ER-ACE, default values")  # announced as figures only


def comparisons() -> str:
    """`gcr+` minus each opponent with K = 500, over common seeds; corrected by Holm for all announced tests."""
    runs, found = read("gcr-plus-comparisons"), []
    for scenario, online in CELLS:
        start, regime = _start(scenario, online), "online" if online else "offline"
        gcr, der = (places().get((regime, scenario, 500, method)) for method in ("gcr", "der++"))
        opponents = {"GCR as published": first_seeds(regime, scenario, 500) if gcr else None}  # seeds as announced
        opponents |= {text: runs.get(f"{start}as-{key}") for key, text in AS_OTHERS.items()}
        er_ace = runs.get(f"{scenario}{'-online' if online else ''}-er-ace-k500")
        opponents |= dict(zip(UNTESTED, (der.group if der else None, er_ace), strict=True))
        for name, group in opponents.items():
            short = not online and "published" not in name
            plus = own(scenario, online) if short else read("gcr-plus")[f"{start}k500"]
            if group is not None and plus is not None:
                seeds = range(15 if online else 5)
                final, *others = (_over(seeds, plus, group, of) for of in ("accuracy", "anytime", "learning"))
                texts = [f"{one.difference:+.2f} ± {one.sem:.2f}" for one in (final, *others)]
                p = final.p if final.n == len(seeds) and name not in UNTESTED else None
                held = f"{group.memory_bytes:,}"
                where = f"{DATA[scenario]} {regime}" + (f", {SHORT} epochs" if short else "")
                found.append((where, name, group.seeds(final.n), held, texts, p))
    corrected = iter(after_holm([p for *_, p in found if p is not None], TESTS))
    rows = []
    for where, name, of, held, texts, p in found:
        after = f"{next(corrected):.2g}" if p is not None else "not tested"
        rows.append([where, name, held, of, texts[0], after, *texts[1:]])
    head = ["scenario", "GCR+ minus", "its bytes", "seeds", "final", "p, corrected", "any-time", "learning"]
    return markdown(head, rows)


def _over(seeds: range, first: Group, second: Group, metric: str) -> Comparison:
    return compare(*({s: v for s, v in group.by_seed(metric).items() if s in seeds} for group in (first, second)))


def _start(scenario: str, online: bool) -> str:
    """Of the names of runs."""
    return f"{scenario}{'-online' if online else ''}-gcr-plus-"


def own(scenario: str, online: bool) -> Group | None:
    """`gcr+` itself with K = 500, as parts and opponents are compared with it: offline after 10 epochs a task."""
    if online:
        return read("gcr-plus")[f"{_start(scenario, online)}k500"]
    return read("gcr-plus-comparisons").get(f"{_start(scenario, online)}10-epochs-k500")


def after_holm(tested: list[float], announced: int) -> list[float]:
    """p-values corrected for all announced tests, of which some have not been run."""
    return holm([*tested, *[1.0] * (announced - len(tested))])[: len(tested)]


def ablation() -> str:
    """`gcr+` without one part, minus the whole, K = 500; * after Holm's correction for all announced tests.

    A cell that lacks seeds is shown with their number and not tested.
    """
    runs = read("gcr-plus-ablation")
    groups = {
        (part, *cell): runs[name]
        for part in PARTS
        for cell in CELLS
        if (name := f"{_start(*cell)}without-{part}-k500") in runs
    }
    metrics = ("accuracy", "anytime", "forgetting", "learning")
    return _against_own("without", PARTS, groups, metrics, offline_seeds=3, announced=len(PARTS) * len(CELLS))


def selections() -> str:
    """`gcr+` with other selections minus its own, 500 examples in all; * after Holm's correction over a cell's arms."""
    runs = read("gcr-plus-comparisons")
    arms = ARMS | UNTESTED_ARMS
    names = {(arm, *cell): f"{_start(*cell)}keeps-{arm}-k{settings.get('buffer', 500)}"
             for arm, (_, settings) in arms.items() for cell in CELLS}  # fmt: skip
    names |= {("grad-approx", *cell): f"{_start(*cell)}as-gcr-k250" for cell in CELLS}
    groups = {key: runs[name] for key, name in names.items() if name in runs}
    run = {arm: about for arm, about in arms.items() if any(key[0] == arm for key in groups)}
    metrics = ("accuracy", "anytime", "forgetting")
    return _against_own("rows kept by", run, groups, metrics, offline_seeds=8, announced=len(ARMS), by_cell=True)


def _against_own(
    head: str,
    arms: Mapping[str, tuple[str, object]],
    groups: Mapping[tuple[str, str, bool], Group],
    metrics: tuple[str, ...],
    offline_seeds: int,
    announced: int,
    by_cell: bool = False,
) -> str:
    """A row per arm, columns per cell that has runs: the arm minus `gcr+` itself.
    The first metric is tested: Holm's correction over all tests, or those of a cell."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    tested: dict[tuple[str, str, bool], float] = {}
    for key, group in groups.items():
        arm, scenario, online = key
        if (whole := own(scenario, online)) is not None and len(group.results) > 1:
            final, *others = (compare(group.by_seed(m), whole.by_seed(m)) for m in metrics)
            found[key] = [f"{one.difference:+.2f} ± {one.sem:.2f}" for one in (final, *others)]
            if final.n != (15 if online else offline_seeds):
                found[key][0] += f" ({final.n} seeds)"
            elif final.p is not None and arm not in UNTESTED_ARMS:
                tested[key] = final.p
    for cells_together in [[cell] for cell in CELLS] if by_cell else [CELLS]:
        these = [key for key in tested if key[1:] in cells_together]
        for key, p in zip(these, after_holm([tested[key] for key in these], announced), strict=True):
            found[key][0] += "*" * (p < LEVEL)
    for key in found:
        found[key][0] += " †" * ("sources" in groups[key].sources)
    run = [cell for cell in CELLS if any(key[1:] == cell for key in found)]
    not_run = ["not run", *["–"] * (len(metrics) - 1)]
    rows = [
        [text, *(part for cell in run for part in found.get((arm, *cell), not_run))] for arm, (text, _) in arms.items()
    ]
    columns = [
        f"{DATA[s]} {'online' if on else 'offline'}, {METRICS.get(metric, metric)}"
        for s, on in run
        for metric in metrics
    ]
    return markdown([head, *columns], rows)


def cost() -> str:
    """Milliseconds a step, and bytes of memory with K = 500 on S-CIFAR-10."""
    steps = measured.read("step-cuda-gcr-plus")["rows"]
    ms = {(row["method"], row["pack"]): row["ms"] for row in steps}
    held = {name: places()["online", "seq-cifar10", 500, name].group.memory_bytes for name in ("der++", "gcr")}
    (plus,) = (g for g in read("gcr-plus").values() if place_of(g) == ("seq-cifar10", "online", 1, 500))
    examples = held["der++"] + 4 * 500  # a priority for each
    rows = []
    for method, name, kept, copies in (
        ("der++", "DER++", held["der++"], 0),
        ("gcr", "GCR", held["gcr"], 0),
        ("gcr+", "GCR+", examples, plus.memory_bytes - examples),
    ):
        times = [f"{ms[method, pack]:.2f}" for pack in (1, 8)]
        ratios = " / ".join(f"{ms[method, pack] / ms['gcr', pack]:.2f}" for pack in (1, 8))
        rows.append([name, *times, ratios, f"{kept:,}", f"{copies:,}"])
    head = ["method", "ms a step, alone", "pack of 8", "of GCR's", "bytes of examples and logits", "of network copies"]
    return markdown(head, rows)


def equal_bytes() -> str:
    """`gcr+` with K = 500 next to methods that hold as many bytes in examples as it holds with its network copies."""
    runs, rows = read("gcr-plus-comparisons"), []
    for scenario, online in CELLS:
        start = f"{scenario}-{'online' if online else 'offline'}-"
        others = [group for name, group in runs.items() if name.startswith((start + "derpp-k", start + "er-k"))]
        for group in [own(scenario, online), *others] if others else []:
            if group is not None:
                means = [str(group.mean(metric)) for metric in METRICS]
                name, held = NAMES[group.experiment["method"]["name"]], f"{group.memory_bytes:,}"
                rows.append([f"{DATA[scenario]} {'online' if online else 'offline'}", name, f"{group.buffer:,}", held,
                             str(len(group.results)), *means])  # fmt: skip
    return markdown(["scenario", "method", "examples", "bytes", "seeds", *METRICS.values()], rows)
