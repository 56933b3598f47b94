"""Accuracy of a network trained on a part of the data: 5, 10 and 30%, chosen by each selector and at random.

    python benchmarks/pruning.py                              digits, 5 seeds: some minutes on two cores
    python benchmarks/pruning.py --data cifar10 --device cuda    the same for CIFAR-10 (a cached data set)

A network is trained on all data first; features and residuals of its last layer are what selectors see. Then a new
network is trained on the chosen rows alone, with their weights, for as many steps whatever the share. Both are the
small convnet, trained by SGD with momentum on shifted (CIFAR-10: and flipped) images. Writes ``pruning``
(``benchmarks/measured.py``), a row per run as runs end; what is there is not repeated. ``--show`` prints its table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import Any

import measured
import torch
from torch import Tensor, nn

import gcr
from gcr import scenarios, select
from gcr.augment import DRAWS
from gcr.models import build
from gcr.scenarios import Scenario
from gcr.select.cuda_graph import capture

SHARES = (0.05, 0.1, 0.3)
SELECTORS: dict[str, Callable[[], select.Selector]] = {
    "uniform": select.Uniform,
    "class-balanced": select.ClassBalanced,
    "grad-approx": select.GradApprox,
    "grad-approx weights=unit": partial(select.GradApprox, weights="unit"),
    "k-centre": select.KCentre,
    "herding": select.Herding,
    "density": select.Density,
    "typicality": select.Typicality,
    "gss": select.Gss,
    "ocs": select.Ocs,
    "bilevel": select.Bilevel,
}
WARM_UP = 3  # steps before one is captured, on a GPU
SLOW = ("gss", "ocs", "bilevel")  # grow too fast with the pool for 50,000 rows


@dataclass(frozen=True)
class Recipe:
    steps: int
    batch: int
    lr: float


RECIPES = {
    ("digits", "cpu"): Recipe(steps=400, batch=32, lr=0.05),
    ("digits", "cuda"): Recipe(steps=400, batch=32, lr=0.05),
    ("cifar10", "cpu"): Recipe(steps=500, batch=64, lr=0.01),  # two minutes a run on a core
    ("cifar10", "cuda"): Recipe(steps=4000, batch=128, lr=0.01),
}


def trained(scenario: Scenario, rows: Tensor, weights: Tensor, recipe: Recipe, seed: int, device: str) -> nn.Module:
    """A new network after ``recipe.steps`` steps on some rows, drawn without replacement epoch by epoch."""
    cuda = device == "cuda"
    net = build("convnet", scenario.image_shape, scenario.n_classes, seed).to(device).train()
    lr = torch.tensor(recipe.lr, device=device) if cuda else recipe.lr  # a captured step reads it from the device
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=5e-4, fused=cuda)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    images, labels = scenario.train.pixels[rows].to(device), scenario.train.labels[rows].to(device)
    weights = (weights / weights.mean()).float().to(device)
    batches, draws = minibatches(len(rows), recipe, seed)
    batches, draws = batches.to(device), draws.to(device)
    now, draw = batches[0].clone(), draws[0].clone()

    def step() -> None:
        views = scenario.views.make("weak", images[now], draw)
        losses = nn.functional.cross_entropy(net(views), labels[now], reduction="none")
        optimizer.zero_grad()
        (losses * weights[now]).mean().backward()
        optimizer.step()

    run = step
    for i in range(recipe.steps):
        now.copy_(batches[i])
        draw.copy_(draws[i])
        if cuda and i == WARM_UP:
            run = capture(step, now.device).replay
        run()
        schedule.step()
    return net.eval()


def minibatches(n: int, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of each step, and the numbers its views are drawn with."""
    g = torch.Generator().manual_seed(seed)
    size, order = min(recipe.batch, n), torch.zeros(0, dtype=torch.int64)
    batches, draws = [], []
    for _ in range(recipe.steps):
        if len(order) < size:
            order = torch.randperm(n, generator=g)
        batches.append(order[:size])
        order = order[size:]
        draws.append(torch.rand(size, DRAWS["weak"], generator=g))
    return torch.stack(batches), torch.stack(draws)


