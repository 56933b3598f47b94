"""The paper's tables, chosen values and search grids, as it prints them, under our names.

The TOML files of this folder are a transcription of "GCR: Gradient Coreset Based Replay Buffer Selection for Continual
Learning" (CVPR 2022); their ``notes`` say where it contradicts itself. ``spread`` is the number after ±: the paper
calls it the SEM, but seeds spread as if it were the standard deviation, so ``gcr`` tests nothing with it.

>>> cell = find("offline-accuracy", protocol="class-il", scenario="seq-cifar10", method="gcr", buffer=500)[0]
>>> cell.mean, cell.spread, cell.bold
(74.69, 0.85, True)
>>> chosen("offline", "class-il", "seq-cifar10", "gcr", 500).overrides
{'lr': 0.03, 'alpha': 0.1, 'beta': 0.1, 'gamma': 0.1}
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from gcr.settings import BadInput, unknown

SEEDS = 15
TABLES = (
    "offline-accuracy",
    "offline-forgetting",
    "offline-forgetting-main",
    "more-tasks",
    "online-accuracy",
    "online-forgetting",
    "ablation",
    "ocs",
    "er-gcr",
    "imagenet",
)
MADE_OF_OTHERS = "main-figure"  # its values are printed in tables alone
OURS = ("demo-table",)  # in the form of the paper's tables, without values of it
OTHER_NAMES = {"imagenet1k": "imagenet"}
NEAREST = "seq-cifar100"  # whose values a scenario takes for which the paper names none

Place = tuple[str, str, str, str, int]  # regime, protocol, scenario, method, buffer


@dataclass(frozen=True)
class Cell:
    """One value of one table."""

    table: str
    scenario: str
    regime: str  # offline or online
    protocol: str  # class-il or task-il
    method: str  # one of ``labels()``
    buffer: int
    metric: str  # accuracy or forgetting, in percent
    mean: float | None  # None in a table of ours
    spread: float | None  # as printed after ±; None where nothing is
    bold: bool

    @property
    def column(self) -> tuple[str, str, str, str, int]:
        """What the cells have in common that compete for bold."""
        return self.scenario, self.regime, self.protocol, self.metric, self.buffer

    @property
    def place(self) -> Place:
        """What the cells have in common that one search and its runs serve."""
        return self.regime, self.protocol, self.scenario, self.method, self.buffer

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    source: str  # its label in the paper's LaTeX
    notes: tuple[str, ...]  # oddities of the printed table
    pairwise_p: float | None  # where the paper claims that all pairs differ at this level
    cells: tuple[Cell, ...]
    seeds: int = SEEDS
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # of all runs, in a table of ours
    grids: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict, hash=False)  # by method, likewise


@dataclass(frozen=True)
class Label:
    """A row of the paper's tables as a method of ours: its selector where it is not the method's own."""

    name: str
    printed: str
    method: str
    selector: str | None
    values_of: str  # the label whose chosen values it takes
    settings: Mapping[str, str] = field(hash=False)  # the paper's symbol -> our setting; "": ours has no such setting
    fixed: Mapping[str, float] = field(hash=False)  # what makes the row

    def rename(self, values: Mapping[str, Any]) -> dict[str, Any]:
        named = {self.settings.get(symbol, symbol): value for symbol, value in values.items()}
        return {name: value for name, value in named.items() if name}


@dataclass(frozen=True)
class Chosen:
    """Settings under our names. ``ours``: the paper names none for this case, and ``why`` says what we took."""

    overrides: dict[str, Any]
    ours: bool
    why: str = ""


def tables() -> tuple[str, ...]:
    """What the paper prints as tables."""
    return TABLES


def reproducible() -> tuple[str, ...]:
    """What ``gcr reproduce`` knows: the paper's tables, its main figure, and a miniature of ours."""
    return (*TABLES, *OTHER_NAMES, MADE_OF_OTHERS, *OURS)


@cache
def table(name: str) -> Table:
    if name not in reproducible():
        raise unknown("table of the paper", name, reproducible())
    name = OTHER_NAMES.get(name, name)
    raw = _load("tables")[name]
    cells = [replace(cell, table=name) for taken in raw.get("taken", []) for cell in _taken(**taken)]
    for row in raw.get("rows", []):
        for column, printed in zip(raw["columns"], row.get("cells", ["?"] * len(raw["columns"])), strict=True):
            if printed != "-":
                about = raw["common"] | column | {key: value for key, value in row.items() if key != "cells"}
                cells.append(Cell(table=name, **about, **_number(printed)))
    of_ours = {key: raw[key] for key in ("seeds", "settings", "grids") if key in raw}
    pairwise = raw.get("pairwise_p")
    return Table(name, raw["title"], raw["source"], tuple(raw["notes"]), pairwise, tuple(cells), **of_ours)


