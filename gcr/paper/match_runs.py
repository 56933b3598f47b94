"""From a cell of the paper to the run that repeats it, and from a run to whether it does.

The paper fixes data, network, epochs, batches and what its search chose. It leaves some points open (how weights are
normalised, what selection sees, …): runs that differ there are repetitions too, of other variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcr.experiments.experiment import Experiment, compose
from gcr.experiments.names import plain
from gcr.paper.tables import Cell, chosen, label

OPEN = {
    "seed",
    "training.precision",
    "memory.sampling",
    "memory.admit",
    "memory.pool_view",
    "memory.pool_mode",
    "selector.shares",
    "selector.negative",
    "selector.atoms",
    "selector.ridge",
    "selector.tolerance",
    "selector.gradients",
}  # and details of a method's loss; everything else is fixed, options of ours by being off


def experiment(cell: Cell, seed: int, values: Mapping[str, Any] | None = None) -> Experiment:
    """What has to be run for a cell, with the values chosen for its protocol: the paper's, or ``values``."""
    about = label(cell.method)
    if values is None:
        values = chosen(*cell.place).overrides
    overrides = dict(values) | {"buffer": cell.buffer, "online": cell.regime == "online"}
    return compose(cell.scenario, about.method, seed=seed, selector=about.selector, overrides=overrides)


def departures(run: Experiment, cell: Cell, values: Mapping[str, Any] | None = None) -> list[str]:
    """Where a run differs from what the paper fixes for a cell, in words; empty for a repetition of it. ``values``
    stand in for the paper's chosen ones."""
    whose = "the paper's" if values is None else "the search's"
    if values is None:
        values = chosen(*cell.place).overrides
    there, asked = run.settings, experiment(cell, run.seed, values).settings
    found = []
    for key, value in asked.items():
        name = plain(key)
        open_to_all = key in OPEN or (key.startswith("method.") and key != "method.name")
        unused = key == "stream.stream" and cell.regime == "offline"
        if (name in values or not (open_to_all or unused)) and there.get(key) != value:
            owner = whose if name in values else "the paper's"
            found.append(f"{name if name != 'name' else key} is {there.get(key)}, {owner} {value}")
    return found
