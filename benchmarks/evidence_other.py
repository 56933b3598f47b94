"""Further tables of ``benchmarks/evidence.py``: speed, selectors, and facts measured on digits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, zip_longest
from statistics import correlation, mean, stdev
from typing import Any

import measured
from evidence_runs import (
    AT_TASK_ENDS,
    METRICS,
    NAMES,
    ROOT,
    Group,
    cells,
    difference,
    first_seeds,
    lines_of,
    markdown,
    marked,
    places,
    read,
)

from gcr.analysis.load import read_runs
from gcr.analysis.statistics import compare, welch
from gcr.analysis.tables import columns, table


def steps() -> str:
    """Milliseconds a step and run on a GPU, by how steps are launched."""
    rows = {(r["method"], r["mode"], r["pack"]): r for r in measured.read("step-cuda")["rows"]}
    ways = [("eager", 1), *(("captured", pack) for pack in (1, 4, 8))]
    methods = ("er", "der++", "gcr")
    lines = [
        [f"{mode}, pack of {pack}" if pack > 1 else mode, *(f"{rows[m, mode, pack]['ms']:.2f}" for m in methods)]
        for mode, pack in ways
    ]
    lines.append(["share of peak, pack of 8", *(f"{rows[m, 'captured', 8]['peak_share']:.0%}" for m in methods)])
    return markdown(["ms a step", *(NAMES[m] for m in methods)], lines)


def step_of_each() -> str:
    """Milliseconds a step of every method in a pack of 8."""
    rows = {row["method"]: row for row in measured.read("step-cuda-methods")["rows"]}
    timed_again = measured.read("step-cuda-a-gem")["rows"]
    rows["a-gem"] = next(row for row in timed_again if row["method"] == "a-gem")
    known = [name for name in NAMES if name in rows]
    lines = [[NAMES[name], f"{rows[name]['ms']:.2f}", f"{rows[name]['gigaflops']:.0f}"] for name in known]
    half = -(-len(lines) // 2)
    lines = [first + second for first, second in zip_longest(lines[:half], lines[half:], fillvalue=["", "", ""])]
    return markdown(["method", "ms a step", "GFLOP a step"] * 2, lines)


def step_on_cpu() -> str:
    """Processor milliseconds a step, ours and Mammoth's, on each kind of processor."""
    reports: list[dict[str, Any]] = measured.read("step-beside-mammoth")
    head, lines = ["ms a step on a CPU"], []
    for report in reports:
        kind = report["device"].split()[0].replace("_", "-")
        head += [f"{kind}: ours", "Mammoth", "ratio"]
    for rows in zip(*(report["rows"] for report in reports), strict=True):
        network = {"resnet18": "ResNet-18"}.get(rows[0]["model"], rows[0]["model"])
        lines.append([f"{network}, {NAMES[rows[0]['method']]}"])
        for row in rows:
            times = [f"{row[side]['processor_ms']:,.0f}" for side in ("ours", "theirs")]
            lines[-1] += [*times, f"{row['ratio']:.2f}"]
    return markdown(head, lines)


def start_up() -> str:
    rows = [[row["what"], f"{row['seconds']:.2f}", f"{row['limit']:g}"] for row in measured.read("start-up")["rows"]]
    return markdown(["command", "seconds", "limit"], rows)


def roofline() -> str:
    """Microseconds of a step in convolutions and normalisations, in 8 CUDA streams, and what the GPU allows."""
    kinds = {
        "convolutions, 32 x 32": ("64-64",),
        "convolutions, 16 x 16": ("128-128",),
        "convolutions, 8 x 8 and 4 x 4": ("256-256", "512-512"),
        "first convolution, those of stride 2": (" 3-64", "stride"),
        "normalisation": ("norm",),
        "sum": ("",),
    }
    lines = []
    for kind, marks in kinds.items():
        line = [kind]
        for method in ("der++", "gcr"):
            rows = [r for r in measured.read("kernels-roofline")["rows"] if r["method"] == method]
            rows = [row for row in rows if any(mark in row["layer"] for mark in marks)]
            floor, packed = (sum(row["times"] * row[key] for row in rows) for key in ("floor_us", "packed_us"))
            line += [f"{packed:.0f}", f"{floor:.0f}", f"{floor / packed:.0%}"]
        lines.append(line)
    return markdown(["us a step", "DER++", "floor", "share", "GCR", "floor", "share"], lines)


