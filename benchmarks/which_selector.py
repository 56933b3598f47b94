"""Which selection remembers best: GCR's loss with every selector, on equal seeds, with clean and with wrong labels.

    python benchmarks/which_selector.py    digits, 20 seeds, two CPU cores: about half an hour
    python benchmarks/which_selector.py --images cifar10.npz --device cuda    one pass over its tasks, ResNet-18

An image set is an .npz file with ``train_pixels`` (uint8 [n, c, h, w]), ``train_labels``, ``test_pixels`` and
``test_labels``. Writes ``which-selector-<name>`` (``benchmarks/measured.py``), a row per run, as runs end; runs that
are there are not repeated. ``--show`` prints the table of what is there.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from scipy import stats

from gcr import scenarios
from gcr.analysis.statistics import spread
from gcr.augment import Views
from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.models import build
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.training import Sgd, Training, train

LOSS_AND_MEMORY = {"variant": "paper", "normalise": "weights", "contrast": "logits"}  # the same for all selectors
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grad-approx": ("grad-approx", {}),
    "grad-approx replace=3": ("grad-approx", {"replace": 3}),
    "grad-approx trim=0.5": ("grad-approx", {"trim": 0.5}),
    "grad-approx trim=0.25": ("grad-approx", {"trim": 0.25}),
    "grad-approx rows=random": ("grad-approx", {"rows": "random"}),
    "grad-approx weights=unit": ("grad-approx", {"weights": "unit"}),
    "class-balanced": ("class-balanced", {}),
    "reservoir": ("reservoir", {}),
    "uniform": ("uniform", {}),
    "herding": ("herding", {}),
    "k-centre": ("k-centre", {}),
    "gss": ("gss", {}),
    "ocs": ("ocs", {}),
    "bilevel": ("bilevel", {}),
    "density": ("density", {}),
}


def load(images: str | None) -> tuple[Scenario, str, dict[str, Any], Training, float]:
    """Scenario, model, GCR's values, training and lr; for an image set the paper's online values at K = 500."""
    values: dict[str, Any]
    if images is None:
        values = {"buffer": 100, "alpha": 0.1, "beta": 0.5, "gamma": 0.05}
        return scenarios.load("seq-digits"), "convnet", values, Training(epochs=8), 0.1
    data = np.load(images)
    train_set, test_set = (
        Images(torch.from_numpy(data[f"{part}_pixels"]), torch.from_numpy(data[f"{part}_labels"]).long())
        for part in ("train", "test")
    )
    n_classes = int(train_set.labels.max()) + 1
    scaled = train_set.pixels[::10].double() / 255
    mean, std = tuple(scaled.mean((0, 2, 3)).tolist()), tuple(scaled.std((0, 2, 3)).tolist())
    names = tuple(map(str, range(n_classes)))
    scenario = Scenario(Path(images).stem, train_set, test_set, equal_tasks(n_classes, 5), Views(mean, std), names)
    values = {"buffer": 500, "alpha": 0.5, "beta": 3.5, "gamma": 1.0}
    return scenario, "resnet18", values, Training(epochs=1), 0.005


def with_wrong_labels(scenario: Scenario, share: float, seed: int) -> Scenario:
    """A share of the training labels becomes another class of the same task."""
    rng = np.random.default_rng((seed, 99))
    labels = scenario.train.labels.numpy().copy()
    for classes in scenario.tasks:
        rows = np.flatnonzero(np.isin(labels, classes))
        wrong = rng.choice(rows, round(share * len(rows)), replace=False)
        shift = rng.integers(1, len(classes), len(wrong))
        labels[wrong] = np.array(classes)[(np.searchsorted(classes, labels[wrong]) + shift) % len(classes)]
    return replace(scenario, train=Images(scenario.train.pixels, torch.from_numpy(labels)))


def run_one(images: str | None, variant: str, noise: float, seed: int, device: str) -> dict[str, Any]:
    scenario, model, values, training, lr = load(images)
    if noise:
        scenario = with_wrong_labels(scenario, noise, seed)
    selector, options = VARIANTS[variant]
    experiment = compose("seq-digits", "gcr", selector=selector, overrides=LOSS_AND_MEMORY | values | options)
    assert isinstance(experiment.memory, Policy)
    net = build(model, scenario.image_shape, scenario.n_classes, seed)
    optimizer = Sgd(net.parameters(), lr)
    outcome = train(scenario, net, optimizer, experiment.method, experiment.memory, seed, training, device)
    return {
        "variant": variant,
        "noise": noise,
        "seed": seed,
        "accuracy": outcome.class_il["accuracy"],
        "forgetting": outcome.class_il["forgetting"],
        "selections": outcome.state.selections,
        "seconds": outcome.seconds,
        "torch": torch.__version__,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Class-IL accuracy, mean ± SEM, and the paired difference to grad-approx on equal seeds."""
    heads = (
        ("wrong labels", 12),
        ("seeds", 5),
        ("class-IL", 15),
        ("to grad-approx", 15),
        ("p", 8),
        ("gradient error", 15),
    )
    print(f"{'selector':24} " + " ".join(f"{head:>{width}}" for head, width in heads))
    for noise in sorted({row["noise"] for row in rows}):
        base = {
            row["seed"]: row["accuracy"] for row in rows if row["variant"] == "grad-approx" and row["noise"] == noise
        }
        others = sorted({row["variant"] for row in rows} - VARIANTS.keys())
        for variant in [*VARIANTS, *others]:
            runs = [r for r in rows if r["variant"] == variant and r["noise"] == noise]
            mine = {r["seed"]: r for r in reversed(runs)}  # of a run that was repeated, the first
            if not mine:
                continue
            both = sorted(mine.keys() & base.keys())
            pairs = [(mine[s]["accuracy"], base[s]) for s in both]
            difference, p = "", ""
            if variant != "grad-approx" and len(pairs) > 1:
                difference = f"{np.mean([a - b for a, b in pairs]):+.2f}"
                p = f"{stats.ttest_rel(*zip(*pairs, strict=True)).pvalue:.3f}"
            last = [(row["selections"] or [{}])[-1] for row in mine.values()]
            errors = [report["relative_to_uniform"] for report in last if "relative_to_uniform" in report]
            error = f"{np.mean(errors):.2f}" if errors else ""
            accuracy = spread([row["accuracy"] for row in mine.values()])
            print(f"{variant:24} {noise:12.0%} {len(mine):5} {accuracy!s:>15} {difference:>15} {p:>8} {error:>15}")


def main() -> None:
    parser = argparse.ArgumentParser(description="GCR with every selector.")
    parser.add_argument("--images", help="an .npz image set; digits if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--noise", default="0,0.2", help="shares of wrong labels")
    parser.add_argument("--show", action="store_true", help="print the table of what is there and stop")
    options = parser.parse_args()
    name = f"which-selector-{Path(options.images).stem if options.images else 'digits'}"
    if options.show:
        show(measured.read(name))
        return
    wanted = [
        {"variant": variant, "noise": float(noise), "seed": seed}
        for seed in range(options.seeds)
        for noise in options.noise.split(",")
        for variant in options.variants.split(",")
    ]
    show(measured.completed(name, run_one, wanted, options.processes, images=options.images, device=options.device))


if __name__ == "__main__":
    main()