def _taken(table: str, methods: list[str], **wanted: Any) -> list[Cell]:
    return [cell for cell in find(table, **wanted) if cell.method in methods]


def cells(name: str) -> tuple[Cell, ...]:
    """The values of a table, row by row as printed; cells without a value are left out."""
    return table(name).cells


def find(name: str, **wanted: Any) -> list[Cell]:
    """The cells of a table whose fields have these values."""
    return [cell for cell in cells(name) if all(getattr(cell, key) == value for key, value in wanted.items())]


@cache
def labels() -> Mapping[str, Label]:
    """The methods of all tables, by our name."""
    return {
        name: Label(
            name=name,
            printed=raw["printed"],
            method=raw.get("method", name),
            selector=raw.get("selector"),
            values_of=raw.get("values_of", name),
            settings=raw.get("settings", {}),
            fixed=raw.get("fixed", {}),
        )
        for name, raw in _load("methods")["methods"].items()
    }


def label(name: str) -> Label:
    if name not in labels():
        raise unknown("method of the paper", name, labels())
    return labels()[name]


def printed_scenario(scenario: str) -> str:
    """The paper's name of a scenario."""
    return str(_load("methods")["scenarios"].get(scenario, scenario))


def chosen(regime: str, protocol: str, scenario: str, method: str, buffer: int) -> Chosen:
    """The values that the paper's search chose; where it names none, those of the nearest case it has.

    >>> chosen("offline", "class-il", "seq-imagenet1k", "er", 1000)
    Chosen(overrides={'lr': 0.1}, ours=True, why='S-Cifar-100 at K = 500')
    """
    about = label(method)
    by_regime = _load("search")["chosen"]
    if regime not in by_regime:
        raise unknown("regime", regime, by_regime)
    if protocol not in ("class-il", "task-il"):
        raise unknown("protocol", protocol, ("class-il", "task-il"))
    taken_protocol = protocol if protocol in by_regime[regime] else "class-il"  # online there is one search
    by_scenario = by_regime[regime][taken_protocol].get(about.values_of)
    if by_scenario is None:
        raise BadInput(f"the paper has no {regime} values for {method}; give your own")
    taken = scenario if scenario in by_scenario else NEAREST
    buffers = [int(k) for k in by_scenario[taken]]
    nearest = min(buffers, key=lambda k: (abs(k - buffer), k))
    reasons = [label(about.values_of).printed] if about.values_of != method else []
    if (taken, nearest) != (scenario, buffer):
        reasons.append(f"{printed_scenario(taken)} at K = {nearest}")
    if taken_protocol != protocol:
        reasons.append("the one online search")
    overrides = label(about.values_of).rename(by_scenario[taken][str(nearest)]) | dict(about.fixed)
    return Chosen(overrides, bool(reasons), ", ".join(reasons))


def grid(regime: str, method: str) -> dict[str, tuple[float, ...]]:
    """What the paper searched, under our names.

    >>> grid("online", "gem")
    {'lr': (0.01, 0.03, 0.1), 'margin': (0.5, 1.0)}
    """
    by_regime = _load("search")["grids"]
    if regime not in by_regime:
        raise unknown("regime", regime, by_regime)
    if method not in by_regime[regime]:
        those = ", ".join(by_regime[regime])
        raise BadInput(f"the paper has no {regime} grid for {method} (it has: {those}); give your own: --grid FILE")
    return label(method).rename({symbol: tuple(values) for symbol, values in by_regime[regime][method].items()})


@cache
def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _number(printed: str) -> dict[str, Any]:
    """A cell as it is written in the files: mean, ± spread where there is one, ** around what is bold; ?: no value."""
    if printed == "?":
        return {"mean": None, "spread": None, "bold": False}
    found = re.fullmatch(r"(\*\*)?(\d+\.\d+)(?:±(\d+\.\d+))?(\*\*)?", printed)
    if found is None or (found[1] is None) != (found[4] is None):
        raise ValueError(f"not a cell: {printed}")
    return {"mean": float(found[2]), "spread": float(found[3]) if found[3] else None, "bold": found[1] is not None}
