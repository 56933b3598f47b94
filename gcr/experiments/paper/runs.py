"""From a cell of the paper to the run that repeats it, and from a run to whether it does.

The paper fixes data, network, epochs, batches and what its search chose. It leaves open much else (how weights are
normalised, what selection sees, …): runs that differ there are repetitions too, under different readings.
"""

from __future__ import annotations

from gcr.experiments.experiment import Experiment, compose, flat
from gcr.experiments.paper.read import Cell, chosen, label

PROTOCOL = {
    "scenario",
    "model",
    "method.name",
    "memory.selector.name",
    "memory.selector.replace",  # options of ours, off in the paper
    "memory.selector.trim",
    "memory.selector.weights",
    "memory.buffer",
    "memory.replay_batch",
    "memory.candidates",
    "memory.every",
    "training.epochs",
    "training.batch",
    "training.repeats",
}


def experiment(cell: Cell, seed: int) -> Experiment:
    """What has to be run for a cell, with the values chosen for its view."""
    about = label(cell.method)
    values = chosen(cell.setting, cell.view, cell.scenario, cell.method, cell.buffer).overrides
    overrides = values | {"buffer": cell.buffer, "setting": cell.setting}
    return compose(cell.scenario, about.method, seed=seed, selector=about.selector, overrides=overrides)


def departures(run: Experiment, cell: Cell) -> list[str]:
    """Where a run differs from what the paper fixes for a cell, in words; empty for a repetition of it."""
    values = chosen(cell.setting, cell.view, cell.scenario, cell.method, cell.buffer).overrides
    there, asked = flat(run.to_dict()), flat(experiment(cell, run.seed).to_dict())
    found = []
    for key, value in asked.items():
        name = key.rsplit(".", 1)[-1]
        fixed = key in PROTOCOL or name in values or (key.startswith("stream.") and key != "stream.stream")
        fixed = fixed or (key == "stream.stream" and cell.setting == "online")
        if fixed and there.get(key) != value:
            found.append(f"{name if name != 'name' else key} is {there.get(key)}, the paper's {value}")
    return found
