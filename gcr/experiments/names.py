"""Names of classes and settings: the tables that turn one into the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gcr.memory import BalancedReservoir, GssGreedy, Reservoir
from gcr.select import SELECTORS, Selector
from gcr.settings import Settings, setting_names, unknown

POLICIES: tuple[type[Selector] | type[Reservoir] | type[BalancedReservoir] | type[GssGreedy], ...] = (
    Reservoir,
    BalancedReservoir,
    GssGreedy,
    *SELECTORS,
)


def class_of(kind: str, name: str, known: tuple[type[Any], ...]) -> type[Any]:
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise unknown(kind, name, [candidate.name for candidate in known])


def to_mapping(part: Any, *, named: bool = False) -> dict[str, Any]:
    """The settings of an instance as JSON has them; ``named``: with the name of its class."""
    values = {name: getattr(part, name) for name in setting_names(type(part))}
    return {"name": part.name} | values if named else values


def from_mapping(values: Mapping[str, Any], kind: str, known: tuple[type[Any], ...]) -> Any:
    rest = dict(values)
    chosen: type[Settings] = class_of(kind, rest.pop("name", ""), known)
    return chosen.from_mapping(rest)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    >>> flat({"seed": 1, "optimizer": {"lr": 0.1}})
    {'seed': 1, 'optimizer.lr': 0.1}
    """
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


def plain(key: str) -> str:
    """The name of a setting without its owner."""
    return key.rsplit(".", 1)[-1]


def short_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Each dotted name with the shortest one that means the same: plain where only one owner has it.

    >>> short_names({"method.batch": 1, "training.batch": 2, "optimizer.lr": 0.1})
    {'method.batch': 'method.batch', 'training.batch': 'training.batch', 'optimizer.lr': 'lr'}
    """
    owners = Counter(plain(key) for key in settings)
    short = {key: plain(key) if owners[plain(key)] == 1 and plain(key) != "name" else key for key in settings}
    return {key: "optimizer" if key == "optimizer.name" else name for key, name in short.items()}