def solvers() -> str:
    """Seconds of one selection by different solvers."""
    found = [measured.read(name)["compared"] for name in ("selection-cpu", "selection-cuda")]
    cpu, gpu = ({row["what"]: row for row in rows} for rows in found)
    lines = []
    for what, row in cpu.items():
        there = gpu.get(what)
        lines.append(
            [what, f"{row['seconds']:.2f}", f"{there['seconds']:.2f}" if there else "–", f"{row['objective']:,.0f}"]
        )
    return markdown(["solver", "CPU, s", "H200, s", "L_sub (CPU)"], lines)


def selectors() -> str:
    """Every selector under GCR's loss on digits, with clean and with wrong labels."""
    by_case: dict[tuple[str, float], dict[int, float]] = {}
    for row in measured.read("which-selector-digits"):
        by_case.setdefault((row["variant"], row["noise"]), {})[row["seed"]] = row["accuracy"]
    names = list(dict.fromkeys(name for name, _ in sorted(by_case)))
    names.remove("grad-approx")
    groups = {
        case: Group({}, {seed: {"class_il": {"accuracy": value}} for seed, value in values.items()})
        for case, values in by_case.items()
    }
    noises = (0.0, 0.2)
    label = marked(
        [[difference(groups[name, n], groups["grad-approx", n], "accuracy") for n in noises] for name in names]
    )
    base = ["`grad-approx`", *(str(groups["grad-approx", noise].mean("accuracy")) for noise in noises)]
    head = ["selector", "clean labels", "20% wrong labels"]
    return markdown(head, [base, *([f"`{name}`", *row] for name, row in zip(names, label, strict=True))])


def statistics() -> str:
    """BatchNorm statistics recomputed from memory before predicting, minus those of training."""
    groups = read("digits-statistics")
    metrics, names = (
        ("accuracy", "anytime"),
        {"er": "ER", "derpp": "DER++", "gcr": "GCR", "er-ace": "ER-ACE", "icarl": "iCaRL"},
    )
    found = []
    for name in names:
        row = []
        for regime, prefix in (("offline", "seq-digits"), ("online", "seq-digits-online")):
            start = f"{regime}/{prefix}-{name}-k100-statistics"
            row += [difference(groups[start + "memory"], groups[start + "training"], metric) for metric in metrics]
        found.append(row)
    head = ["method", "offline, final", "offline, any-time", "online, final", "online, any-time"]
    return markdown(head, [[label, *row] for label, row in zip(names.values(), marked(found), strict=True)])


def corrupted() -> str:
    """Accuracy with wrong labels, unequal classes, a short last task, and ten tasks."""
    groups = read("digits-variants")
    kinds = {
        "label_noise=0.2": "20% wrong labels",
        "imbalance=0.1": "imbalance 10:1",
        "last_task=0.25": "last task 1/4",
        "tasks=10": "10 tasks",
    }
    names = {
        "er": "ER",
        "er-admit-correct": "ER, `admit=correct`",
        "derpp": "DER++",
        "derpp-admit-correct": "DER++, `admit=correct`",
        "gcr": "GCR (`admit=correct`)",
        "gcr-admit-all": "GCR, `admit=all`",
        "gcr-class-balanced": "GCR, random rows",
    }
    lines = []
    for name, label in names.items():
        found = [groups.get(f"{kind}/seq-digits-{name}-k100") for kind in kinds]
        lines.append([label, *("–" if group is None else str(group.mean("accuracy")) for group in found)])
    return markdown(["method", *kinds.values()], lines)


