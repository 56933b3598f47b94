"""What Mammoth did to images until 2022, done to ours: is that why the paper's iCaRL and GSS are lower?

    python benchmarks/as_mammoth.py    S-CIFAR-10 online, K = 500, the convnet, 6 seeds, two CPU cores: two hours
    python benchmarks/as_mammoth.py --device cuda --model resnet18 --seeds 15

The paper's rivals were not released, but its code has the structure of Mammoth. There, in commit cb9a36d and before:

- iCaRL's exemplars, which are kept without normalisation, pass through its inverse before they are mixed into the
  next task's images (models/icarl.py, ``begin_task``): they are replayed at a quarter of their brightness. Their axes
  are exchanged besides, so that they come back transposed. Class means are those of the exemplars as they were.
- GSS compares gradients of images that are not normalised (models/gss.py, ``observe``).

Writes ``as-mammoth`` (``benchmarks/measured.py``), a row per run, as runs end; runs that are there are not repeated.
``--show`` prints the table of what is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import measured
import torch
from scipy import stats
from torch import Tensor

from gcr import scenarios
from gcr.analysis.statistics import spread
from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.training import step, train
from gcr.training.gss_admission import offer_by_gradients

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)  # of Mammoth's CIFAR-10
ICARL = {"lr": 0.1, "weight_decay": 1e-5}  # the paper's chosen values
ITS_ICARL = {"over_classes": "mean", "replay_batch": 2, "lengths": "own"}
GSS = {"lr": 0.03, "compared": 32}
METRICS = ("accuracy", "anytime", "forgetting", "learning")


def dark(images: Tensor) -> Tensor:
    """[b, 3, h, w] uint8, "denormalised" though they were not normalised."""
    channels = [images[:, c].float() * STD[c] + MEAN[c] for c in range(3)]
    return torch.stack(channels, 1).to(torch.uint8)


def transposed(images: Tensor) -> Tensor:
    return images.transpose(2, 3).contiguous()


def replaying(change: Callable[[Tensor], Tensor]) -> Any:
    """Changes all images that are replayed."""
    drawn = step.draw_replays

    def changed(*arguments: Any) -> list[dict[str, Tensor]]:
        return [columns | {"image": change(columns["image"])} for columns in drawn(*arguments)]

    return mock.patch.object(step, "draw_replays", changed)


class NotNormalised:
    def plain(self, images: Tensor) -> Tensor:
        return images.float() / 255


def comparing_raw() -> Any:
    """GSS sees images that are not normalised."""

    def changed(net: Any, memory: Any, views: Any, *others: Any) -> None:
        offer_by_gradients(net, memory, NotNormalised(), *others)  # type: ignore[arg-type]

    return mock.patch("gcr.training.step.offer_by_gradients", changed)


VARIANTS: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "icarl": ("icarl", ICARL, nullcontext),
    "icarl, dark and transposed": ("icarl", ICARL, lambda: replaying(lambda images: transposed(dark(images)))),
    "icarl, dark": ("icarl", ICARL, lambda: replaying(dark)),
    "icarl, transposed": ("icarl", ICARL, lambda: replaying(transposed)),
    "icarl, its settings": ("icarl", ICARL | ITS_ICARL, nullcontext),
    "icarl, its settings, dark and transposed": (
        "icarl",
        ICARL | ITS_ICARL,
        lambda: replaying(lambda images: transposed(dark(images))),
    ),
    "gss": ("gss", GSS, nullcontext),
    "gss, raw": ("gss", GSS, comparing_raw),
    "gss, whole": ("gss", GSS | {"gradients": "whole"}, nullcontext),
    "gss, whole, raw": ("gss", GSS | {"gradients": "whole"}, comparing_raw),
}


def run_one(variant: str, seed: int, model: str, device: str) -> dict[str, Any]:
    method, settings, change = VARIANTS[variant]
    experiment = compose("seq-cifar10", method, overrides={"online": True, "buffer": 500} | settings)
    assert isinstance(experiment.memory, Policy)
    scenario = scenarios.load("seq-cifar10", experiment.stream).to(device)
    torch.set_num_threads(1)
    with change():
        net = replace(experiment, model=model, seed=seed).make_net(scenario)
        outcome = train(
            scenario,
            net,
            experiment.make_optimizer(net),
            experiment.method,
            experiment.memory,
            seed,
            experiment.training,
            device,
        )
    metrics = {metric: outcome.class_il[metric] for metric in METRICS}
    return {"variant": variant, "model": model, "seed": seed, **metrics, "seconds": outcome.seconds}


def show(rows: list[dict[str, Any]]) -> None:
    """Class-IL, mean ± SEM, and paired differences of accuracy to the method as it is here, on equal seeds."""
    print(f"{'':42} {'model':9} seeds " + " ".join(f"{metric:>13}" for metric in METRICS) + "    difference         p")
    for model in sorted({row["model"] for row in rows}):
        by_variant = {v: {r["seed"]: r for r in rows if (r["variant"], r["model"]) == (v, model)} for v in VARIANTS}
        for variant, mine in by_variant.items():
            if not mine:
                continue
            base = by_variant[VARIANTS[variant][0]]
            apart = [mine[seed]["accuracy"] - base[seed]["accuracy"] for seed in mine.keys() & base.keys()]
            columns = " ".join(f"{spread([row[metric] for row in mine.values()])!s:>13}" for metric in METRICS)
            difference = f"{spread(apart)!s:>13}" if any(apart) else ""
            p = f"{stats.ttest_1samp(apart, 0).pvalue:9.4f}" if len(apart) > 1 and any(apart) else ""
            print(f"{variant:42} {model:9} {len(mine):5} {columns} {difference} {p}")


def main() -> None:
    parser = argparse.ArgumentParser(description="iCaRL and GSS with images as Mammoth had them.")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="with ; between them")
    parser.add_argument("--show", action="store_true", help="print the table of what is there and stop")
    options = parser.parse_args()
    wanted = [
        {"variant": variant, "seed": seed, "model": options.model}
        for seed in range(options.seeds)
        for variant in options.variants.split(";")
    ]
    some = [] if options.show else wanted
    show(measured.completed("as-mammoth", run_one, some, options.processes, device=options.device))


if __name__ == "__main__":
    main()
