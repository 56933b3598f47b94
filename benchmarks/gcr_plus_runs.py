"""The runs that ``results/gcr-plus-registration.md`` announces, in its order; trains those that ``results/`` lacks.

    python benchmarks/gcr_plus_runs.py                              every cell: seeds announced, and how many are there
    python benchmarks/gcr_plus_runs.py --train ablation,selection   train what is missing, into runs/gcr-plus
    python benchmarks/gcr_plus_runs.py --train cells --share 1/4    the first of four processes that share a GPU

``gcr results pack results/FILE.jsonl.gz runs/gcr-plus/FILE results/FILE.jsonl.gz --force`` adds what has been trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence_runs import read

from gcr.experiments.experiment import Experiment, compose
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Execution, Job

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
}
OFFLINE_ARMS = ("herding",)  # and those that gain 0.5 in an online cell; grad-approx is comparison 3


@dataclass(frozen=True)
class Cell:
    study: str  # as --train names it
    file: str  # under results/
    scenario: str
    online: bool
    what: str  # in its name
    seeds: range
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.scenario}{'-online' if self.online else ''}-gcr-plus-{self.what}"

    def experiment(self, seed: int) -> Experiment:
        given: dict[str, Any] = {"buffer": 500, "precision": "bf16", "online": self.online, **self.settings}
        return compose(self.scenario, "gcr+", seed=seed, selector=given.pop("selector", None), overrides=given)

    def missing(self) -> list[int]:
        try:
            groups = read(self.file)
        except FileNotFoundError:
            groups = {}
        return [seed for seed in self.seeds if self.name not in groups or seed not in groups[self.name].results]


def announced() -> Iterator[Cell]:
    for buffer in (500, 200, 2000):
        for scenario in SETS:
            yield Cell("cells", "gcr-plus", scenario, True, f"k{buffer}", range(15), {"buffer": buffer})
        two = {"buffer": buffer, "repeats": 2}
        yield Cell("cells", "gcr-plus", SETS[0], True, f"k{buffer}-two-steps", range(15), two)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(5))):
        der = {"selector": "reservoir", "gamma": 0, "keep": 0} | short
        gcr = {"selector": "grad-approx"} | POOL | short
        several = seeds if online else range(8)  # serves as an arm of the selection too
        for scenario in SETS:
            if not online:
                yield Cell("comparisons", "gcr-plus-comparisons", scenario, online, "10-epochs-k500", several, short)
            yield Cell("comparisons", "gcr-plus-comparisons", scenario, online, "as-der-k500", seeds, der)
            yield Cell("comparisons", "gcr-plus-comparisons", scenario, online, "as-gcr-k250", several, gcr)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(3))):
        for part, (_, left_out) in PARTS.items():
            for scenario in SETS:
                what = f"without-{part}-k500"
                yield Cell("ablation", "gcr-plus-ablation", scenario, online, what, seeds, left_out | short)
    for online, short, seeds in ((True, {}, range(15)), (False, {"epochs": SHORT}, range(8))):
        for arm, (_, settings) in ARMS.items():
            if settings and (online or arm in OFFLINE_ARMS):
                for scenario in SETS:
                    what = f"keeps-{arm}-k{settings.get('buffer', 500)}"
                    yield Cell("selection", "gcr-plus-comparisons", scenario, online, what, seeds, settings | short)
    for buffer in (500, 200, 2000):
        for scenario in SETS:
            yield Cell("cells", "gcr-plus", scenario, False, f"k{buffer}", range(5), {"buffer": buffer})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="STUDIES", help="of cells, comparisons, ablation, selection; with commas")
    parser.add_argument("--regime", choices=["online", "offline"], help="only that")
    parser.add_argument("--share", default="1/1", help="of the runs, as 1/4")
    parser.add_argument("--pack", type=int, default=6, help="runs at a time on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/gcr-plus"))
    options = parser.parse_args()
    cells = [cell for cell in announced() if options.regime in (None, "online" if cell.online else "offline")]
    if options.train is None:
        for cell in cells:
            there = len(cell.seeds) - len(cell.missing())
            print(f"{cell.study:12} {cell.name:66} {there:2} of {len(cell.seeds)}")
        return
    studies = options.train.split(",")
    jobs = [
        Job(experiment, RunFolder.of(options.out / cell.file, experiment, cell.name))
        for cell in cells
        if cell.study in studies
        for experiment in map(cell.experiment, cell.missing())
    ]
    first, of = map(int, options.share.split("/"))
    mine = [job for job in jobs[first - 1 :: of] if not job.folder.finished]

    def listen(event: Event) -> None:
        if event.ends_job:
            said = event.error or ("stopped" if event.stopped else f"{event.accuracy:.2f}")
            print(f"{mine[event.job].folder.path.relative_to(options.out)}: {said}", flush=True)

    for job in mine:
        job.folder.make()
    ending = run_all(mine, listen, Execution(pack=options.pack, model=False))
    raise SystemExit(128 + ending.signal if ending.signal else min(1, ending.failed))


if __name__ == "__main__":
    main()