def causes() -> str:
    """What was tried to explain cells that differ from the paper's: S-CIFAR-10 online, minus our runs of it."""
    tried = (
        ("er", 200, "separate forward pass for replay", "er-k200-separate"),
        ("er", 500, "separate forward pass for replay", "er-k500-separate"),
        ("er", 200, "learning rate 0.01", "er-k200-lr0.01"),
        ("er", 200, "learning rate 0.1", "er-k200-lr0.1"),
        ("icarl", 500, "loss, replay and feature lengths as in Mammoth", "icarl-k500-mean-replay2-own"),
        ("mir", 2000, "`criterion=logits`", "mir-k2000-logits"),
        ("gcr", 200, "variant `released`", "gcr-k200-reading-code"),
        ("gcr", 200, "`contrast=logits`", "gcr-k200-logits-seeds-that-chose"),
        ("gcr", 2000, "`normalise=size`", "gcr-k2000-normalise-size"),
        ("gcr", 2000, "`contrast=logits`", "gcr-k2000-logits-seeds-that-chose"),
    )
    groups = read("online-variants")
    lines, tests = [], []
    for method, buffer, label, name in tried:
        cell, group = places()["online", "seq-cifar10", buffer, method], groups[f"seq-cifar10-online-{name}"]
        figures = [str(cell.ours), str(group.mean("accuracy")), f"{cell.paper:.2f}"]
        lines.append([f"{NAMES[method]}, K = {buffer:,}", label, *figures])
        tests.append([difference(group, cell.group, "accuracy")])
    head = ["cell", "change", "ours", "with the change", "paper", "difference"]
    return markdown(head, [line + row for line, row in zip(lines, marked(tests), strict=True)])


def pairing() -> str:
    """Correlation over equal seeds, S-CIFAR online, and one difference by both tests."""
    own = [c for c in cells("accuracy") if c.regime == "online"]
    gcr = first_seeds("online", "seq-cifar10", 500)
    methods = [(a, b) for a, b in combinations(own, 2) if (a.scenario, a.group.buffer) == (b.scenario, b.group.buffer)]
    start = "seq-cifar10-online-gcr-k500-"
    variants = {name.removeprefix(start): of for name, of in read("online-variants").items() if name.startswith(start)}
    random, lines = variants["class-balanced"], []
    for metric, label in (("anytime", "any-time"), ("accuracy", "final"), ("forgetting", "forgetting")):
        values = random.by_seed(metric), gcr.by_seed(metric)
        tests = [f"{of.difference:+.2f} ± {of.sem:.2f}, p = {of.p:.2g}" for of in (compare(*values), welch(*values))]
        alike = [pair for pair in methods if metric == "accuracy" or not {of.method for of in pair} & {*AT_TASK_ENDS}]
        pairs = (
            [(a.group, b.group) for a, b in alike],
            [(gcr, variant) for variant in variants.values() if variant is not gcr],
        )
        lines.append([label, *(f"{_correlation(of, metric):.2f}" for of in pairs), *tests])
    head = ["metric", "r between methods", "r of GCR and its variants", "random rows minus GCR, paired", "Welch"]
    return markdown(head, lines)


def _correlation(pairs: Iterable[tuple[Group, Group]], metric: str) -> float:
    """The mean over pairs of groups that have 5 seeds or more in common."""
    found = []
    for first, second in pairs:
        ours, theirs = first.by_seed(metric), second.by_seed(metric)
        seeds = sorted(ours.keys() & theirs.keys())
        if len(seeds) >= 5:
            found.append(correlation([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]))
    return mean(found)


