"""Searching a grid: every point is trained on all but 10% of the training images and judged on those.

Each trial is a run folder below ``trials/``. Class-IL and task-IL are chosen apart, by the mean validation accuracy
over the trial seeds, at the end or any-time. Of equal means the first in the order of the grid wins, in which the last
setting varies fastest. A point of which a trial diverged has lost: that is written down in its folder, and it is not
tried again.

>>> search = Search("seq-digits", "offline", "er", 50, {"lr": (0.03, 0.1), "batch": (16, 32)}, {"epochs": 1}, (0,))
>>> search.points[1]
{'lr': 0.03, 'batch': 32}
>>> search.trial(search.points[1], 0, Path("runs")).folder.path.as_posix()
'runs/trials/seq-digits-er-k50-lr0.03-batch32-epochs1/seed-0'
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcr import paper
from gcr.analysis.load import METRICS, check_result, metric_of
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment, compose
from gcr.experiments.names import plain
from gcr.files import brief, write_whole
from gcr.paper import Label
from gcr.runs.folder import TRIALS, RunFolder, check_together
from gcr.runs.job import Job
from gcr.settings import BadInput, class_of

VALIDATION = 0.1  # share of the training images that a search judges by
PROTOCOLS = ("class-il", "task-il")
CHOSEN_BY = ("accuracy", "anytime")
NOT_SEARCHED = {  # options of a search, or set by it; and what to do instead
    "buffer": "give --buffer",
    "online": "give --online",
    "validation": "trials are judged on 10% of the training images, final runs train on all; for another share, use "
    "gcr run --set validation=0.3 --vary",
}


@dataclass(frozen=True)
class Search:
    scenario: str
    regime: str
    method: str  # a row of the paper's tables, or any method
    buffer: int | None  # None: the scenario's, or none at all
    grid: Mapping[str, Sequence[Any]] = field(hash=False)
    common: Mapping[str, Any] = field(hash=False)  # settings of all its runs, as epochs
    seeds: tuple[int, ...]
    metric: str = CHOSEN_BY[0]  # that it chooses by

    def __post_init__(self) -> None:
        for key in self.common:
            if remedy := NOT_SEARCHED.get(plain(key)):
                raise BadInput(f"{key} cannot be set for all runs of a search; {remedy}")
        if self.metric == "anytime" and self._experiment({}, 0).method.stages == "all at once":
            raise BadInput(f"metric must be accuracy for {self.method}, which is evaluated once, got anytime")

    @property
    def points(self) -> list[dict[str, Any]]:
        """The settings of each, with those that make the method's row."""
        fixed = label_of(self.method).fixed
        return [{**dict(zip(self.grid, p, strict=True)), **fixed} for p in itertools.product(*self.grid.values())]

    @property
    def file_name(self) -> str:
        settings = {**label_of(self.method).fixed, **self.common}
        by = "" if self.metric == CHOSEN_BY[0] else f"-by-{self.metric}"
        return f"sweep-{run_name(self._experiment({}, 0), settings)}{by}.json"

    def trial(self, point: Mapping[str, Any], seed: int, out: Path) -> Job:
        experiment = self._experiment({**point, "validation": VALIDATION}, seed)
        name = run_name(experiment, {**point, **self.common})
        return Job(experiment, RunFolder.of(out / TRIALS, experiment, name))

    def trials(self, out: Path) -> list[Job]:
        return [self.trial(point, seed, out) for point in self.points for seed in self.seeds]

    def final(self, values: Mapping[str, Any], seed: int, out: Path) -> Job:
        """A run with chosen values on all training images."""
        experiment = self._experiment(values, seed)
        return Job(experiment, RunFolder.of(out, experiment, run_name(experiment, {**values, **self.common})))

    def _experiment(self, values: Mapping[str, Any], seed: int) -> Experiment:
        return compose_label(self.scenario, self.regime, self.method, self.buffer, seed, {**values, **self.common})


@dataclass(frozen=True)
class Choice:
    """The outcome of a search: its points for each protocol, best first, each with its mean and what went wrong."""

    ranking: dict[str, list[dict[str, Any]]]

    def values(self, protocol: str) -> dict[str, Any]:
        best: dict[str, Any] = self.ranking[protocol][0]["values"]
        return best


def choose(search: Search, out: Path) -> Choice | None:
    """The points in the order of their validation accuracies; None while trials are missing."""
    judged = []
    for point in search.points:
        outcomes = [_outcome(search.trial(point, seed, out).folder, search.metric) for seed in search.seeds]
        if any(outcome is None for outcome in outcomes):
            return None
        judged.append((point, [outcome for outcome in outcomes if outcome is not None]))
    if all(any("error" in outcome for outcome in outcomes) for _, outcomes in judged):
        first = next(outcome["error"] for outcome in judged[0][1] if "error" in outcome)
        raise BadInput(
            f"all {len(judged)} points of the grid of {search.method} failed on {search.scenario} ({first}); "
            "give another --grid"
        )
    return Choice({protocol: _ranked(judged, protocol) for protocol in PROTOCOLS})


def check_choice(search: Search, out: Path) -> None:
    """Refuse to replace the choice of another search. One that cannot be read is written again."""
    path = out / search.file_name
    try:
        there = json.loads(path.read_bytes())
        before = {"grid": there["grid"], "seeds": there["seeds"]}
    except (OSError, ValueError, LookupError, TypeError):
        return
    asked = {"grid": {key: list(values) for key, values in search.grid.items()}, "seeds": list(search.seeds)}
    if different := [f"{key} is {before[key]} there, {asked[key]} here" for key in asked if before[key] != asked[key]]:
        raise BadInput(f"{path} is of another search ({'; '.join(different)}); move it away, or choose another --out")


