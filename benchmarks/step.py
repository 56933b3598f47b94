"""How long a training step takes: milliseconds for each method, on the device at hand.

    python benchmarks/step.py                                  digits, convnet, CPU or GPU
    python benchmarks/step.py --model resnet18 --shape 3,32,32  CIFAR shapes, made images

Writes ``results/step-<device>.json`` (``--out`` for another file).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

import gcr
from gcr.augment import Views
from gcr.experiments.experiment import compose
from gcr.methods import METHODS
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.training.draws import epoch_draws
from gcr.training.state import RunState
from gcr.training.step import StepDraws, sampler_of, train_step


def made_scenario(shape: tuple[int, int, int], n: int) -> Scenario:
    images = Images(torch.randint(256, (n, *shape), dtype=torch.uint8), torch.arange(n) % 10)
    views = Views(mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    return Scenario("made", images, images, equal_tasks(10, 5), views, tuple("0123456789"))


def measure(method: str, model: str, scenario: Scenario, device: torch.device, steps: int, repeats: int) -> list[float]:
    """Milliseconds per step, one value per repeat. Memory is full before the clock starts."""
    experiment = compose("seq-digits", method)
    policy, training = experiment.memory, experiment.training
    scenario = scenario.to(device)
    state = RunState.fresh(scenario, model, policy, training, 0, device)
    rows = torch.arange(len(scenario.train.labels), device=device)[: steps * training.batch]
    size = policy.replay_batch if policy else 0
    shape = sampler_of(policy).draws_shape(size, policy.buffer, policy.pool_size) if policy else ()
    draws = epoch_draws((0, 0, 0), len(rows), steps, shape, size, experiment.method.replays, device)
    cuts = [StepDraws.cut(draws, rows, step, training.batch) for step in range(steps)]
    first = StepDraws(cuts[0].rows, cuts[0].views, cuts[0].reservoir, ())
    train_step(state, scenario, experiment.method, policy, first)
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        for cut in cuts:
            train_step(state, scenario, experiment.method, policy, cut)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started) / steps)
    return times[1:]  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds per training step.")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--shape", default="1,8,8", help="channels, height, width")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    channels, height, width = map(int, options.shape.split(","))
    scenario = made_scenario((channels, height, width), 32 * options.steps)
    rows = []
    print(f"{'method':10} {'ms a step':>10} {'slowest':>10}   ({device}, {options.model}, {options.shape})")
    for method in METHODS:
        times = measure(method.name, options.model, scenario, device, options.steps, options.repeats)
        rows.append({"method": method.name, "ms": statistics.median(times), "ms_all": times})
        print(f"{method.name:10} {statistics.median(times):10.2f} {max(times):10.2f}", flush=True)
    out = options.out or Path("results") / f"step-{device.type}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU, one thread",
        "model": options.model,
        "shape": [channels, height, width],
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    out.write_text(json.dumps(about, indent=2) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
