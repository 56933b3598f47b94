"""Ordered tasks over images."""

from gcr.scenarios.arrays import from_arrays
from gcr.scenarios.registry import SCENARIOS, Entry, entries, entry, load
from gcr.scenarios.scenario import Images, Scenario, memory_bytes
from gcr.scenarios.stream import Stream
from gcr.scenarios.tasks import equal_tasks

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
    "memory_bytes",
]
