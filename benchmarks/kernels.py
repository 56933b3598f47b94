"""Where a captured step spends its time on a GPU, kernel by kernel.

    python benchmarks/kernels.py --method gcr --precision bf16

Profiles captured steps of ResNet-18 at CIFAR shapes, and the network alone in the same way. Writes
``kernels-<method>-<precision>`` (``benchmarks/measured.py``): microseconds and launches a step for every kernel, and
the share of kernel time that is not the network's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import measured
import torch
from step import WARM, made_scenario, network_alone, new_run, steps_of
from torch.profiler import ProfilerActivity, profile

from gcr.experiments.experiment import compose
from gcr.training.pack import run_pack

STEPS = 20


def kernel_times(steps: Iterator[bool], device: torch.device) -> list[dict[str, Any]]:
    """Microseconds and launches a step, by kernel, largest first."""
    run_pack([islice(steps, WARM)], 1, device)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run_pack([islice(steps, STEPS)], 1, device)
        torch.cuda.synchronize()
    rows = [
        {"kernel": event.key[:110], "us": event.self_device_time_total / STEPS, "launches": event.count / STEPS}
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row["us"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels of a captured step.")
    parser.add_argument("--method", default="gcr")
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    scenario = made_scenario((3, 32, 32), 32 * 200).to(device)
    overrides = {"precision": options.precision, "buffer": 500}
    run = new_run(compose("seq-digits", options.method, overrides=overrides), scenario, "resnet18", device, "captured")
    whole = kernel_times(steps_of(run), device)
    network = kernel_times(network_alone(run, scenario), device)
    total, network_total = (sum(row["us"] for row in rows) for rows in (whole, network))
    about = {
        "method": options.method,
        "precision": options.precision,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "us_a_step": total,
        "network_us": network_total,
        "surroundings_share": 1 - network_total / total,
        "launches": sum(row["launches"] for row in whole),
        "kernels": whole,
    }
    for row in whole[:35]:
        print(f"{row['us']:8.1f} us {row['launches']:6.1f} x  {row['kernel']}")
    print({key: value for key, value in about.items() if key != "kernels"})
    name = f"kernels-{options.method}-{options.precision}"
    measured.write(name, about)
    print(f"written: {name}, in {measured.FILE}")


if __name__ == "__main__":
    main()
