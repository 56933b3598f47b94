"""A training step on a CPU, ours and Mammoth's, on equal images: milliseconds, and the ratio.

    git clone https://github.com/aimagelab/mammoth
    python benchmarks/step_beside_mammoth.py --mammoth mammoth

Images of 3 x 32 x 32, batches of 32, 500 remembered examples, no augmentation on either side. Ours is the whole step of
a run: draws, memory, normalisation of uint8 images, network, optimizer. Theirs is ``observe`` of their method with the
same network, on float images; their loader is not timed. Each side has a process and one thread of its own, in turns;
medians of three. Writes ``results/step-beside-mammoth.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from against_mammoth import CASES, commit_of, open_mammoth, their_model
from step import made_scenario, new_run, steps_of

from gcr.augment import Views
from gcr.experiments.experiment import compose
from gcr.models import build
from gcr.runs.job import keep_freed_memory

ROOT = Path(__file__).resolve().parents[1]
SHAPE, CLASSES, BATCH, MEMORY = (3, 32, 32), 10, 32, 500
STEPS = {"convnet": 40, "resnet18": 6}
METHODS = ("er", "der++")
REPEATS, WARM = 3, 3
LIMIT = 0.8


def ours(method: str, model: str) -> Iterator[bool]:
    keep_freed_memory()
    scenario = made_scenario(SHAPE, BATCH * 400)
    plain = Views(scenario.views.mean, scenario.views.std, pad=0, flip=False)
    scenario = replace(scenario, views=plain)
    overrides = {"buffer": MEMORY, "precision": "fp32"}
    run = new_run(compose("seq-digits", method, overrides=overrides), scenario, model, torch.device("cpu"), "eager")
    return steps_of(run)


def theirs(method: str, model: str, mammoth: Path) -> Iterator[bool]:
    open_mammoth(mammoth)
    case = next(case for case in CASES if case.name == method)
    made = their_model(case, build(model, SHAPE, CLASSES, 0).train(), MEMORY, BATCH)
    images = torch.randn(BATCH * 40, *SHAPE)
    labels = torch.arange(len(images)) % CLASSES
    stored = {"examples": images[:MEMORY], "labels": labels[:MEMORY]}
    made.buffer.add_data(**stored | ({"logits": torch.randn(MEMORY, CLASSES)} if "logits" in case.stored else {}))
    while True:
        for batch, target in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            made.observe(batch, target, batch)
            yield True


def timed(steps: Iterator[bool], number: int) -> dict[str, float]:
    for _ in islice(steps, WARM):
        pass
    wall, processor = time.perf_counter(), time.process_time()
    for _ in islice(steps, number):
        pass
    took = {"ms": time.perf_counter() - wall, "processor_ms": time.process_time() - processor}
    return {name: 1000 * seconds / number for name, seconds in took.items()}


def compared(method: str, model: str, mammoth: Path) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for _ in range(REPEATS):
        for side, rows in found.items():
            command = [sys.executable, __file__, "--mammoth", str(mammoth), "--side", side, method, model]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))
    row: dict[str, Any] = {"method": method, "model": model}
    for side, rows in found.items():
        row[side] = {name: round(statistics.median(one[name] for one in rows), 2) for name in rows[0]}
    row["ratio"] = round(row["ours"]["ms"] / row["theirs"]["ms"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mammoth", type=Path, required=True)
    parser.add_argument("--side", choices=["ours", "theirs"], help="time one side, for this script itself")
    parser.add_argument("case", nargs="*", help="method and network, with --side")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "step-beside-mammoth.json")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as a run of ours has; theirs would take all cores
    if given.side:
        method, model = given.case
        steps = ours(method, model) if given.side == "ours" else theirs(method, model, given.mammoth)
        print(json.dumps(timed(steps, STEPS[model])))
        return
    load, rows = os.getloadavg()[0], []
    for model in STEPS:
        for method in METHODS:
            rows.append(compared(method, model, given.mammoth))
            print(json.dumps(rows[-1]), flush=True)
    about = {"device": f"{platform.machine()} CPU, {torch.get_num_threads()} threads", "load": load, "limit": LIMIT}
    about |= {"mammoth": commit_of(given.mammoth), "torch": torch.__version__}
    given.out.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
