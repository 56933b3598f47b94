"""Experiments in words: the settings of a method, with help and defaults; where experiments differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from gcr import scenarios
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment, compose, compose_with, unused_by
from gcr.experiments.names import plain
from gcr.experiments.variants import FOLLOWS_LR, PAPER, VARIANTS, in_words, of_method
from gcr.settings import setting_names


def setting_lines(
    scenario: str, method: str, selector: str | None = None, advanced: bool = True
) -> list[tuple[str, str, str]]:
    """What ``gcr settings`` shows: dotted name, help and default of every setting that ``compose`` takes, and the
    default online where it differs. Without ``advanced``: those that users change most, and those where the method has
    its own default; but ``variant`` stands for its settings."""
    experiment = compose(scenario, method, selector=selector)
    online = compose(scenario, method, selector=selector, overrides={"online": True})
    lines = [("model", f"one of {', '.join(make.__name__ for make in plugins.networks())}", experiment.model)]
    if experiment.has_variants:
        text = f"all details in which the GCR paper and its released code differ: {' or '.join(VARIANTS)}"
        lines.append(("variant", text, _default(*(in_words(e.settings, type(e.method)) for e in (experiment, online)))))
    parts, streamed = _parts(experiment), _parts(online)
    for owner, part in parts.items():
        for declared in fields(part):
            key, name = f"{owner}.{declared.name}", declared.name
            if name not in setting_names(type(part)) or key in unused_by(type(experiment.method)):
                continue
            both = getattr(part, name), getattr(streamed[owner], name)
            own = key not in PAPER and both != (declared.default, declared.default)
            if advanced or own or not declared.metadata["advanced"]:
                default = str(both[0]).lower() if key == "stream.online" else _default(*both)
                lines.append((key, declared.metadata["help"], default))
    return lines


def _default(usual: Any, online: Any) -> str:
    return str(usual) if usual == online else f"{usual}; online {online}"


def _parts(experiment: Experiment) -> dict[str, Any]:
    memory = experiment.memory
    parts: dict[str, Any] = {"method": experiment.method}
    parts |= {"memory": memory, "selector": memory.selector} if memory else {}
    return parts | {"optimizer": experiment.optimizer, "training": experiment.training, "stream": experiment.stream}


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
    follower = f"method.{of_method(FOLLOWS_LR, type(experiment.method), '')}"
    followed = {follower: experiment.optimizer.lr} if follower in settings else {}
    found = set(_differing(settings, {**_usual(*about), **followed}))
    if "training.epochs" in found:  # one epoch changes the default of memory.admit
        usual = {**_usual(*about, experiment.training.epochs), **followed}
        found = {"training.epochs", *_differing(settings, usual)}
    return found - {"seed"}


@lru_cache(maxsize=1024)  # a table asks the same for each of its rows
def _usual(
    scenario: str, method: str, selector: str | None, buffer: int | None, online: bool, epochs: int | None = None
) -> Mapping[str, Any]:
    given = {"online": online, "buffer": buffer, "epochs": epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    return compose_with(scenarios.recorded(scenario), method, selector=selector, overrides=overrides).settings
