"""Experiments from earlier versions, in today's form.

Version 0.1 kept the learning rate under ``training`` and iCaRL's weight decay under ``method``; both are the
optimizer's now. Its ``stream.setting`` is ``stream.online``, true or false. Its first files have no ``stream``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """
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
