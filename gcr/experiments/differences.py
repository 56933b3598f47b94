"""Where experiments differ from each other, and from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gcr.experiments.experiment import Experiment, compose
from gcr.experiments.names import plain


def differing(first: Experiment, second: Experiment) -> dict[str, tuple[Any, Any]]:
    """The settings in which two experiments differ, under dotted names, with both values. Where method or selector
    differ, settings that only one of them has are left out."""
    return _differing(first.settings, second.settings)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {key: (old.get(key, "absent"), new.get(key, "absent")) for key in [*old, *new]}
    unlike = {key: values for key, values in both.items() if values[0] != values[1]}
    others = tuple(key.removesuffix("name") for key in unlike if plain(key) == "name")
    return {key: values for key, values in unlike.items() if not (key.startswith(others) and "absent" in values)}


def differences(there: Experiment, asked: Experiment) -> list[str]:
    """The same in words."""
    return [f"{key} is {old} there, {new} here" for key, (old, new) in differing(there, asked).items()]


def unusual(experiment: Experiment) -> set[str]:
    """Its settings, under dotted names, that are not at their defaults for its regime, selector, buffer and epochs;
    and its epochs, if they are not the default."""
    memory = experiment.memory
    kept = (memory.selector.name, memory.buffer) if memory is not None else (None, None)
    about = (experiment.scenario, experiment.method.name, *kept, experiment.stream.online)
    settings = experiment.settings
    found = set(_differing(settings, _usual(*about)))
    if "training.epochs" in found:  # one epoch changes the default of memory.admit
        found = {"training.epochs", *_differing(settings, _usual(*about, experiment.training.epochs))}
    return found - {"seed"}


@lru_cache(maxsize=1024)  # a table asks the same for each of its rows
def _usual(
    scenario: str, method: str, selector: str | None, buffer: int | None, online: bool, epochs: int | None = None
) -> Mapping[str, Any]:
    given = {"online": online, "buffer": buffer, "epochs": epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    return compose(scenario, method, selector=selector, overrides=overrides).settings
