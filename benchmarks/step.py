"""How long a training step takes: milliseconds per step of one run, alone and in a pack, on the device at hand.

    python benchmarks/step.py                                             digits, convnet, CPU or GPU
    python benchmarks/step.py --model resnet18 --shape 3,32,32 --buffer 500   CIFAR shapes, made images

On a GPU every method is timed kernel by kernel (eager), compiled, captured, and captured in packs of 2 to 16. Writes
``step-<device>`` or ``--name`` (``benchmarks/measured.py``): the share of the device's measured matrix product peak,
the share of a captured step that is not ``method.loss`` and its gradients (``surroundings``: draws, views, replay,
memory, optimizer, projections) by timing these alone in the same way, and ``beside_er``: the step's time over ER's,
divided by the same ratio of counted operations. Steps are those of the last of five tasks, where GEM has four
constraints.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import measured
import torch
from torch.utils.flop_counter import FlopCounterMode

import gcr
from gcr.augment import Views
from gcr.experiments.experiment import Experiment, compose
from gcr.methods import METHODS, Batch
from gcr.models import build
from gcr.runs.local import set_kernels
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.select.cuda_graph import capture
from gcr.training import How, Run, own_cuda_stream, pack
from gcr.training.numerics import computing

TASKS = 5
WARM = 6  # steps before the clock starts; captured steps have been captured by then


def made_scenario(shape: tuple[int, int, int], n: int) -> Scenario:
    images = Images(torch.randint(256, (n, *shape), dtype=torch.uint8), torch.arange(n) % 10)
    views = Views(mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    test = Images(images.pixels[:10], images.labels[:10])
    return Scenario("made", images, test, equal_tasks(10, TASKS), views, tuple("0123456789"))


def new_run(experiment: Experiment, scenario: Scenario, model: str, device: torch.device, mode: str) -> Run:
    how = How(device=str(device), mode=mode)
    net = build(model, scenario.image_shape, scenario.n_classes, experiment.seed)
    optimizer = experiment.make_optimizer(net)
    run = Run(scenario, net, optimizer, experiment.method, experiment.memory, experiment.seed, experiment.training, how)
    run.state.stage = len(run.plan.stages) - 1
    return run


def steps_of(run: Run) -> Iterator[bool]:
    """Its steps alone, without the times when it waits for the device."""
    return filter(None, run.advance())


def time_together(runs: list[Iterator[bool]], steps: int, repeats: int, device: torch.device) -> list[float]:
    """Milliseconds per step of one run, with all ``runs`` side by side; one value per repeat."""

    def together(number: int) -> float:
        started = time.perf_counter()
        if device.type == "cuda":
            pack.run_pack([islice(run, number) for run in runs], len(runs), device)
            torch.cuda.synchronize()
        else:
            for run in runs:
                for _ in islice(run, number):
                    pass
        return 1000 * (time.perf_counter() - started) / number / len(runs)

    together(WARM)
    return [together(steps) for _ in range(repeats)]


def network_alone(run: Run, scenario: Scenario) -> Iterator[bool]:
    """Only ``method.loss`` and its gradients, captured, on minibatches that stay the same."""
    method, state, device = run.method, run.state, run.device
    size = run.training.batch

    def batch(n: int, n_views: int) -> Batch:
        views = tuple(torch.randn((n, *scenario.image_shape), device=device) for _ in range(n_views))
        labels, stored = torch.arange(n, device=device) % 10, torch.zeros(n, 10, device=device)
        return Batch(views, labels, stored, torch.ones(n, device=device), torch.zeros_like(labels))

    replay_size = _replay_size(run)
    new, replay = batch(size, 1), tuple(batch(replay_size, len(of.views)) for of in method.replays)

    def step() -> None:
        with computing(run.precision, device):
            value = method.loss(state.net, new, replay, state.extras).value
            torch.autograd.grad(value, state.parameters, allow_unused=True)

    step()
    graph = capture(step, device)
    while True:
        graph.replay()
        yield True


def gigaflops_a_step(run: Run) -> float:
    """Multiplications and additions of matrix products and convolutions, counted in an eager step with replay."""
    steps = steps_of(run)
    with own_cuda_stream(run.device):
        for _ in islice(steps, 3):
            pass
        with FlopCounterMode(display=False) as counter:
            next(steps)
    return 1e-9 * float(counter.get_total_flops())


def _replay_size(run: Run) -> int:
    if run.policy is None:
        return 0
    if run.method.replays[0].kind == "whole":
        return run.policy.buffer
    return run.method.replay_size(run.policy.replay_batch)


def peak_tflops(device: torch.device, size: int = 8192) -> float:
    """Of a large bf16 matrix product."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    return 10 * 2 * size**3 / (time.perf_counter() - started) / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds per training step.")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--shape", default="1,8,8", help="channels, height, width")
    parser.add_argument("--buffer", type=int, default=100)
    parser.add_argument("--methods", default=",".join(method.name for method in METHODS))
    parser.add_argument("--precisions", default="", help="as tf32,bf16; what auto means here if not given")
    parser.add_argument("--ways", default="", help="as eager,compiled,1,8: modes and sizes of captured packs")
    parser.add_argument("--steps", type=int, help=f"40, or {8 * pack.AHEAD} on a GPU: far more than are launched ahead")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turn", type=int, default=pack.TURN, help="steps of a run of a pack launched in one go")
    parser.add_argument("--deterministic", action="store_true", help="kernels that give the same bits every time")
    parser.add_argument("--name", help="of the measurement; step-DEVICE if not given")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    options.steps = options.steps or (8 * pack.AHEAD if on_gpu else 40)
    pack.TURN = options.turn
    ways = options.ways or ("eager,compiled,1,2,4,8,16" if on_gpu else "eager")
    set_kernels(options.deterministic)
    channels, height, width = map(int, options.shape.split(","))
    steps = WARM + options.steps * options.repeats + 64
    scenario = made_scenario((channels, height, width), TASKS * 32 * steps).to(device)
    peak = peak_tflops(device) if on_gpu else None
    about: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, one thread",
        "model": options.model,
        "shape": [channels, height, width],
        "buffer": options.buffer,
        "steps": options.steps,
        "turn": options.turn,
        "deterministic": options.deterministic,
        "peak_tflops_bf16": peak,
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": [],
    }
    name = options.name or f"step-{device.type}"
    print(f"{device}, {options.model}, {options.shape}; peak {peak or 0:.0f} TFLOP/s", flush=True)
    for precision in options.precisions.split(","):
        for method in options.methods.split(","):
            given: dict[str, Any] = {"precision": precision} if precision else {}
            if next(one for one in METHODS if one.name == method)().replays:
                given["buffer"] = options.buffer
            experiment = compose("seq-digits", method, overrides=given)
            gigaflops = gigaflops_a_step(new_run(experiment, scenario, options.model, device, "eager"))
            for way in ways.split(","):
                row = measure(experiment, gigaflops, scenario, way, device, options, peak)
                about["rows"].append(row)
                row["beside_er"] = beside_er(row, about["rows"])
                measured.write(name, about)  # what is measured is not lost
                shown = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items() if k != "ms_all"}
                print(" ".join(f"{k}={v}" for k, v in shown.items()), flush=True)
    print(f"written: {name}, in {measured.FILE}")


