"""Names of settings: dotted, short, and those of earlier versions."""

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


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment from an earlier version, in today's form.

    Version 0.1 kept the learning rate under ``training`` and iCaRL's weight decay under ``method``; both are the
    optimizer's now. Its ``stream.setting`` is ``stream.online``, true or false. Its first files have no ``stream``.

    >>> old = {"method": {"name": "icarl", "weight_decay": 1e-4}, "training": {"epochs": 5, "lr": 0.1}}
    >>> migrated(old)["optimizer"]
    {'name': 'sgd', 'lr': 0.1, 'weight_decay': 0.0001}
    >>> migrated({"stream": {"setting": "online", "stream": 300}})["stream"]
    {'online': True, 'stream': 300}
    """
    new = {"stream": {}} | dict(values)
    if isinstance(new["stream"], Mapping) and new["stream"].get("setting") in ("offline", "online"):
        stream = dict(new["stream"])
        new["stream"] = {"online": stream.pop("setting") == "online"} | stream
    method, training = new.get("method"), new.get("training")
    if "optimizer" in new or not isinstance(method, Mapping) or not isinstance(training, Mapping):
        return new
    new["method"], new["training"] = method, training = dict(method), dict(training)
    new["optimizer"] = {"name": "sgd"} | ({"lr": training.pop("lr")} if "lr" in training else {})
    if method.get("name") == "icarl":
        new["optimizer"]["weight_decay"] = method.pop("weight_decay", 1e-5)
    return new
