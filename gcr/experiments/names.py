"""Names of classes and settings: the tables that turn one into the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


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
