"""Ordered tasks over images."""

from gcr.scenarios.arrays import from_arrays
from gcr.scenarios.registry import SCENARIOS, Entry, entries, entry, load, recorded
from gcr.scenarios.scenario import Images, Scenario, equal_tasks
from gcr.scenarios.stream import Stream

__all__ = [
    "SCENARIOS",
    "Entry",
    "Images",
    "Scenario",
    "Stream",
    "entries",
    "entry",
    "equal_tasks",
    "from_arrays",
    "load",
    "recorded",
]
