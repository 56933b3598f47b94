"""Our plugin next to Avalanche's own replay, inside Avalanche: split digits, 10 classes in 5 experiences.

    make avalanche                                    # makes .venv-avalanche once, then runs this file there
    python benchmarks/against_avalanche.py --setup    # the same

Every row has the same network, optimizer, epochs, batches and data; Avalanche's ``Naive`` strategy trains it, with one
plugin or none. The memory is 100 examples between experiences. Prints accuracy on the test images of all classes after
the last experience and CPU seconds of training on one thread, and writes ``avalanche`` (``benchmarks/measured.py``).

The environment has the real avalanche-lib and the real torchvision, which it imports. PyPI's torchvision for Linux is
built for CUDA: next to a CPU build of torch its compiled operators do not load. Avalanche's code here calls none of
them, so two of them are declared without a body, which torchvision needs to be imported at all.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measured

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-avalanche"
PACKAGES = ("torch==2.13.0", "torchvision==0.28.0", "avalanche-lib==0.6.0", "safetensors")
MEMORY, EPOCHS, BATCH, LR = 100, 10, 32, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description="Avalanche's ReplayPlugin and ours on split digits")
    parser.add_argument("--setup", action="store_true", help="make the environment if needed, and run there")
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    if chosen.setup:
        sys.exit(run_in_environment(["--seeds", str(chosen.seeds)]))
    rows = compare(chosen.seeds)
    about = {
        "versions": {name: version(name) for name in ("torch", "torchvision", "avalanche-lib")},
        "device": f"CPU, {platform.machine()}, 1 thread",
        "settings": {"memory": MEMORY, "epochs": EPOCHS, "batch": BATCH, "lr": LR, "experiences": 5},
        "rows": rows,
    }
    measured.write("avalanche", about)
    print(f"written: avalanche, in {measured.FILE}")


def run_in_environment(arguments: list[str]) -> int:
    """This file, by the Python of an environment that has avalanche-lib. pip's own settings say where from."""
    python = ENVIRONMENT / "bin/python"
    ready = ENVIRONMENT / ".installed"
    if not ready.exists() or ready.read_text() != " ".join(PACKAGES):
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c"]
        pip.append(str(ROOT / "constraints.txt"))
        subprocess.run([*pip, PACKAGES[0]], check=True)  # first and alone, so that nothing else brings another build
        subprocess.run([*pip, *PACKAGES], check=True)
        ready.write_text(" ".join(PACKAGES))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([str(python), __file__, *arguments], env=environment).returncode


def compare(n_seeds: int) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    declared = make_torchvision_importable()
    warnings.showwarning = lambda *args, **kwargs: (
        None
    )  # Avalanche's own deprecations, which it cannot be asked to hide
    chosen = contestants()
    results = [[train(make, seed) for _, _, make in chosen] for seed in range(n_seeds)]  # load changes hit all alike
    rows = []
    for (name, about, _), of_seeds in zip(chosen, zip(*results, strict=True), strict=True):
        accuracies, seconds = (list(column) for column in zip(*of_seeds, strict=True))
        mean, error = statistics.mean(accuracies), statistics.stdev(accuracies) / n_seeds**0.5 if n_seeds > 1 else 0.0
        row: dict[str, Any] = {"plugin": name, "about": about, "accuracy": round(mean, 2), "sem": round(error, 2)}
        row |= {"seconds": round(statistics.mean(seconds), 2), "accuracies": accuracies}
        print(f"{name:40} {mean:6.2f} ± {error:4.2f} %   {row['seconds']:6.2f} s", flush=True)
        rows.append(row)
    del declared
    return rows


def contestants() -> list[tuple[str, str, Callable[[int], list[Any]]]]:
    """A name, what is in memory and what is replayed in a step, and the plugins for a seed."""
    from avalanche.training.plugins import ReplayPlugin

    from gcr.integrations.avalanche import CoresetReplayPlugin
    from gcr.integrations.rehearsal import coreset_policy
    from gcr.memory import BalancedReservoir, Policy
    from gcr.methods import DerPlusPlus

    half = coreset_policy(MEMORY // 2, BATCH)
    balanced = Policy(buffer=MEMORY, selector=BalancedReservoir(), replay_batch=BATCH)
    return [
        ("none", "no memory", lambda seed: []),
        ("Avalanche ReplayPlugin", "100; 32 a step", lambda seed: [ReplayPlugin(mem_size=MEMORY)]),
        (
            "Avalanche ReplayPlugin, 64 replayed",
            "100; 64 a step",
            lambda seed: [ReplayPlugin(mem_size=MEMORY, batch_size_mem=2 * BATCH)],
        ),
        (
            "gcr, DER++ on a balanced reservoir",
            "100; 2 x 32 a step",
            lambda seed: [CoresetReplayPlugin(balanced, DerPlusPlus(), seed=seed)],
        ),
        (
            "gcr, gradient coreset, half the memory",
            "50 and 50 candidates; 2 x 32 a step",
            lambda seed: [CoresetReplayPlugin(half, seed=seed)],
        ),
        (
            "gcr, gradient coreset (default)",
            "100 and, within an experience, 100 candidates; 2 x 32 a step",
            lambda seed: [CoresetReplayPlugin(MEMORY, seed=seed)],
        ),
    ]


def train(plugins: Callable[[int], list[Any]], seed: int) -> tuple[float, float]:
    """Accuracy in percent on the test images of all classes, and seconds of the CPU for training."""
    import torch
    from avalanche.benchmarks import nc_benchmark
    from avalanche.training import Naive

    from gcr.scenarios import load

    digits = load("seq-digits")
    order = list(range(10))
    training, test = (ImagesAndTargets(part.pixels.float() / 255, part.labels) for part in (digits.train, digits.test))
    benchmark = nc_benchmark(training, test, 5, task_labels=False, shuffle=False, fixed_class_order=order)
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Flatten(),
        *(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 100), torch.nn.ReLU()),
        torch.nn.Linear(100, 10),
    )
    sgd = torch.optim.SGD(net.parameters(), lr=LR)
    strategy = Naive(
        model=net, optimizer=sgd, train_mb_size=BATCH, train_epochs=EPOCHS, plugins=plugins(seed), evaluator=None
    )
    began = time.process_time()
    for experience in benchmark.train_stream:
        strategy.train(experience)
    seconds = time.process_time() - began
    with torch.no_grad():
        right = net.eval()(test.images).argmax(1) == torch.tensor(test.targets)
    return 100 * right.float().mean().item(), seconds


class ImagesAndTargets:
    """A data set as Avalanche reads it."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.targets = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.images[row], self.targets[row]


def make_torchvision_importable() -> Any:
    """Declare what it registers on import, where its compiled operators do not load. Keep what is returned."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("avalanche-lib needs torchvision; run with --setup")
    (operators,) = Path(spec.submodule_search_locations[0]).glob("_C.*")
    try:
        torch.ops.load_library(str(operators))
    except OSError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return declared
    return None


if __name__ == "__main__":
    main()
