"""Runs that the evidence still lacks or lacked, in order of weight; trains those that ``results/`` has not got.

    python benchmarks/evidence_due.py                     every cell: seeds wanted, and how many are there
    python benchmarks/evidence_due.py --train rows,gem    train what is missing, into runs/announced
    python benchmarks/evidence_due.py --train noise --share 1/8    the first of 8 processes, each with its own repeats

``gcr results pack results/FILE.jsonl.gz runs/announced/FILE results/FILE.jsonl.gz --force`` adds what has been trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gcr_plus_runs
from announced import Cell, main

from gcr.experiments.experiment import Experiment, compose
from gcr.paper.plan import Plan, Request, make_plan

ROWS: dict[str, dict[str, Any]] = {  # GCR's loss with other rows or weights than matched and fitted
    "unit": {"selector.weights": "unit"},
    "random-rows": {"selector.rows": "random"},
    "class-balanced": {"selector": "class-balanced"},  # random rows of each class, unit weights
}
ONLINE = (("seq-cifar10", 500, range(15)), ("seq-cifar10", 200, range(15)), ("seq-cifar10", 2000, range(30, 45)),
          ("seq-cifar100", 500, range(15)))  # fmt: skip
CHOSE = (("seq-cifar10", 200), ("seq-cifar10", 500), ("seq-cifar100", 500))  # GCR's seeds 0 to 14 chose its contrast
GEM = (("seq-cifar100", 200), ("seq-cifar100", 500), ("seq-cifar10", 2000), ("seq-cifar100", 2000))
NO_SOURCE = (("seq-cifar10", 500, ("er", "der++", "icarl", "mir", "gem")), ("seq-cifar10", 200, ("er", "der++")),
             ("seq-cifar10", 2000, ("er", "der++")), ("seq-cifar100", 500, ("er", "der++")))  # fmt: skip
AS_MANY_BYTES = (("seq-cifar10", 29_066), ("seq-cifar100", 26_227))  # as GCR+ with K = 500 and its network copies
BOTH = ("der++", "gcr")
LATER = (  # study, what of the paper's tables, seeds
    ("ablation", Request("ablation", methods=("gcr + reservoir", "gcr + bilevel", "gcr without supcon")), 3),
    ("er-gcr", Request("er-gcr", methods=("er + grad-approx",)), 3),
    ("ocs", Request("ocs"), 3),
    ("20-tasks", Request("more-tasks", buffers=(500,)), 3),
    ("offline", Request("offline-accuracy", ("seq-cifar10",), BOTH, (200, 2000)), 3),
    ("offline", Request("offline-accuracy", ("seq-cifar100",), BOTH, (200, 500)), 3),
    ("offline-tiny", Request("offline-accuracy", ("seq-tinyimagenet",), BOTH, (500,)), 1),
)
REPEATS, REPEATED_SEED = 8, range(20, 21)


def plan_of(regime: str, scenario: str, method: str, buffer: int) -> Plan:
    """A cell of the paper, class-IL."""
    table, one = f"{regime}-accuracy", (0,)  # seed
    asked = Request(table, (scenario,), (method,), (buffer,), one, precision="bf16", protocols=("class-il",))
    return make_plan(asked, Path())


def experiment(
    regime: str, scenario: str, method: str, buffer: int, changes: Mapping[str, Any], seed: int, values_of: int = 0
) -> Experiment:
    """A cell of the paper with changes. ``values_of``: the buffer size whose chosen values it takes, if not its own."""
    (values,) = plan_of(regime, scenario, method, values_of or buffer).chosen.values()
    given = {**values, "online": regime == "online", "buffer": buffer, **changes}
    return compose(scenario, method, seed=seed, selector=given.pop("selector", None), overrides=given)


def of_paper(study: str, regime: str, scenario: str, method: str, buffer: int, seeds: range) -> Cell:
    """A cell of the paper under the name that ``gcr reproduce`` gives its runs."""
    (job,) = plan_of(regime, scenario, method, buffer).jobs()
    made = partial(experiment, regime, scenario, method, buffer, {})
    return Cell(study, regime, job.folder.path.parent.name, seeds, made)


def due() -> Iterator[Cell]:
    repeated = {
        "gcr": partial(experiment, "online", "seq-cifar10", "gcr", 500, {}),
        "gcr-plus": partial(gcr_plus_runs.experiment, "seq-cifar10", {"online": True}),
    }
    without_average = partial(gcr_plus_runs.experiment, "seq-cifar10", {"online": True, "decay": 0})
    for number in range(REPEATS):  # what the average is worth in it
        name = f"seq-cifar10-online-gcr-plus-without-average-k500-process-{number}"
        yield Cell("noise", "noise", name, REPEATED_SEED, without_average)
    for number in range(REPEATS):  # in one process, and so with the same kernels
        name = f"seq-cifar10-online-gcr-k500-repeat-{number}"
        yield Cell("repeats", "noise", name, REPEATED_SEED, repeated["gcr"])
    for kind in ("", "-deterministic"):
        for method, of_seed in repeated.items():
            for number in range(REPEATS):
                name = f"seq-cifar10-online-{method}-k500{kind}-process-{number}"
                yield Cell("noise", "noise", name, REPEATED_SEED, of_seed, deterministic=bool(kind))
    for scenario, buffer in CHOSE:
        yield of_paper("fresh", "online", scenario, "gcr", buffer, range(30, 45))
    made = partial(experiment, "offline", "seq-cifar10", "gcr", 500, {})
    yield Cell("fresh", "offline-selection", "seq-cifar10-gcr-k500", range(10, 15), made)
    for scenario, buffer, seeds in ONLINE:
        for what, changes in ROWS.items():
            made = partial(experiment, "online", scenario, "gcr", buffer, changes)
            again = (scenario, buffer) == ("seq-cifar10", 500)
            yield Cell("rows", "online-variants", f"{scenario}-online-gcr-k{buffer}-{what}", seeds, made, again=again)
    for what, changes in (("", {}), ("-class-balanced", ROWS["class-balanced"])):
        made = partial(experiment, "offline", "seq-cifar100", "gcr", 2000, changes)
        yield Cell("selection", "offline-selection", f"seq-cifar100-gcr{what}-k2000", range(10, 18), made)
    for scenario, buffer in (("seq-cifar10", 500), ("seq-cifar100", 2000)):
        made = partial(experiment, "offline", scenario, "der++", 2 * buffer, {}, values_of=buffer)
        yield Cell("twice", "offline-selection", f"{scenario}-derpp-k{2 * buffer}", range(5), made)
    for scenario in ("seq-cifar10", "seq-cifar100"):  # as many bytes as GCR with K = 500 and its pool
        for method in ("er", "der++"):
            made = partial(experiment, "online", scenario, method, 1000, {}, values_of=500)
            name = f"{scenario}-online-{method.replace('+', 'p')}-k1000"
            yield Cell("twice-online", "online-variants", name, range(15), made)
    # opponent 1 of results/gcr-plus-registration.md, and its comparison at equal bytes
    published = of_paper("published", "offline", "seq-cifar100", "gcr", 500, range(5))
    yield published
    for scenario, buffer in AS_MANY_BYTES:
        for regime, method, changes, seeds in (
            ("online", "der++", {}, range(15)),
            ("online", "er", {}, range(15)),
            ("offline", "der++", {"epochs": gcr_plus_runs.SHORT}, range(3)),
        ):
            made = partial(experiment, regime, scenario, method, buffer, changes, values_of=2000)
            what = f"{regime}-{method.replace('+', 'p')}-k{buffer}"
            yield Cell("bytes", "gcr-plus-comparisons", f"{scenario}-{what}", seeds, made)
    for scenario, buffer in GEM:
        yield of_paper("gem", "online", scenario, "gem", buffer, range(15))
    for method in ("gcr", "der++"):  # a cell that the paper's GCR loses; needs the data set
        yield of_paper("tiny", "online", "seq-tinyimagenet", method, 2000, range(15))
    suspect = {"criterion": "logits"}  # of MIR's cell below the paper's
    made = partial(experiment, "online", "seq-cifar10", "mir", 2000, suspect)
    yield Cell("mir", "online-variants", "seq-cifar10-online-mir-k2000-logits", range(8), made)
    for scenario, buffer, methods in NO_SOURCE:
        for method in methods:
            yield replace(of_paper("again", "online", scenario, method, buffer, range(15)), again=True)
    for scenario, method, buffer in (("seq-cifar10", "er", 500), ("seq-cifar10", "der++", 500),
                                     ("seq-cifar100", "der++", 2000)):  # fmt: skip
        yield replace(of_paper("again-offline", "offline", scenario, method, buffer, range(5)), again=True)
    yield from (cell for cell in later() if cell.name != published.name)


def later() -> Iterator[Cell]:
    for study, asked, number in LATER:
        for job in make_plan(replace(asked, seeds=(0,), precision="bf16"), Path()).jobs():
            yield Cell(study, "offline", job.folder.path.parent.name, range(number), partial(_of_seed, job.experiment))


def _of_seed(experiment: Experiment, seed: int) -> Experiment:
    return replace(experiment, seed=seed)


if __name__ == "__main__":
    main(due(), __doc__ or "")
