"""The open points of the GCR paper, all at once: as its text has them, or as its released code has them.

``reading=text`` and ``reading=code`` are short for the settings below (docs/fidelity.md); a setting that is given
beside them stands. GCR's own default is the code's reading offline, and a choice of ours online. An experiment holds
the single settings only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gcr.settings import BadInput

READINGS: dict[str, dict[str, str]] = {
    "text": {
        "normalise": "size",
        "contrast": "features",
        "sampling": "coin",
        "admit": "all",
        "pool_view": "plain",
        "pool_mode": "evaluation",
        "shares": "class",
        "negative": "excluded",
        "atoms": "plain",
    },
    "code": {
        "normalise": "weights",
        "contrast": "logits",
        "sampling": "split",
        "admit": "correct",
        "pool_view": "weak",
        "pool_mode": "class",
        "shares": "task",
        "negative": "dropped",
        "atoms": "weighted",
    },
}
POINTS = READINGS["text"].keys()
GIVES_WAY: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # where a setting is as said, these points are the text's
    ("setting", "online", ("admit",)),  # in one pass the code, too, takes every example
    ("epochs", "1", ("admit",)),
    # candidates are chosen among all of a task's plain images, with weights, which weighted atoms would lose
    ("pool", "selector", ("admit", "pool_view", "atoms")),
    # selection wherever tasks end is not told them, and so often that weights would never add up
    ("every", "not 0", ("shares", "atoms")),
    ("tolerance", "not 0", ("negative", "atoms")),  # from here on: of a matching that the code does not have
    ("replace", "not 0", ("negative", "atoms")),
    ("trim", "not 0", ("negative", "atoms")),
    ("rows", "random", ("negative", "atoms")),
)
HELP = "all open points of the GCR paper at once, as its text or its released code has them: text or code"


def concern(method: str, selector: str | None) -> bool:
    """Whether the open points are about a method: GCR, or another with its selection."""
    return method == "gcr" or selector == "grad-approx"


def check(reading: str) -> None:
    if reading not in READINGS:
        raise BadInput(f'reading must be one of {", ".join(READINGS)}, got "{reading}"')


def settings_of_reading(reading: str, known: Collection[str], given: Mapping[str, Any]) -> dict[str, str]:
    """What a reading stands for, of the settings ``known``, where ``given`` are the others of an experiment."""
    check(reading)
    points = dict(READINGS[reading])
    as_text = [name for other, how, names in GIVES_WAY if other in given and _is(given[other], how) for name in names]
    if "atoms" not in known:  # a setting of GradApprox alone: the code has no other selector
        as_text += ["pool_view", "pool_mode"]
    points |= {name: READINGS["text"][name] for name in as_text}
    return {name: value for name, value in points.items() if name in known}


def _is(value: Any, how: str) -> bool:
    """Numbers may be given as text, as the command line does."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return bool(value == how)
    return number != 0 if how == "not 0" else str(number) == f"{how}.0"


def departures(reading: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The open points where an experiment is not as a reading has them. ``settings`` are all it has, by plain name."""
    points = settings_of_reading(reading, settings, settings)
    return {name: str(settings[name]) for name, value in points.items() if settings[name] != value}


def as_reading(settings: Mapping[str, Any]) -> dict[str, str]:
    """The reading that an experiment is nearest to, and the points where it is not at it."""
    return min(({"reading": reading} | departures(reading, settings) for reading in READINGS), key=len)


def nearest(settings: Mapping[str, Any]) -> str:
    """The same in words: "text, normalise=weights"."""
    told = as_reading(settings)
    return ", ".join([told.pop("reading"), *(f"{name}={value}" for name, value in told.items())])


def in_words(settings: Mapping[str, Any], unusual: dict[str, Any]) -> dict[str, Any]:
    """What to say of an experiment's open points, of which some are ``unusual``: these, or a reading with the points
    where it is not at it, if that is shorter."""
    return min(unusual, as_reading(settings), key=len)
