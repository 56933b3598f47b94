"""The open points of the GCR paper, all at once: as its text has them, or as its released code has them.

``reading=text`` and ``reading=code`` are short for the settings below (docs/fidelity.md); a setting that is given
beside them stands. An experiment holds the single settings only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    },
    "code": {
        "normalise": "weights",
        "contrast": "logits",
        "sampling": "split",
        "admit": "correct",
        "pool_view": "weak",
        "pool_mode": "training",
        "shares": "task",
        "negative": "dropped",
    },
}
HELP = "all open points of the GCR paper at once, as its text or its released code has them: text or code"


def about(method: str, selector: str | None) -> bool:
    """Whether the open points are about a method: GCR, or another with its selection."""
    return method == "gcr" or selector == "grad-approx"


def settings_of_reading(reading: str, known: Iterable[str], online: bool) -> dict[str, str]:
    """What a reading stands for, of the settings ``known``. In one pass the code takes every example, too."""
    if reading not in READINGS:
        raise BadInput(f'reading must be one of {", ".join(READINGS)}, got "{reading}"')
    points = READINGS[reading] | ({"admit": "all"} if online else {})
    return {name: value for name, value in points.items() if name in known}


def reading_of(settings: Mapping[str, Any], online: bool) -> str:
    """The reading that an experiment's settings, by plain name, are at in every point; none if there is no such."""
    for reading in READINGS:
        points = settings_of_reading(reading, settings, online)
        if points and all(settings[name] == value for name, value in points.items()):
            return reading
    return ""