def accuracy(net: nn.Module, scenario: Scenario, device: str) -> float:
    with torch.no_grad():
        right = [
            (net(scenario.views.plain(images.to(device))).argmax(1).cpu() == labels).sum()
            for images, labels in zip(scenario.test.pixels.split(1000), scenario.test.labels.split(1000), strict=True)
        ]
    return 100 * float(sum(right)) / len(scenario.test.labels)


def pool_of(net: nn.Module, scenario: Scenario, device: str) -> select.Pool:
    images, labels = scenario.train.pixels.split(1000), scenario.train.labels.split(1000)
    pool = gcr.collect(net, ((scenario.views.plain(x.to(device)), y) for x, y in zip(images, labels, strict=True)))
    return replace(pool, kept=torch.zeros_like(pool.labels, dtype=torch.bool), tasks=torch.zeros_like(pool.labels))


def runs_of_seed(data: str, seed: int, names: list[str], known: set[Any], device: str) -> Any:
    """A row per selector and share that is not known, and one for all data."""
    scenario, recipe = scenarios.load(f"seq-{data}"), RECIPES[data, device]
    if all((data, name, share, seed, recipe.steps) in known for name in names for share in SHARES):
        return
    everything = torch.arange(len(scenario.train.labels))
    first = trained(scenario, everything, torch.ones(len(everything)), recipe, 1000 + seed, device)
    row = {"data": data, "seed": seed, "steps": recipe.steps, "torch": torch.__version__, "device": device}
    if (data, "all data", 1.0, seed, recipe.steps) not in known:
        yield row | {"selector": "all data", "share": 1.0, "accuracy": accuracy(first, scenario, device)}
    pool = pool_of(first, scenario, device)
    draws = torch.rand(len(pool), generator=torch.Generator().manual_seed(seed)).to(device)
    for name in names:
        for share in SHARES:
            if (data, name, share, seed, recipe.steps) in known:
                continue
            started = time.perf_counter()
            chosen = SELECTORS[name]()(pool, round(share * len(pool)), draws)
            rows, took = chosen.rows.cpu(), time.perf_counter() - started
            net = trained(scenario, rows, chosen.weights.cpu(), recipe, seed, device)
            found = {"selector": name, "share": share, "rows": len(rows), "selection_seconds": took}
            yield row | found | {"accuracy": accuracy(net, scenario, device)}


def show(rows: list[dict[str, Any]]) -> None:
    for data in dict.fromkeys(row["data"] for row in rows):
        for name in dict.fromkeys(row["selector"] for row in rows if row["data"] == data):
            mine = [row for row in rows if (row["data"], row["selector"]) == (data, name)]
            by_share = {share: [r["accuracy"] for r in mine if r["share"] == share] for share in (*SHARES, 1.0)}
            cells = [f"{mean(v):6.2f} ± {stdev(v) if len(v) > 1 else 0:4.2f}" for v in by_share.values() if v]
            print(f"{data:8} {name:26} " + "  ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy on chosen parts of the training data.")
    parser.add_argument("--data", choices=["digits", "cifar10"], default="digits")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--selectors", help="names with commas; default: all that the pool is not too large for")
    parser.add_argument("--show", action="store_true", help="print the table of what is there and stop")
    options = parser.parse_args()
    rows = measured.read("pruning", [])
    if not options.show:
        usual = [name for name in SELECTORS if options.data == "digits" or name not in SLOW]
        names = options.selectors.split(",") if options.selectors else usual
        known = {tuple(row[k] for k in ("data", "selector", "share", "seed", "steps")) for row in rows}
        for seed in range(options.seeds):
            for row in runs_of_seed(options.data, seed, names, known, options.device):
                print(json.dumps(row), flush=True)
                rows.append(row)
                measured.write("pruning", rows)
    show(rows)


if __name__ == "__main__":
    main()
