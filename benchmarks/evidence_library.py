"""Tables of ``benchmarks/evidence.py`` about selection as a library: time, and accuracy on chosen parts of the data."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from evidence_runs import ROOT, markdown

from gcr.analysis.statistics import spread

SHARES = (0.05, 0.1, 0.3)


def _json(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def speed() -> str:
    """Seconds of large problems on two cores and on a GPU, next to the limit that was set and to a peer."""
    cpu, gpu = _json("selection-library"), _json("selection-library-cuda")
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
        times = [f"{here['seconds']:.0f} ({here['load']:.0f})", f"{here['processor_seconds']:.0f}", cpu_limit]
        lines.append([what, *times, memory, f"{there['seconds']:.1f}", gpu_limit, next_to])
    small, small_gpu = (_json(f"selection-{where}")["large"][1] for where in ("cpu", "cuda"))
    times = [f"{small['seconds']:.1f}", "–", "–", f"{small['peak_gib']:.1f}", f"{small_gpu['seconds']:.1f}"]
    lines.append(["matching, 1,000 classes: K = 10,000 of 20,000", *times, "–", "–"])
    head = ["problem", "two cores, s (load)", "processor s", "limit, s", "peak GiB", "H200, s", "limit, s", "peer"]
    return markdown(head, lines)


def pruning() -> str:
    """Test accuracy after training on a share of the data; for each data set the longest training that was run."""
    rows = _json("pruning")
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
