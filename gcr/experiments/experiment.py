"""Experiment: all that determines a run, frozen, checked, and JSON both ways; and ``compose``, from names to objects.

>>> experiment = compose("seq-digits", "gcr", seed=1, overrides={"method.alpha": "0.2", "lr": "0.05"})
>>> experiment.method.alpha, experiment.optimizer.lr
(0.2, 0.05)
>>> Experiment.from_json(experiment.to_json()) == experiment
True
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from gcr import models, scenarios
from gcr.experiments import plugins
from gcr.experiments.names import flat, migrated, short_names
from gcr.experiments.optimizers import OptimizerSpec
from gcr.experiments.variants import (
    FOLLOWS_LR,
    ONE_LR,
    ONLINE,
    OPTIMIZER,
    check_variant,
    default_variant,
    has_variants,
    of_method,
    own_defaults,
    settings_of_variant,
)
from gcr.files import load_json
from gcr.memory import Policy
from gcr.methods import Method
from gcr.scenarios import Scenario, Stream
from gcr.settings import BadInput, class_of, from_mapping, in_paths, setting_names, to_mapping, unknown
from gcr.training import Training
from gcr.training.schedule import check_stream
from gcr.training.sgd import Sgd

Owners = Mapping[str, type[Any]]  # the class behind each of method, memory, selector, optimizer, training, stream


@dataclass(frozen=True)
class Experiment:
    scenario: str
    stream: Stream
    model: str
    method: Method
    memory: Policy | None  # None where the method keeps no memory
    optimizer: OptimizerSpec
    training: Training
    seed: int

    def __post_init__(self) -> None:
        about = scenarios.recorded(self.scenario)
        if not isinstance(self.model, str):
            raise BadInput(f"model must be a name, got {self.model!r:.40}")
        if about.n_classes:
            self.check_classes(about)
        if self.memory is not None:
            self.memory.check_predictor(self.method.name, self.method.predicts_by_copy)
        self._check_stream()
        if bool(self.method.replays) != (self.memory is not None):
            raise BadInput(f"method {self.method.name} {'needs a' if self.method.replays else 'keeps no'} memory")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**32:
            raise BadInput(f"seed must be a whole number from 0 to 2^32 - 1, got {self.seed}")

    def check_classes(self, about: scenarios.Entry) -> None:
        """Refuse what does not go with the classes of the data. With data of one's own, only what trains asks."""
        n_tasks = self.stream.tasks or about.n_tasks
        self.stream.check_classes(about.n_classes, about.name)
        self.stream.check_noise(about.n_classes, n_tasks)
        if self.memory is not None:
            self.memory.check_classes(about.n_classes, about.name)
            self.method.check_memory(self.memory.buffer, n_tasks)

    def _check_stream(self) -> None:
        stream, method = self.stream, self.method
        if stream.online:
            check_stream(stream.stream, method, self.training)
        if method.stages == "tasks" and self.memory is not None and self.memory.every:
            raise BadInput(f"{method.name} must know where tasks end; leave out every")

    def make_net(self, scenario: Scenario) -> nn.Module:
        """A new network, its initial weights a function of the seed."""
        return models.seeded(plugins.network(self.model), scenario.image_shape, scenario.n_classes, self.seed)

    def make_optimizer(self, net: nn.Module) -> Sgd | torch.optim.Optimizer:
        return self.optimizer.make(net.parameters())

    def to_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "stream": to_mapping(self.stream),
            "model": self.model,
            "method": to_mapping(self.method, named=True),
            "memory": None if self.memory is None else self.memory.to_json(),
            "optimizer": to_mapping(self.optimizer),
            "training": to_mapping(self.training),
            "seed": self.seed,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Files of earlier versions load too (``names.migrated``)."""
        for name in ("stream", "method", "memory", "optimizer", "training"):
            if not isinstance(values.get(name, {}), dict | None):
                raise BadInput(f"{name} must be a JSON object, got {values[name]!r:.40}")
        values = migrated(values)
        known = {declared.name for declared in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown("key of an experiment", key, known)
        if missing := known - values.keys():
            raise BadInput(f"experiment lacks {', '.join(sorted(missing))}")
        memory = values["memory"]
        if memory is not None:
            memory = Policy.from_json(memory, plugins.policies())
        return cls(
            scenario=values["scenario"],
            stream=Stream.from_mapping(values["stream"]),
            model=values["model"],
            method=from_mapping(values["method"], "method", plugins.methods()),
            memory=memory,
            optimizer=OptimizerSpec.from_mapping(values["optimizer"]),
            training=Training.from_mapping(values["training"]),
            seed=values["seed"],
        )

    @classmethod
    def from_json(cls, text: str) -> Experiment:
        values = load_json(text)
        if not isinstance(values, dict):
            raise BadInput(f"an experiment must be a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    @property
    def label(self) -> str:
        """Method, and the selector where it is not the method's own."""
        if self.memory is None or self.memory.selector.name == self.method.default_selector:
            return self.method.name
        return f"{self.method.name} + {self.memory.selector.name}"

    @property
    def place(self) -> tuple[str, int, int, int]:
        """Where it stands in a table: by scenario, then as methods and selectors are listed, then by buffer."""
        method = [m.name for m in plugins.methods()].index(self.method.name)
        if self.memory is None:
            return self.scenario, method, 0, 0
        selector = [p.name for p in plugins.policies()].index(self.memory.selector.name)
        return self.scenario, method, selector, self.memory.buffer

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings under dotted names, as ``compose`` takes them: method.alpha, selector.ridge, …"""
        return {
            key.removeprefix("memory.") if ".selector." in key else key: v for key, v in flat(self.to_dict()).items()
        }

    @property
    def by_name(self) -> dict[str, Any]:
        """The same, and under plain names those that only one owner has."""
        settings = self.settings
        return settings | {plain: settings[key] for key, plain in short_names(settings).items()}

    @property
    def has_variants(self) -> bool:
        return self.memory is not None and has_variants(type(self.method), self.memory.selector.name)

    @property
    def run_name(self) -> str:
        buffer = [f"k{self.memory.buffer}"] if self.memory else []
        online = ["online"] if self.stream.online else []
        parts = [in_paths(part) for part in self.label.split(" + ")]
        return "-".join([self.scenario, *online, *parts, *buffer])


def compose(
    scenario: str,
    method: str,
    *,
    seed: int = 0,
    selector: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment from names and single settings; the rest takes the defaults of scenario, method and variant.

    ``overrides`` are settings under dotted names (``method.alpha``, ``memory.buffer``, ``selector.ridge``,
    ``optimizer.lr``, ``training.epochs``, ``stream.tasks``), or under plain ones that only one owner has; ``model``;
    and ``variant``, which stands for several of them (``variants.py``).
    """
    about = scenarios.entry(scenario)
    made = compose_with(about, method, seed=seed, selector=selector, overrides=overrides)
    plugins.network(made.model)
    made.check_classes(about)
    return made


