"""Experiment: all that determines a run, frozen, checked, and JSON both ways.

>>> experiment = compose("seq-digits", "gcr", seed=1, overrides={"alpha": "0.2"})
>>> Experiment.from_json(experiment.to_json()) == experiment
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gcr import scenarios
from gcr.experiments import readings
from gcr.memory import GssGreedy, Policy, Reservoir
from gcr.methods import METHODS, Method
from gcr.models import MODELS
from gcr.scenarios import Stream
from gcr.select import SELECTORS, Selector
from gcr.settings import BadInput, Settings, unknown
from gcr.training import Training


@dataclass(frozen=True)
class Experiment:
    scenario: str
    stream: Stream
    model: str
    method: Method
    memory: Policy | None  # None where the method keeps no memory
    training: Training
    seed: int

    def __post_init__(self) -> None:
        about = scenarios.entry(self.scenario)
        if self.model not in (known := [make.__name__ for make in MODELS]):
            raise unknown("model", self.model, known)
        self.stream.check_classes(about.n_classes, about.name)
        self.stream.check_noise(about.n_classes, self.stream.tasks or about.n_tasks)
        if self.memory is not None:
            self.memory.check_classes(about.n_classes, about.name)
            self.method.check_memory(self.memory.buffer, self.stream.tasks or about.n_tasks)
        self._check_stream()
        if bool(self.method.replays) != (self.memory is not None):
            raise BadInput(f"method {self.method.name} {'needs a' if self.method.replays else 'keeps no'} memory")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**32:
            raise BadInput(f"seed must be a whole number from 0 to 2^32 - 1, got {self.seed}")

    def _check_stream(self) -> None:
        stream, training, method = self.stream, self.training, self.method
        if stream.online and not _knows_tasks(method) and stream.stream < training.batch:
            raise BadInput(
                f"stream must be >= batch, which is {training.batch}, got {stream.stream}; use a longer --stream or a "
                "smaller batch"
            )
        if stream.online and training.epochs > 1 and not method.sees_all_tasks:
            raise BadInput(
                f"epochs must be 1 in the online setting, got {training.epochs}; a stream passes once "
                "(repeats sets the steps on every batch)"
            )
        if method.needs_tasks and self.memory is not None and self.memory.every:
            raise BadInput(f"{method.name} must know where tasks end; leave out every")

    def to_dict(self) -> dict[str, Any]:
        memory = None
        if self.memory is not None:
            memory = _plain(self.memory) | {"selector": _named(self.memory.selector)}
        return {
            "scenario": self.scenario,
            "stream": _plain(self.stream),
            "model": self.model,
            "method": _named(self.method),
            "memory": memory,
            "training": _plain(self.training),
            "seed": self.seed,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        known = {declared.name for declared in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown("key of an experiment", key, known)
        if missing := known - values.keys() - {"stream"}:  # runs from before there were streams lack it
            raise BadInput(f"experiment lacks {', '.join(sorted(missing))}")
        memory = values["memory"]
        if memory is not None:
            memory = Policy.from_mapping({**memory, "selector": _from_named(memory["selector"], "selector", POLICIES)})
        return cls(
            scenario=values["scenario"],
            stream=Stream.from_mapping(values.get("stream", {})),
            model=values["model"],
            method=_from_named(values["method"], "method", METHODS),
            memory=memory,
            training=Training.from_mapping(values["training"]),
            seed=values["seed"],
        )

    @classmethod
    def from_json(cls, text: str) -> Experiment:
        values = json.loads(text)
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
        method = [m.name for m in METHODS].index(self.method.name)
        if self.memory is None:
            return self.scenario, method, 0, 0
        return self.scenario, method, [p.name for p in POLICIES].index(self.memory.selector.name), self.memory.buffer

    @property
    def unusual(self) -> set[str]:
        """Its settings, under dotted names, that are not at their defaults; its buffer's size is never one of them."""
        given: dict[str, Any] = {"setting": self.stream.setting}
        selector = None
        if self.memory is not None:
            given["buffer"], selector = self.memory.buffer, self.memory.selector.name
        usual = compose(self.scenario, self.method.name, seed=self.seed, selector=selector, overrides=given)
        found = {key: plain(key) for key in differing(self, usual)}
        if not found.values() & readings.POINTS:
            return set(found)
        given |= {name: self.by_name[name] for name, _, _ in readings.GIVES_WAY if name in found.values()}
        usual = compose(self.scenario, self.method.name, seed=self.seed, selector=selector, overrides=given)
        points = {key for key in differing(self, usual) if plain(key) in readings.POINTS}
        return {key for key, name in found.items() if name not in readings.POINTS} | points

    @property
    def by_name(self) -> dict[str, Any]:
        """All its settings under their plain names, as ``compose`` takes them."""
        return {plain(key): value for key, value in flat(self.to_dict()).items()}

    @property
    def has_readings(self) -> bool:
        return self.memory is not None and readings.concern(self.method.name, self.memory.selector.name)

    @property
    def run_name(self) -> str:
        buffer = [f"k{self.memory.buffer}"] if self.memory else []
        online = ["online"] if self.stream.online else []
        return "-".join([self.scenario, *online, *self.label.replace("++", "pp").split(" + "), *buffer])


