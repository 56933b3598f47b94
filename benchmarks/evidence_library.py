"""Tables of ``benchmarks/evidence.py`` about selection as a library: time, and accuracy on chosen parts of the data."""

from __future__ import annotations

import json
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
    head = ["problem", "two cores, s (load)", "processor s", "limit, s", "peak GiB", "H200, s", "limit, s", "peer"]
    return markdown(head, lines)


def pruning() -> str:
    """Test accuracy after training on a share of the data; for each data set the longest training that was run."""
    rows = _json("pruning")
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        longest = max(row["steps"] for row in rows if row["data"] == data)
        mine = [row for row in rows if row["data"] == data and row["steps"] == longest]
        for name in dict.fromkeys(row["selector"] for row in mine if row["share"] < 1):
            found = [[r["accuracy"] for r in mine if (r["selector"], r["share"]) == (name, share)] for share in SHARES]
            lines.append([data, f"`{name}`", *(str(spread(values)) if values else "–" for values in found)])
        whole = [row["accuracy"] for row in mine if row["share"] == 1]
        lines.append([data, f"all data: {spread(whole)}", *["–"] * len(SHARES)])
    return markdown(["data", "selector", *(f"{share:.0%}" for share in SHARES)], lines)