def noise() -> str:
    """One seed again and again on a GPU, next to other seeds: S-CIFAR-10 online, K = 500."""
    start = "seq-cifar10-online-"
    labels = {
        "gcr-k500-repeat": "GCR, one seed in one process",
        "gcr-k500-process": "GCR, one seed, a process each",
        "gcr-k500-deterministic-process": "GCR, one seed, `--deterministic`, a process each",
        "gcr-plus-k500-process": "GCR+, one seed, a process each",
        "gcr-plus-k500-deterministic-process": "GCR+, one seed, `--deterministic`, a process each",
        "gcr-plus-without-average-k500-process": "GCR+ without its average (`decay=0`), one seed, a process each",
    }
    cases = [(label, [group for name, group in read("noise").items() if name.rsplit("-", 1)[0] == start + kind])
             for kind, label in labels.items()]  # fmt: skip
    cases.append(("GCR, 15 seeds", [places()["online", "seq-cifar10", 500, "gcr"].group]))
    cases.append(("GCR+, 15 seeds", [read("gcr-plus")[start + "gcr-plus-k500"]]))
    lines = []
    for label, groups in cases:
        if groups:
            values = {metric: [v for of in groups for v in of.by_seed(metric).values()] for metric in METRICS}
            parts = [f"{part:.2f}" for of in values.values() for part in (mean(of), stdev(of), max(of) - min(of))]
            lines.append([label, str(len(values["accuracy"])), *parts])
    heads = [f"{label}{what}" for label in METRICS.values() for what in ("", ", SD", ", range")]
    return markdown(["S-CIFAR-10 online, K = 500", "runs", *heads], lines)


def as_mammoth() -> str:
    """iCaRL and GSS with images as Mammoth had them, on a small network."""
    values: dict[str, dict[int, dict[str, Any]]] = {}
    for row in measured.read("as-mammoth"):
        values.setdefault(row["variant"], {})[row["seed"]] = {"class_il": row}
    groups = {name: Group({}, results) for name, results in values.items()}
    pairs = {
        "gss, raw": ("GSS, unnormalised images", "gss"),
        "gss, whole": ("GSS, gradients of all weights", "gss"),
        "icarl, dark and transposed": ("iCaRL, exemplars dark and transposed", "icarl"),
        "icarl, its settings, dark and transposed": ("iCaRL, the same and Mammoth's settings", "icarl"),
    }
    tests = marked([[difference(groups[name], groups[base], "accuracy")] for name, (_, base) in pairs.items()])
    lines = [
        [label, str(groups[base].mean("accuracy")), str(groups[name].mean("accuracy")), *row]
        for (name, (label, base)), row in zip(pairs.items(), tests, strict=True)
    ]
    return markdown(["change", "without", "with", "difference"], lines)


def options() -> str:
    """Options of memory and methods, minus the same runs without them."""
    cifar, digits = read("online-variants"), read("digits-variants")
    gcr = places()["online", "seq-cifar10", 500, "gcr"].group
    cases = [
        ("GCR, `kept_weights=relative`", "S-CIFAR-10 online", cifar["seq-cifar10-online-gcr-k500-relative"], gcr),
        ("GCR, `replace=3`", "S-CIFAR-10 online", cifar["seq-cifar10-online-gcr-k500-replace3"], gcr),
    ]
    for option, method, name in (
        ("GCR, `pool=selector`", "gcr", "gcr-pool-by-selector"),
        ("GCR, each batch merged, no pool", "gcr", "gcr-merged"),
        ("GSS, `gradients=whole`", "gss", "gss-whole"),
        ("iCaRL, `--selector grad-approx`", "icarl", "icarl-grad-approx"),
    ):
        for regime, start in (("offline", "seq-digits"), ("online", "seq-digits-online")):
            if f"{start}-{name}-k100" in digits:
                base = digits[f"{start}-{method}-k100"]
                cases.append((option, f"digits {regime}", digits[f"{start}-{name}-k100"], base))
    metrics = ("accuracy", "anytime", "forgetting")
    tests = marked([[difference(group, base, metric) for metric in metrics] for _, _, group, base in cases])
    head = ["option", "scenario", "seeds", "final", "any-time", "forgetting"]
    starts = [[option, scenario, str(len(group.results))] for option, scenario, group, _ in cases]
    return markdown(head, [start + row for start, row in zip(starts, tests, strict=True)])