POLICIES: tuple[type[Selector] | type[Reservoir] | type[GssGreedy], ...] = (Reservoir, GssGreedy, *SELECTORS)


def compose(
    scenario: str,
    method: str,
    *,
    seed: int = 0,
    selector: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment from names and single settings; what is not given takes the defaults of scenario and method.

    ``overrides`` are settings by plain name, wherever they belong: model, lr, epochs, alpha, buffer, ridge, …; and
    ``reading``, which stands for several of them (``gcr.experiments.readings``).
    """
    given = dict(overrides or {})
    about = scenarios.entry(scenario)
    method_class = _by_name("method", method, METHODS)
    policy_class = _by_name("selector", selector or method_class.default_selector, POLICIES)
    model = given.pop("model", about.model)
    has_memory = bool(method_class().replays)
    if not has_memory and (selector or "buffer" in given):
        raise BadInput(f"{method} keeps no memory; leave out {'selector' if selector else 'buffer'}")
    parts: list[type[Any]] = [Stream, method_class, Training]
    if has_memory:
        parts += [Policy, policy_class]
    homes = {name: part for part in parts for name in setting_names(part)}
    given = _with_reading(given, method_class, policy_class, homes)
    for key in given:
        if key not in homes:
            whose = f"setting of {method}{f' + {selector}' if selector else ''}"
            more = ["reading"] if readings.concern(method, policy_class.name) else []
            raise unknown(whose, key, ["model", *more, *homes])
        if key in unused_by(method_class):
            why = ": each task is one" if key == "stream" and method_class.needs_tasks else ""
            raise BadInput(f"{method} has no use for {key}{why}; leave it out")
    values = {part: {key: value for key, value in given.items() if homes[key] is part} for part in parts}
    memory = None
    if has_memory:
        memory = Policy(**({"buffer": about.buffer} | values[Policy]), selector=policy_class(**values[policy_class]))
    online = values[Stream].get("setting") == "online"
    if "stream" in given and not online:
        raise BadInput("stream is the length of streams in the online setting; add --setting online, or leave it out")
    length = {"stream": about.stream} if online else {}
    stream = Stream(**(length | values[Stream]))
    usual: dict[str, Any] = {"epochs": about.epochs, "lr": about.lr}
    if stream.online and not method_class.sees_all_tasks:
        usual |= {"epochs": 1, "batch": about.stream_batch, "lr": about.stream_lr}
        values[method_class] = {**method_class.on_streams, **values[method_class]}
    training = Training(**(usual | values[Training]))
    if method_class.follows_lr:
        values[method_class] = {method_class.follows_lr: training.lr} | values[method_class]
    return Experiment(scenario, stream, model, method_class(**values[method_class]), memory, training, seed)


def _with_reading(
    given: dict[str, Any], method: type[Method], policy: type[Any], homes: Mapping[str, type[Any]]
) -> dict[str, Any]:
    """``given`` with what its reading, or else the method's usual one, stands for."""
    reading = given.pop("reading", None)
    if reading is not None and not readings.concern(method.name, policy.name):
        raise BadInput(f"{method.name} has no use for reading, which is about GCR and its selection; leave it out")
    if reading is None:
        reading = method.reading if given.get("setting") != "online" else None
    if reading is None:
        return given
    known = [name for name in homes if name not in unused_by(method)]
    return readings.settings_of_reading(reading, known, given) | given


def settings_of(method: str, overrides: Mapping[str, Any], several: bool) -> dict[str, Any]:
    """``overrides`` for one of ``several`` methods: without what it makes nothing of."""
    chosen = _by_name("method", method, METHODS)
    left_out = set(unused_by(chosen))
    if "reading" in overrides:
        readings.check(overrides["reading"])
    if not chosen().replays:
        left_out |= set(setting_names(Policy))
    if not readings.concern(method, chosen.default_selector):
        left_out.add("reading")
    return {key: value for key, value in overrides.items() if not (several and key in left_out)}


def unused_by(method: type[Method]) -> frozenset[str]:
    """Settings that it makes nothing of."""
    return method.unused | ({"stream"} if _knows_tasks(method) else set())


def _knows_tasks(method: Method | type[Method]) -> bool:
    """Whether its streams are whole tasks, however long streams are."""
    return method.needs_tasks or method.sees_all_tasks


def setting_lines(scenario: str, method: str, selector: str | None = None) -> list[tuple[str, str, str]]:
    """Name, help and default of every setting that ``compose`` takes, and the default online where it is another."""
    experiment = compose(scenario, method, selector=selector)
    online = compose(scenario, method, selector=selector, overrides={"setting": "online"})
    lines = [("model", f"one of {', '.join(make.__name__ for make in MODELS)}", experiment.model)]
    if experiment.has_readings:
        usual, other = (readings.nearest(e.by_name) for e in (experiment, online))
        lines.append(("reading", readings.HELP, usual if other == usual else f"{usual}; online {other}"))
    for part, streamed in zip(_parts(experiment), _parts(online), strict=True):
        for f in fields(part):
            if "help" in f.metadata and f.name not in unused_by(type(experiment.method)):
                usual, other = str(getattr(part, f.name)), str(getattr(streamed, f.name))
                differs = other != usual and f.name != "setting"
                lines.append((f.name, f.metadata["help"], f"{usual}; online {other}" if differs else usual))
    return lines


def _parts(experiment: Experiment) -> list[Any]:
    """What its settings belong to."""
    memory = experiment.memory
    return [experiment.method, experiment.training, experiment.stream, *([memory, memory.selector] if memory else [])]


def differing(first: Experiment, second: Experiment) -> dict[str, tuple[Any, Any]]:
    """The settings in which two experiments differ, under dotted names, with both values. Where method or selector is
    another, settings that only one of them has go without saying."""
    old, new = flat(first.to_dict()), flat(second.to_dict())
    both = {key: (old.get(key, "absent"), new.get(key, "absent")) for key in [*old, *new]}
    unlike = {key: values for key, values in both.items() if values[0] != values[1]}
    others = tuple(key.removesuffix("name") for key in unlike if plain(key) == "name")
    return {key: values for key, values in unlike.items() if not (key.startswith(others) and "absent" in values)}


def differences(there: Experiment, asked: Experiment) -> list[str]:
    """Where two experiments differ, in words."""
    return [f"{key} is {old} there, {new} here" for key, (old, new) in differing(there, asked).items()]


def plain(key: str) -> str:
    """The name of a setting without the parts that it belongs to."""
    return key.rsplit(".", 1)[-1]


def setting_names(part: type[Any]) -> list[str]:
    return [declared.name for declared in fields(part) if "help" in declared.metadata]


def _plain(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in setting_names(type(settings))}


def _named(settings: Any) -> dict[str, Any]:
    return {"name": settings.name} | _plain(settings)


def _from_named(values: Mapping[str, Any], kind: str, known: tuple[type[Any], ...]) -> Any:
    rest = dict(values)
    chosen: type[Settings] = _by_name(kind, rest.pop("name", ""), known)
    return chosen.from_mapping(rest)


def _by_name(kind: str, name: str, known: tuple[type[Any], ...]) -> type[Any]:
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise unknown(kind, name, [candidate.name for candidate in known])


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    >>> flat({"seed": 1, "training": {"lr": 0.1}})
    {'seed': 1, 'training.lr': 0.1}
    """
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