def beside_er(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """How much slower than ER for the same number of operations; none if ER was not timed before."""
    for er in rows:
        if er["method"] == "er" and all(er[key] == row[key] for key in ("precision", "mode", "pack")):
            return float(row["ms"] / er["ms"] * er["gigaflops"] / row["gigaflops"]) if row["gigaflops"] else None
    return None


def measure(
    experiment: Experiment,
    gigaflops: float,
    scenario: Scenario,
    way: str,
    device: torch.device,
    options: Any,
    peak: float | None,
) -> dict[str, Any]:
    """``way`` is a mode, or the size of a captured pack."""
    mode, size = ("captured", int(way)) if way.isdigit() else (way, 1)
    runs = [new_run(experiment, scenario, options.model, device, mode) for _ in range(size)]
    times = time_together([steps_of(run) for run in runs], options.steps, options.repeats, device)
    ms = statistics.median(times)
    row: dict[str, Any] = {
        "method": experiment.method.name,
        "precision": runs[0].precision,
        "mode": mode,
        "pack": size,
        "ms": ms,
        "ms_all": times,
        "gigaflops": gigaflops,
    }
    if peak:
        row["peak_share"] = gigaflops / ms / peak
        row["gib"] = torch.cuda.max_memory_reserved() / 2**30
    if mode == "captured":
        alone = statistics.median(
            time_together([network_alone(run, scenario) for run in runs], options.steps, options.repeats, device)
        )
        row |= {"network_ms": alone, "surroundings": 1 - alone / ms}
    del runs
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return row


if __name__ == "__main__":
    main()