def compose_with(
    about: scenarios.Entry,
    method: str,
    *,
    seed: int = 0,
    selector: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Experiment:
    """The same with the defaults of a scenario that need not be here."""
    given = dict(overrides or {})
    method_class = class_of("method", method, plugins.methods())
    policy_class = class_of("selector", selector or method_class.default_selector, plugins.policies())
    owners = owners_of(method_class, policy_class)
    if "selector" not in owners and (selector or "buffer" in given or "memory.buffer" in given):
        raise BadInput(f"{method} keeps no memory; leave out {'selector' if selector else 'buffer'}")
    model, variant = given.pop("model", about.model), given.pop("variant", None)
    whose = f"{method}{f' + {selector}' if selector else ''}"
    if variant is not None and not has_variants(method_class, policy_class.name):
        raise BadInput(f"{whose} has no variants; leave out variant, or use method gcr or selector grad-approx")
    values = assign(given, owners, whose, unused_by(method_class))
    online = Stream(online=values["stream"].get("online", False)).online
    if "stream" in values["stream"] and not online:
        raise BadInput("stream is the length of streams and needs online; add --online, or leave it out")
    streamed = online and method_class.stages != "all at once"
    by_stream = of_method(ONLINE, method_class, {}) if streamed else {}
    own = own_defaults(method_class, ONLINE)
    usual: dict[str, dict[str, Any]] = {
        "stream": {"stream": about.stream} if online else {},
        "method": {name: value for name, value in by_stream.items() if f"method.{name}" not in own},
        "memory": {"buffer": about.buffer},
        "selector": {},
        "optimizer": {
            "lr": about.stream_lr if streamed and not of_method(ONE_LR, method_class, False) else about.lr,
            **of_method(OPTIMIZER, method_class, {}),
        },
        "training": {"epochs": 1, "batch": about.stream_batch} if streamed else {"epochs": about.epochs},
    }
    training = Training(**usual["training"] | values["training"])
    one_pass = streamed or training.epochs == 1
    left_out = unused_by(method_class)
    if variant is None:
        variant, left_out = default_variant(method_class, online), left_out | own_defaults(method_class, {"gcr"})
    for key, value in settings_of_variant(variant, one_pass, method_class, policy_class.name).items():
        if key not in left_out:
            owner, name = key.split(".")
            usual[owner][name] = value
    optimizer = OptimizerSpec(**usual["optimizer"] | values["optimizer"])
    follows = of_method(FOLLOWS_LR, method_class, "")
    if follows and f"method.{follows}" not in own_defaults(method_class, FOLLOWS_LR):
        usual["method"][follows] = optimizer.lr
    memory = None
    if "selector" in owners:
        chosen = policy_class(**usual["selector"] | values["selector"])
        memory = Policy(**usual["memory"] | values["memory"], selector=chosen)
    return Experiment(
        about.name,
        Stream(**usual["stream"] | values["stream"]),
        model,
        method_class(**usual["method"] | values["method"]),
        memory,
        optimizer,
        training,
        seed,
    )


def owners_of(method: type[Method], policy: type[Any]) -> Owners:
    """What the settings of an experiment belong to."""
    memory: Owners = {"memory": Policy, "selector": policy} if method().replays else {}
    return {"stream": Stream, "method": method, **memory, "optimizer": OptimizerSpec, "training": Training}


def assign(
    given: Mapping[str, Any], owners: Owners, whose: str, unused: frozenset[str] = frozenset()
) -> dict[str, dict[str, Any]]:
    """Settings by owner."""
    values: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    for key, value in given.items():
        owner, name = find_owner(key, owners, whose)
        if f"{owner}.{name}" in unused:
            why = {"stream": ": each task is one", "pool_network": ", as the trained network predicts"}.get(name, "")
            raise BadInput(f"{whose} ignores {key}{why}; leave it out")
        if name in values[owner]:
            raise BadInput(f"{owner}.{name} is given twice; give it once")
        values[owner][name] = value
    return values


def find_owner(key: str, owners: Owners, whose: str) -> tuple[str, str]:
    """The owner of a setting and its name there. ``key`` is dotted, or plain where only one owner has it."""
    key = "optimizer.name" if key == "optimizer" else key
    if key == "name":
        raise BadInput("name is a setting of the optimizer; write optimizer=adamw")
    names = {f"{owner}.{name}": (owner, name) for owner, part in owners.items() for name in setting_names(part)}
    if key in names:
        return names[key]
    found = [dotted for dotted, (_, name) in names.items() if name == key]
    if len(found) > 1:
        raise BadInput(f"{key} is a setting of several parts of {whose}; write {' or '.join(found)}")
    if not found:
        known = names if "." in key else {name for _, name in names.values()}
        method, _, selector = whose.partition(" + ")
        command = f"gcr settings {method}{f' --selector {selector}' if selector else ''} --all"
        raise unknown(f"setting of {whose}", key, ["model", *known], listed_by=command)
    return names[found[0]]


def unused_by(method: type[Method]) -> frozenset[str]:
    """Settings that it ignores, under dotted names."""
    owners: Owners = {"method": method, "memory": Policy, "optimizer": OptimizerSpec, "training": Training}
    names = {f"{owner}.{name}" for owner, part in owners.items() for name in setting_names(part)}
    found = {key for key in names if not method.unused.isdisjoint(key.split("."))}
    found |= {"stream.stream"} if _knows_tasks(method) else set()
    return frozenset(found if method.predictor else found | {"memory.pool_network"})


def settings_of(method: str, overrides: Mapping[str, Any], several: bool) -> dict[str, Any]:
    """``overrides`` for one of ``several`` methods: without those that it ignores."""
    chosen = class_of("method", method, plugins.methods())
    policy = class_of("selector", chosen.default_selector, plugins.policies())
    if "variant" in overrides:
        check_variant(overrides["variant"])
    owners = owners_of(chosen, policy)
    left_out = {"variant"} if not has_variants(chosen, policy.name) else set()
    ignored = unused_by(chosen)
    if "memory" not in owners:
        owners, ignored = {**owners, "memory": Policy}, ignored | {f"memory.{name}" for name in setting_names(Policy)}
    for key in overrides.keys() - {"model", "variant"}:
        with contextlib.suppress(BadInput):  # ``compose`` refuses unknown settings
            if ".".join(find_owner(key, owners, method)) in ignored:
                left_out.add(key)
    return {key: value for key, value in overrides.items() if not (several and key in left_out)}


def _knows_tasks(method: Method | type[Method]) -> bool:
    """Whether its streams are whole tasks, however long streams are."""
    return method.stages != "streams"