def write_choice(search: Search, choice: Choice, out: Path, protocols: Sequence[str] = PROTOCOLS) -> Path:
    """Write the choice and its runners-up next to the runs."""
    path = out / search.file_name
    experiment = search.final({}, 0, out).experiment
    settings = experiment.by_name  # as numbers
    content = {
        "scenario": search.scenario,
        "regime": search.regime,
        "method": search.method,
        "buffer": search.buffer,
        "grid": {key: list(values) for key, values in search.grid.items()},
        "common": {key: settings.get(key, value) for key, value in search.common.items()},
        "seeds": list(search.seeds),
        "metric": search.metric,
        "validation": VALIDATION,
        "chosen": {protocol: choice.ranking[protocol][0] for protocol in protocols},
        "ranking": {protocol: choice.ranking[protocol] for protocol in protocols},
    }
    written = (json.dumps(content, indent=2) + "\n").encode()
    if not path.exists() or path.read_bytes() != written:
        write_whole(path, written)
    return path


def _outcome(folder: RunFolder, metric: str) -> dict[str, Any] | None:
    """The metric by protocol, or what went wrong; None: not there yet."""
    if folder.finished:
        try:
            result = folder.result()
            check_result(result)
            check_together(folder.experiment_values(), result)
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(f"{folder.path} cannot be read ({brief(error)}); move it away or train it again") from None
        found = {protocol: metric_of(result, protocol.replace("-", "_"), metric) for protocol in PROTOCOLS}
        if None in found.values():
            raise BadInput(f"{folder.path} has no {METRICS[metric]}; train it again, or choose by accuracy")
        return found
    failure = folder.failure
    return None if failure is None else {"error": failure}


def _ranked(judged: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], protocol: str) -> list[dict[str, Any]]:
    points = []
    for point, outcomes in judged:
        errors = [outcome["error"] for outcome in outcomes if "error" in outcome]
        found = [outcome[protocol] for outcome in outcomes if protocol in outcome]
        mean = sum(found) / len(found) if found and not errors else None
        points.append({"values": point, "mean": mean, "n": len(found), "errors": errors})
    return sorted(points, key=lambda p: -p["mean"] if p["mean"] is not None else float("inf"))  # sorting is stable


def run_name(experiment: Experiment, values: Mapping[str, Any], name: str | None = None) -> str:
    """The folder of an experiment, or a ``name`` in its place, with the values that were chosen for it.

    >>> run_name(compose("seq-digits", "er", overrides={"buffer": 50}), {"lr": 0.1, "precision": "bf16"})
    'seq-digits-er-k50-lr0.1-bf16'
    """
    said = () if name else ("selector",)
    parts = [
        str(value) if key == "precision" else f"{key}{_short(value)}"
        for key, value in values.items()
        if key not in said
    ]
    return "-".join([name or experiment.run_name, *parts])


def variant_name(experiment: Experiment, variant: Mapping[str, str], name: str | None = None) -> str:
    """The folder of one of several variants: with the settings that it changes, unless its own name says them already.

    >>> changed = {"buffer": "50", "lr": "0.10"}
    >>> variant_name(compose("seq-digits", "er", overrides=changed), changed)
    'seq-digits-er-k50-lr0.1'
    """
    said = () if name else ("buffer", "selector", "online")
    values = experiment.by_name
    return run_name(experiment, {key: values.get(key, text) for key, text in variant.items() if key not in said}, name)


def _short(value: Any) -> str:
    """Exact: two values never have one name."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def compose_label(
    scenario: str, regime: str, method: str, buffer: int | None, seed: int, overrides: Mapping[str, Any]
) -> Experiment:
    """An experiment of a row of the paper's tables ("er + grad-approx"), or of any method."""
    about = label_of(method)
    given = {**overrides, "online": regime == "online"} | ({} if buffer is None else {"buffer": buffer})
    if about.selector and "selector" in given:
        raise BadInput(f"{method} has its selector; leave out selector, or use method {about.method}")
    selector = given.pop("selector", about.selector)
    return compose(scenario, about.method, seed=seed, selector=selector, overrides=given)


def label_of(method: str) -> Label:
    known = paper.labels()
    return known[method] if method in known else Label(method, method, method, None, method, {}, {})


def paper_grid(regime: str, method: str) -> dict[str, tuple[Any, ...]]:
    """What the paper searched; rows that take another's values take its grid, without what makes the row."""
    about = label_of(method)
    class_of("method", about.method, plugins.methods())  # it exists
    found = paper.grid(regime, about.values_of)
    return {key: values for key, values in found.items() if key not in about.fixed}


def read_grid(path: Path) -> dict[str, tuple[Any, ...]]:
    """A grid of one's own: TOML with a list per setting, as ``lr = [0.01, 0.03]``."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"grid {path} cannot be read ({error.strerror}); give paper or a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"grid {path} is not TOML ({error})") from None
    return check_grid(raw, str(path))


def check_grid(raw: Mapping[str, Any], where: str) -> dict[str, tuple[Any, ...]]:
    if not raw:
        raise BadInput(f"grid {where} is empty; give a list per setting, as lr = [0.01, 0.03]")
    for key, values in raw.items():
        if plain(key) in NOT_SEARCHED:
            raise BadInput(f"{key} cannot be searched in grid {where}; it is an option of the command or its own")
        if not isinstance(values, list | tuple) or not values:
            raise BadInput(f"{key} must be a list with a value or more in grid {where}, got {values!r}")
        if len({str(float(value)) if type(value) is int else str(value) for value in values}) < len(values):
            raise BadInput(f"{key} must have different values in grid {where}, got {list(values)}")
    return {key: tuple(values) for key, values in raw.items()}
