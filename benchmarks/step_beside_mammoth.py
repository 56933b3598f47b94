"""A training step on a CPU, ours and Mammoth's, on equal images: milliseconds, and the ratio.

    git clone https://github.com/aimagelab/mammoth
    python benchmarks/step_beside_mammoth.py --mammoth mammoth

Images of 3 x 32 x 32, batches of 32, 500 remembered examples, no augmentation on either side. Ours is the whole step of
a run: draws, memory, normalisation of uint8 images, network, optimizer. Theirs is ``observe`` of their method on float
images; their loader is not timed. ResNet-18 is each side's own; the convnet, which they do not have, is made of torch's
layers for them. Each side has a process and one thread of its own. They step in short turns, one after the other; the
ratio is the median over turns, of processor time. Writes ``step-beside-mammoth`` (``benchmarks/measured.py``), a report
for each kind of processor; without ``--mammoth`` it prints what is there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import measured
import torch
from against_mammoth import CASES, commit_of, open_mammoth, their_model
from step import made_scenario, new_run, steps_of
from torch import nn

from gcr.augment import Views
from gcr.experiments.experiment import compose
from gcr.models import build
from gcr.runs.job import keep_freed_memory

NAME = "step-beside-mammoth"
SHAPE, CLASSES, BATCH, MEMORY = (3, 32, 32), 10, 32, 500
STEPS, TURNS = {"convnet": 8, "resnet18": 1}, {"convnet": 40, "resnet18": 20}  # of a turn; of each side
METHODS = ("er", "der++")
WARM = 3  # steps
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
    made = their_model(case, their_network(model, mammoth).train(), MEMORY, BATCH)
    images = torch.randn(BATCH * 40, *SHAPE)
    labels = torch.arange(len(images)) % CLASSES
    stored = {"examples": images[:MEMORY], "labels": labels[:MEMORY]}
    made.buffer.add_data(**stored | ({"logits": torch.randn(MEMORY, CLASSES)} if "logits" in case.stored else {}))
    while True:
        for batch, target in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            made.observe(batch, target, batch)
            yield True


def their_network(model: str, mammoth: Path) -> nn.Module:
    if model == "resnet18":
        needed = {"MammothBackbone": nn.Module, "register_backbone": lambda name: lambda made: made}
        vars(importlib.import_module("backbone")).update(needed)  # the package is replaced by an empty one
        spec = importlib.util.spec_from_file_location("resnet", mammoth / "backbone" / "ResNetBlock.py")
        assert spec is not None
        assert spec.loader is not None
        file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(file)
        made: nn.Module = file.resnet18(CLASSES)
    else:
        first = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        second = [nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        made = nn.Sequential(*first, *second, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 8 * 8, CLASSES))
    ours = build(model, SHAPE, CLASSES, 0)
    assert [p.shape for p in made.parameters()] == [p.shape for p in ours.parameters()]
    return made


def serve(steps: Iterator[bool]) -> None:
    """Makes as many steps as each line of the input says, and prints milliseconds of a step."""
    for _ in islice(steps, WARM):
        pass
    for line in sys.stdin:
        number, wall, processor = int(line), time.perf_counter(), time.process_time()
        for _ in islice(steps, number):
            pass
        took = {"ms": time.perf_counter() - wall, "processor_ms": time.process_time() - processor}
        print(json.dumps({name: 1000 * seconds / number for name, seconds in took.items()}), flush=True)


def compared(method: str, model: str, mammoth: Path) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    with ExitStack() as running:
        sides = {}
        for side in found:
            command = [sys.executable, __file__, "--mammoth", str(mammoth), "--side", side, method, model]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            sides[side] = running.enter_context(process)
        for _ in range(TURNS[model] + 1):  # the first is waited for, not counted
            for side, process in sides.items():
                assert process.stdin is not None
                assert process.stdout is not None
                print(STEPS[model], file=process.stdin, flush=True)
                found[side].append(json.loads(process.stdout.readline()))
    row: dict[str, Any] = {"method": method, "model": model}
    for side, turns in found.items():
        row[side] = {name: round(statistics.median(turn[name] for turn in turns[1:]), 2) for name in turns[0]}
    pairs = zip(found["ours"][1:], found["theirs"][1:], strict=True)
    ratios = sorted(own["processor_ms"] / other["processor_ms"] for own, other in pairs)
    return row | {"ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}


def line(row: dict[str, Any]) -> str:
    ours, theirs = (f"{row[side]['processor_ms']:.0f} ms" for side in ("ours", "theirs"))
    times = f"ours {ours:>8}  Mammoth's {theirs:>8}"
    return f"{row['model']:9} {row['method']:6} {times}  ratio {row['ratio']} (limit {LIMIT})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mammoth", type=Path, help="a checkout; without one, what was measured before is printed")
    parser.add_argument("--side", choices=["ours", "theirs"], help="time one side, for this script itself")
    parser.add_argument("case", nargs="*", help="method and network, with --side")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as a run of ours has; theirs would take all cores
    if given.side:
        method, model = given.case
        steps = ours(method, model) if given.side == "ours" else theirs(method, model, given.mammoth)
        serve(steps)
        return
    if given.mammoth is None:
        for report in measured.read(NAME, []):
            print(f"A step on a CPU, from results/: {report['device']}", *map(line, report["rows"]), sep="\n  ")
        return
    load, rows = os.getloadavg()[0], []
    for model in STEPS:
        for method in METHODS:
            rows.append(compared(method, model, given.mammoth))
            print(line(rows[-1]), flush=True)
    about = {"device": f"{platform.machine()} CPU, {torch.get_num_threads()} threads", "load": load, "limit": LIMIT}
    about |= {"mammoth": commit_of(given.mammoth), "torch": torch.__version__}
    others = [report for report in measured.read(NAME, []) if report["device"] != about["device"]]
    measured.write(NAME, [*others, about | {"rows": rows}])
    print(f"written: {NAME}, in {measured.FILE}")


if __name__ == "__main__":
    main()
