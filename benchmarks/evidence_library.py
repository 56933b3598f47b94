"""Tables of ``benchmarks/evidence.py`` about selection as a library (time, and accuracy on chosen parts of the data),
and about what a run on ImageNet-1k costs."""

from __future__ import annotations

from collections import Counter
from math import isnan, nan
from typing import Any

import measured
from evidence_runs import NAMES, markdown

from gcr.analysis.statistics import spread
from gcr.scenarios import entry

SHARES = (0.05, 0.1, 0.3)
TRAIN, TEST, TASKS, POOL = 1_281_167, 50_000, 10, 20_000  # images of ImageNet-1k; kept and candidates with K = 10,000


def speed() -> str:
    """Seconds of large problems on two cores and on a GPU, next to the limit that was set and to a peer."""
    cpu, gpu = measured.read("selection-library"), measured.read("selection-library-cuda")
    peer = next((row for row in cpu["k-centre"] if row["what"].startswith("anomalib")), None)
    ours = cpu["k-centre"][0]["processor_seconds"]
    ratio = "–" if peer is None else f"anomalib: {peer['processor_seconds'] / ours:.0f} times our processor s"
    problems = (
        ("k-centre", "k-centre: K = 10,000 of 100,000, 384 numbers a row", "a third of the peer's", "1.5", ratio),
        ("no-labels", "matching without labels: K = 2,000 of 20,000", "10", "–", "–"),
        ("million", "matching, 100 classes: K = 10,000 of 1,000,000", "300", "5", "–"),
    )
    lines = []
    for name, what, cpu_limit, gpu_limit, next_to in problems:
        here, there = cpu[name][0], gpu[name][0]
        memory = f"{here['peak_gib']:.1f}" if "peak_gib" in here else "–"
        times = [f"{here['seconds']:.1f} ({here['load']:.0f})", f"{here['processor_seconds']:.1f}", cpu_limit]
        on_gpu = there["seconds"] + there.get("copy_seconds", 0)  # with the copy from mapped files
        lines.append([what, *times, memory, f"{on_gpu:.1f}", gpu_limit, next_to])
    small, small_gpu = (measured.read(f"selection-{where}")["large"][1] for where in ("cpu", "cuda"))
    times = [f"{small['seconds']:.1f}", "–", "–", f"{small['peak_gib']:.1f}", f"{small_gpu['seconds']:.1f}"]
    lines.append(["matching, 1,000 classes: K = 10,000 of 20,000", *times, "–", "–"])
    head = ["problem", "two cores, s (load)", "processor s", "limit, s", "peak GiB", "H200, s", "limit, s", "peer"]
    return markdown(head, lines)


def pruning() -> str:
    """Test accuracy after training on a share of the data; for each data set the longest training that was run."""
    rows = measured.read("pruning")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    longest = {data: max(row["steps"] for row in rows if row["data"] == data) for data in sets}
    rows = [row for row in rows if row["steps"] == longest[row["data"]]]
    of_seed = Counter((row["data"], row["seed"]) for row in rows)
    whole_seed = {data: max(count for (name, _), count in of_seed.items() if name == data) for data in sets}
    rows = [row for row in rows if of_seed[row["data"], row["seed"]] == whole_seed[row["data"]]]  # no seed half done

    def cell(data: str, name: str, share: float) -> str:
        found = [r["accuracy"] for r in rows if (r["data"], r["selector"], r["share"]) == (data, name, share)]
        return str(spread(found)) if found else "–"

    names = dict.fromkeys(row["selector"] for row in rows if row["share"] < 1)
    lines = [[f"`{name}`", *(cell(data, name, share) for data in sets for share in SHARES)] for name in names]
    whole = "; ".join(f"{data} {cell(data, 'all data', 1.0)}" for data in sets)
    lines.append([f"all data: {whole}", *["–"] * len(sets) * len(SHARES)])
    seeds = {data: len({row["seed"] for row in rows if row["data"] == data}) for data in sets}
    heads = [f"{data}, {share:.0%}, {seeds[data]} seeds" for data in sets for share in SHARES]
    return markdown(["selector", *heads], lines)


