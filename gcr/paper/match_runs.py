"""From a cell of the paper to the run that repeats it, and from a run to whether it does.

The paper fixes data, network, epochs, batches and what its search chose. It leaves open much else (how weights are
normalised, what selection sees, …): runs that differ there are repetitions too, of other variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcr.experiments.experiment import Experiment, compose
from gcr.experiments.names import plain
from gcr.paper.tables import Cell, chosen, label

FIXED = {
    "scenario",
    "model",
    "method.name",
    "selector.name",
    "selector.replace",  # options of ours, off in the paper
    "selector.trim",
    "selector.rows",
    "selector.weights",
    "memory.buffer",
    "memory.replay_batch",
    "memory.candidates",
    "memory.every",
    "memory.pool",  # these three are ours, too
    "memory.kept_weights",
    "memory.statistics",
    "optimizer.name",
    "optimizer.momentum",
    "optimizer.weight_decay",
    "training.epochs",
    "training.batch",
    "training.repeats",
    "training.ghost_batches",
}


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
        fixed = key in FIXED or name in values or (key.startswith("stream.") and key != "stream.stream")
        fixed = fixed or (key == "stream.stream" and cell.regime == "online")
        if fixed and there.get(key) != value:
            owner = whose if name in values else "the paper's"
            found.append(f"{name if name != 'name' else key} is {there.get(key)}, {owner} {value}")
    return found
