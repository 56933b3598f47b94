"""The variants of GCR, each a complete set of loss, memory and selection; and defaults of single methods.

``GCR.paper`` follows the paper's text, ``GCR.released`` its released code; docs/reproduce.md compares them. ``GCR`` is
what ``gcr run --method gcr`` trains: offline the released code, online the text with normalisation by weights.

>>> gcr = GCR(memory=500, alpha=0.2)
>>> gcr.method.alpha, gcr.memory.buffer, gcr.memory.selector.name
(0.2, 500, 'grad-approx')
>>> gcr == GCR.released(500, alpha=0.2)
True
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from itertools import takewhile
from typing import Any, Self, TypeVar

from gcr.memory import Policy
from gcr.methods import Gcr, Method
from gcr.select import GradApprox
from gcr.settings import setting_names, unknown

T = TypeVar("T")

# The tables that follow hold for a method and all that inherit from it, but for those that have an entry of their own,
# and for settings that they declare again (``own_defaults``).
# Settings of the method that have other defaults online: the paper's medians; for GCR also the contrast that does
# better there (docs/evidence.md).
ONLINE: Mapping[str, Mapping[str, float | str]] = {
    "der++": {"alpha": 0.5, "beta": 2.0},
    "gcr": {"alpha": 1.0, "beta": 3.0, "gamma": 1.0, "contrast": "features"},
}
# Settings of the optimizer that differ for a method.
OPTIMIZER: Mapping[str, Mapping[str, float | str]] = {
    "icarl": {"weight_decay": 1e-5},
    "gcr+": {"weight_decay": 5e-4},
}
# Methods that take the learning rate of whole tasks in streams, too.
ONE_LR: Mapping[str, bool] = {"gcr+": True}
# A setting of the method that is the optimizer's learning rate if not given.
FOLLOWS_LR: Mapping[str, str] = {"mir": "virtual_lr"}

PAPER = {
    "method.normalise": "size",
    "method.contrast": "features",
    "memory.sampling": "coin",
    "memory.admit": "all",
    "memory.pool_view": "plain",
    "memory.pool_mode": "evaluation",
    "selector.shares": "class",
    "selector.negative": "excluded",
    "selector.atoms": "plain",
}
RELEASED = {
    "method.normalise": "weights",
    "method.contrast": "logits",
    "memory.sampling": "split",
    "memory.admit": "correct",
    "memory.pool_view": "weak",
    "memory.pool_mode": "class",
    "selector.shares": "task",
    "selector.negative": "dropped",
    "selector.atoms": "weighted",
}
VARIANTS: dict[str, dict[str, str]] = {"paper": PAPER, "released": RELEASED}
SELECTION = ("memory.pool_view", "memory.pool_mode", "selector.")  # what belongs to GradApprox alone


@dataclass(frozen=True, init=False)
class GCR:
    """GCR's loss and memory, ready for ``gcr.train``.

    ``memory`` is the buffer size. ``online`` is for one pass over streams. ``epochs`` matters to the released code
    only: with one epoch it takes every example as a candidate. Other settings of ``Gcr``, ``Policy`` and ``GradApprox``
    go by name.
    """

    method: Gcr
    memory: Policy

    def __init__(
        self, memory: int = 500, *, online: bool = False, epochs: int = 0, variant: str | None = None, **changes: Any
    ) -> None:
        owners = {"method": Gcr, "memory": Policy, "selector": GradApprox}
        values: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
        values["method"] |= ONLINE["gcr"] if online else {}
        for key, value in settings_of_variant(variant or default_variant(Gcr, online), online or epochs == 1).items():
            owner, name = key.split(".")
            values[owner][name] = value
        names = {name: owner for owner, part in owners.items() for name in setting_names(part)}
        for name, value in changes.items():
            if name not in names:
                raise unknown("setting of GCR", name, names)
            values[names[name]][name] = value
        policy = Policy(**{"buffer": memory} | values["memory"], selector=GradApprox(**values["selector"]))
        object.__setattr__(self, "method", Gcr(**values["method"]))
        object.__setattr__(self, "memory", policy)

    @classmethod
    def paper(cls, memory: int = 500, *, online: bool = False, **changes: Any) -> Self:
        """As the paper's text describes it."""
        return cls(memory, online=online, variant="paper", **changes)

    @classmethod
    def released(cls, memory: int = 500, *, online: bool = False, epochs: int = 0, **changes: Any) -> Self:
        """As the paper's released code computes it."""
        return cls(memory, online=online, epochs=epochs, variant="released", **changes)


def of_method(table: Mapping[str, T], method: type[Method], default: T) -> T:
    """What a table above says of a method, or of the nearest that it inherits from.

    >>> of_method({"gcr": 1}, Gcr, 0), of_method({"gcr": 1}, type("Mine", (Gcr,), {"name": "mine"}), 0)
    (1, 1)
    """
    names = [kind.name for kind in method.__mro__ if issubclass(kind, Method)]
    return next((table[name] for name in names if name in table), default)


def own_defaults(method: type[Method], known: Container[str]) -> set[str]:
    """Settings, under dotted names, that a method declares again, or a class between it and the ``known`` one that it
    inherits from: these defaults go before those of the tables."""
    own = takewhile(lambda kind: kind.__dict__.get("name") not in known, method.__mro__)
    return {f"method.{name}" for kind in own for name in get_annotations(kind)}


def check_variant(variant: str) -> None:
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)


def default_variant(method: type[Method], online: bool) -> str | None:
    """The variant that reaches the paper's figures; None for the plain defaults of loss, memory and selection."""
    return "released" if issubclass(method, Gcr) and not online else None


def has_variants(method: type[Method], selector: str | None) -> bool:
    """GCR, what inherits from it, and any method with its selection."""
    return issubclass(method, Gcr) or selector == "grad-approx"


def settings_of_variant(
    variant: str | None, one_pass: bool, method: type[Method] = Gcr, selector: str = "grad-approx"
) -> dict[str, str]:
    """The settings of a variant under dotted names, for GCR or one half of it: its loss, or its selection."""
    if variant is None:
        return {}
    check_variant(variant)
    settings = dict(VARIANTS[variant])
    if one_pass:  # the released code filters candidates only with several epochs
        settings["memory.admit"] = "all"
    if not issubclass(method, Gcr):
        settings = {key: value for key, value in settings.items() if not key.startswith("method.")}
    if selector != "grad-approx":
        settings = {key: value for key, value in settings.items() if not key.startswith(SELECTION)}
    return settings


def nearest(settings: Mapping[str, Any], method: type[Method]) -> tuple[str, dict[str, Any]]:
    """The variant that an experiment is nearest to, and its settings that differ. ``settings`` have dotted names."""
    one_pass = settings["stream.online"] or settings["training.epochs"] == 1

    def differing(variant: str) -> dict[str, Any]:
        usual = settings_of_variant(variant, one_pass, method, settings["selector.name"])
        return {key: settings[key] for key, value in usual.items() if settings[key] != value}

    return min(((variant, differing(variant)) for variant in VARIANTS), key=lambda found: len(found[1]))


def in_words(settings: Mapping[str, Any], method: type[Method]) -> str:
    """The same in words: "paper, normalise=weights"."""
    variant, others = nearest(settings, method)
    return ", ".join([variant, *(f"{key.split('.')[-1]}={value}" for key, value in others.items())])