def imagenet_cost() -> str:
    """Hours of a run on ImageNet-1k on one GPU and on eight, computed from its measured parts."""
    parts, epochs = measured.read("imagenet-cost"), entry("seq-imagenet1k").epochs
    decoded, read = (parts[name]["images"] / parts[name]["processor_seconds"] for name in ("decode", "reading"))
    solver = next(row["seconds"] for row in measured.read("selection-cuda")["large"] if "1,000 classes" in row["what"])
    processes = (1, 8)
    importing = [(TRAIN + TEST) * _each(parts, "import") for _ in processes]
    reading = [  # each process reads all images
        epochs * TRAIN * max(_each(parts, "reading"), n * _each(parts, "reading", "processor_seconds") / parts["cores"])
        for n in processes
    ]
    evaluation = [(TASKS + 1) * TEST * _each(parts, "evaluation") / n for n in processes]
    selection = [TASKS * (POOL * _each(parts, "selection") / n + solver) for n in processes]
    rows = [
        ["decode and cut, once, one core", f"{decoded:,.0f} images/s", *2 * [_hours((TRAIN + TEST) / decoded)]],
        [f"the whole import, once, {parts['cores']} cores", _rate(parts, "import"), *map(_hours, importing)],
        ["reading images, while steps run", f"{read:,.0f} images/s a core", *map(_hours, reading)],
    ]
    ms = {(row["method"], row["batch"], row["processes"]): row["ms"] for row in parts.get("steps", ())}
    for batch in (32, 256):
        for method in ("er", "gcr", "gcr+"):
            times = [ms.get((method, batch, n), nan) for n in processes]
            steps = [0.001 * t * epochs * TRAIN / batch for t in times]
            shown = [f"{t:.1f} ms{of}" for t, of in zip(times, ("", " as one of 8"), strict=True) if not isnan(t)]
            if shown:
                rows.append([f"steps of {NAMES[method]}, batch of {batch}", ", ".join(shown), *map(_hours, steps)])
            if (method, batch) == ("gcr", 32):
                every = {"import": importing, "reading": reading, "steps": steps}
    every |= {"evaluation": evaluation, "selection": selection}
    whole = [i + max(r, s) + e + c for i, r, s, e, c in zip(*every.values(), strict=True)]
    rows += [
        [f"{TASKS + 1} evaluations of {TEST:,} images", _rate(parts, "evaluation"), *map(_hours, evaluation)],
        [f"{TASKS} selections from {POOL:,} rows, with passes", _rate(parts, "selection"), *map(_hours, selection)],
        ["the whole of GCR, batch of 32", "–", *map(_hours, whole)],
    ]
    head = [f"part of {epochs} epochs of {TRAIN:,} images", f"measured, {parts['device']}", "1 GPU, h", "8 GPUs, h"]
    return f"{markdown(head, rows)}\n\n{_words(parts, every)}"


def _each(parts: dict[str, Any], name: str, spent: str = "seconds") -> float:
    """Seconds an image. A machine without a GPU is not that of a run."""
    return float(parts[name][spent] / parts[name]["images"]) if parts["gpu"] else nan


def _rate(parts: dict[str, Any], name: str) -> str:
    return f"{1 / _each(parts, name):,.0f} images/s" if parts["gpu"] else "–"


def _hours(seconds: float) -> str:
    if seconds < 36:
        return "< 0.01"
    return "–" if isnan(seconds) else f"{seconds / 3600:,.{0 if seconds >= 36_000 else 1 if seconds >= 3600 else 2}f}"


def _words(parts: dict[str, Any], every: dict[str, list[float]]) -> str:
    """Which part of a run of GCR with batches of 32 is the longest, and what it sends."""
    shared = next((row for row in parts.get("steps", ()) if "messages" in row and row["method"] == "gcr"), None)
    if shared is None or not parts["gpu"]:
        return "Steps are not measured yet: they need a GPU."
    one, eight = (max(every, key=lambda name: every[name][n]) for n in (0, 1))
    sent, gradients = (f"{size / 1e6:.1f} MB" for size in (shared["message_bytes"], parts["gradient_bytes"]))
    return (
        f"The longest part of GCR with batches of 32 is {one} on one GPU and {eight} on eight.\n"
        f"There a step sends {shared['messages']} messages, {sent} together, {gradients} of gradients.\n"
        f"Copying as much as the gradients inside one GPU takes {parts['copy_ms']:.2f} ms."
    )
