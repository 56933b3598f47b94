"""The runs that ``results/gcr-plus-registration.md`` announces, in its order; trains those that ``results/`` lacks.

    python benchmarks/gcr_plus_runs.py                              every cell: seeds announced, and how many are there
    python benchmarks/gcr_plus_runs.py --train ablation,selection   train what is missing, into runs/announced
    python benchmarks/gcr_plus_runs.py --train cells --share 1/3    the first of three processes that share a GPU

``gcr results pack results/FILE.jsonl.gz runs/announced/FILE results/FILE.jsonl.gz --force`` adds what has been trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from announced import Cell, main

from gcr.experiments.experiment import Experiment, compose

SETS = ("seq-cifar10", "seq-cifar100")
SHORT = 10  # epochs a task, offline, where 50 of all arms would take too long
POOL = {"buffer": 250, "candidates": 250}  # 500 examples in all
PARTS: dict[str, tuple[str, dict[str, Any]]] = {  # part: what it is, settings that leave it out
    "average": ("average of weights (`decay=0`)", {"decay": 0}),
    "softmax": ("asymmetric softmax (`softmax=all`)", {"softmax": "all"}),
    "contrast": ("SupCon (`gamma=0`)", {"gamma": 0}),
    "logits": ("distance to stored logits (`alpha=0`)", {"alpha": 0}),
    "old": ("old network (`keep=0`)", {"keep": 0}),
    "balance": ("balance over classes (`--selector reservoir`)", {"selector": "reservoir"}),
}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {  # arm: rows kept by, settings
    "class-balanced": ("random rows of each class", {"selector": "class-balanced"} | POOL),
    "herding": ("`herding`", {"selector": "herding"} | POOL),
    "density": ("`density`", {"selector": "density"} | POOL),
    "k-centre": ("`k-centre`", {"selector": "k-centre"} | POOL),
    "typicality": ("`typicality`", {"selector": "typicality"} | POOL),
    "reducible-loss": ("`reducible-loss`", {"selector": "reducible-loss"} | POOL),
    "grad-approx": ("`grad-approx`", {}),  # comparison 3
    "grad-approx-unit": ("`grad-approx`, unit weights", {"selector": "grad-approx", "selector.weights": "unit"} | POOL),
    "grad-approx-power-0.5": ("`grad-approx`, `power=0.5`", {"selector": "grad-approx", "power": 0.5} | POOL),
    "grad-approx-power-0": ("`grad-approx`, `power=0`", {"selector": "grad-approx", "power": 0} | POOL),
    "herding-predictor": (
        "`herding` on the average's features",
        {"selector": "herding", "pool_network": "predictor"} | POOL,
    ),
    "grad-approx-predictor": (
        "`grad-approx` on the average's gradients",
        {"selector": "grad-approx", "pool_network": "predictor"} | POOL,
    ),
    "low-loss": ("`balanced-reservoir`, `evict=loss`", {"evict": "loss"}),
    "herding-order": ("`balanced-reservoir`, `evict=herding`", {"evict": "herding"}),
}
UNTESTED_ARMS: dict[str, tuple[str, dict[str, Any]]] = {  # announced without tests, after the others' results
    "grad-approx-shrink-0.5": ("`grad-approx`, `shrink=0.5`", {"selector": "grad-approx", "shrink": 0.5} | POOL),
    "grad-approx-4-views": (
        "`grad-approx` on the mean over four views",
        {"selector": "grad-approx", "pool_view": "weak", "pool_views": 4} | POOL,
    ),
}
AS_DER: dict[str, Any] = {"selector": "reservoir", "gamma": 0, "keep": 0}  # opponents 2 and 3
AS_GCR: dict[str, Any] = {"selector": "grad-approx"} | POOL
CHANGES: dict[str, dict[str, Any]] = {  # on validation data: what opponents 2 and 3 are tuned over
    "start": {},
    "lr-0.01": {"lr": 0.01},
    "lr-0.1": {"lr": 0.1},
    "alpha-0.01": {"alpha": 0.01},
    "alpha-0.03": {"alpha": 0.03},
    "beta-0.5": {"beta": 0.5},
    "beta-2": {"beta": 2},
}
TRIAL: dict[str, dict[str, Any]] = {  # on validation data: whether herding's order in the reservoir becomes an arm
    "reservoir": {},
    "herding-order": {"evict": "herding"},
    "herding-order-predictor": {"evict": "herding", "pool_network": "predictor"},
}
OFFLINE_ARMS = ("herding", "herding-order")  # and others that gain 0.5 in an online cell; grad-approx is comparison 3


def experiment(scenario: str, settings: Mapping[str, Any], seed: int, method: str = "gcr+") -> Experiment:
    given: dict[str, Any] = {"buffer": 500, "precision": "bf16", **settings}
    return compose(scenario, method, seed=seed, selector=given.pop("selector", None), overrides=given)


def cell(
    study: str, file: str, scenario: str, online: bool, what: str, seeds: range, settings: Mapping[str, Any]
) -> Cell:
    name = f"{scenario}{'-online' if online else ''}-gcr-plus-{what}"
    return Cell(study, file, name, seeds, partial(experiment, scenario, {"online": online, **settings}))


def announced() -> Iterator[Cell]:
    for buffer in (500, 200, 2000):
        for scenario in SETS:
            yield cell("cells", "gcr-plus", scenario, True, f"k{buffer}", range(15), {"buffer": buffer})
        two = {"buffer": buffer, "repeats": 2}
        yield cell("cells", "gcr-plus", SETS[0], True, f"k{buffer}-two-steps", range(15), two)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(5))):
        several = seeds if online else range(8)  # serves as an arm of the selection too
        for scenario in SETS:
            if not online:
                yield cell("comparisons", "gcr-plus-comparisons", scenario, online, "10-epochs-k500", several, short)
            yield cell("comparisons", "gcr-plus-comparisons", scenario, online, "as-der-k500", seeds, AS_DER | short)
            yield cell("comparisons", "gcr-plus-comparisons", scenario, online, "as-gcr-k250", several, AS_GCR | short)
    for scenario in SETS:
        made = partial(experiment, scenario, {"online": True}, method="er-ace")
        yield Cell("rivals", "gcr-plus-comparisons", f"{scenario}-online-er-ace-k500", range(15), made)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(3))):
        for part, (_, left_out) in PARTS.items():
            for scenario in SETS:
                what = f"without-{part}-k500"
                yield cell("ablation", "gcr-plus-ablation", scenario, online, what, seeds, left_out | short)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(8))):
        for arm, (_, settings) in (ARMS | UNTESTED_ARMS).items():
            if settings and (online or arm in OFFLINE_ARMS):
                for scenario in SETS:
                    what = f"keeps-{arm}-k{settings.get('buffer', 500)}"
                    yield cell("selection", "gcr-plus-comparisons", scenario, online, what, seeds, settings | short)
    for arm, settings in TRIAL.items():
        for scenario in SETS:
            held_out, what = {"validation": 0.1, **settings}, f"validation-{arm}-k500"
            yield cell("trial", "gcr-plus-validation", scenario, True, what, range(50, 54), held_out)
    for opponent, settings in (("as-der", AS_DER), ("as-gcr", AS_GCR)):
        for change, values in CHANGES.items():
            for scenario in SETS:
                held_out, what = {"validation": 0.1, **settings, **values}, f"validation-{opponent}-{change}"
                yield cell("opponents", "gcr-plus-validation", scenario, True, what, range(50, 54), held_out)
    for buffer in (500, 200, 2000):
        for scenario in SETS:
            yield cell("cells", "gcr-plus", scenario, False, f"k{buffer}", range(5), {"buffer": buffer})


if __name__ == "__main__":
    main(announced(), __doc__ or "")
