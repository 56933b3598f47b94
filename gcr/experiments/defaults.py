"""Defaults of single methods that depend on the rest of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

# Settings of the method that have other defaults online: the paper's medians; for GCR also the contrast that does
# better there (docs/evidence.md).
ONLINE: Mapping[str, Mapping[str, float | str]] = {
    "der++": {"alpha": 0.5, "beta": 2.0},
    "gcr": {"alpha": 1.0, "beta": 3.0, "gamma": 1.0, "contrast": "features"},
}
# Settings of the optimizer that differ for a method.
OPTIMIZER: Mapping[str, Mapping[str, float | str]] = {
    "icarl": {"weight_decay": 1e-5},
    "gcr+": {"weight_decay": 5e-4},
}
# Methods that take the learning rate of whole tasks in streams, too.
ONE_LR = frozenset({"gcr+"})
# A setting of the method that is the optimizer's learning rate if not given.
FOLLOWS_LR: Mapping[str, str] = {"mir": "virtual_lr"}