def precision() -> str:
    """Other precisions minus bfloat16 S-CIFAR-10 online, K = 500."""
    groups = read("online-variants")
    er, gcr = (places()["online", "seq-cifar10", 500, method].group for method in ("er", "gcr"))
    lines = []
    for method, other, base in (("er", "fp32", er), ("gcr", "tf32", gcr)):
        group = groups[f"seq-cifar10-online-{method}-k500-{other}"]
        differences = [difference(group, base, metric)[1] for metric in ("accuracy", "anytime")]
        lines.append([f"{NAMES[method]}, {other}", *differences])
    return markdown(["S-CIFAR-10 online, K = 500, 15 seeds", "final, minus bf16", "any-time, minus bf16"], lines)


def demo() -> str:
    """What ``gcr demo`` prints."""
    return markdown(columns(), table(read_runs(ROOT / "results" / "demo.jsonl.gz").groups))


def provenance() -> str:
    """Of each packed file: how many runs name what decided them, apart from their settings and seed."""
    counts = {}
    for path in sorted((ROOT / "results").glob("*.jsonl.gz")):
        runs = list(lines_of(path.name.removesuffix(".jsonl.gz")))
        source, views, first = (
            sum(key in run["result"] for run in runs) for key in ("source", "views", "first_weights")
        )
        momentum = sum("momentum" in run["experiment"].get("optimizer", {}) for run in runs)
        counts[f"`{path.name}`"] = [len(runs), source, momentum, views, first]
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    head = ["file", "runs", "name their source", "momentum", "augmentation", "first weights"]
    return markdown(head, [[name, *(f"{n:,}" for n in of)] for name, of in counts.items()])


def faults() -> str:
    """What ``make faults`` found."""
    harm = ("lost", "wrong", "left", "silent", "tracebacks", "hangs")
    found = measured.read("faults")["attacks"]
    rows = [
        [name, f"{one['tried']:,}" if one["tried"] else "not tried", *(str(one[count]) for count in harm)]
        for name, one in found.items()
    ]
    head = ["attack", "tried", "lost", "wrong number", "left behind", "no message", "tracebacks", "hangs"]
    return markdown(head, rows)


def fuzz() -> str:
    """What ``make fuzz`` found."""
    head = ["reader", "seconds", "tried", "refused", "read", "findings", "longest case, s", "most memory, MiB"]
    keys = ("seconds", "tried", "refused", "read", "findings", "longest_seconds", "most_mib")
    return markdown(head, [[name, *(f"{one[key]:,g}" for key in keys)] for name, one in measured.read("fuzz").items()])


def busy() -> str:
    found = measured.read("busy")
    head = ["tests passed", "skipped", "failed", "spinning processes", "cores", "test processes", "load", "minutes"]
    values = [
        found["passed"],
        found["skipped"],
        found.get("failed", 0) + found.get("errors", 0),
        found["spinning"],
        found["processors"],
    ]
    values += [found["test_processes"], round(found["load_of_5_minutes"]), round(found["seconds"] / 60)]
    return markdown(head, [[f"{value:,}" for value in values]])


def kills() -> str:
    """Where the processes were when they were killed, of ``make faults``."""
    phases = measured.read("faults")["attacks"]["kills"]["measured"]
    return markdown(["killed in", *phases], [["kills", *(f"{number:,}" for number in phases.values())]])


def integrity() -> str:
    """What durable and checked files cost, of ``benchmarks/integrity.py``."""
    found = measured.read("integrity")
    rows = [
        [
            f"a {name} of {one['bytes']:,} bytes",
            *(f"{one['milliseconds'][how]} ms" for how in ("with fsync", "without")),
        ]
        for name, one in found["writing"].items()
    ]
    return markdown(["written", "with fsync", "without"], rows) + "\n\n" + _checking(found["reading"])


def _checking(found: dict[str, Any]) -> str:
    shares = [
        f"{one['percent']} % of an epoch of {name} on the same processor" for name, one in found["epochs"].items()
    ]
    return (
        f"Checking {found['images']:,} images of CIFAR-10's size, once in a run and in the background, takes "
        f"{found['check seconds']} processor seconds:\n{', '.join(shares)}."
    )
