"""Ordered tasks over resident images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gcr.augment import Views
from gcr.scenarios.datasets.digits import load_digits
from gcr.scenarios.scenario import Images, Scenario
from gcr.settings import unknown


def seq_digits() -> Scenario:
    """Shifts of one pixel, no mirroring (a mirrored digit is another sign), and mild strong views for 8 x 8 pixels."""
    train, test = load_digits()
    return Scenario(
        name="seq-digits",
        train=train,
        test=test,
        tasks=equal_tasks(n_classes=10, n_tasks=5),
        views=Views(mean=(0.3053,), std=(0.3760,), pad=1, flip=False, crop=(0.5, 1.0)),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def equal_tasks(n_classes: int, n_tasks: int) -> tuple[tuple[int, ...], ...]:
    """Classes in label order, the same number in every task.

    >>> equal_tasks(6, 3)
    ((0, 1), (2, 3), (4, 5))
    """
    size = n_classes // n_tasks
    return tuple(tuple(range(task * size, (task + 1) * size)) for task in range(n_tasks))


@dataclass(frozen=True)
class Entry:
    """A scenario by name: what can be said without loading it, and values that work when the user gives none."""

    name: str
    summary: str
    load: Callable[[], Scenario]
    n_classes: int
    model: str
    epochs: int
    buffer: int
    lr: float
    needs: tuple[str, ...] = ()  # libraries beyond torch and NumPy


SCENARIOS: tuple[Entry, ...] = (
    Entry(
        name="seq-digits",
        summary="scikit-learn's 8x8 digits, 5 tasks of 2 classes; nothing to download",
        load=seq_digits,
        n_classes=10,
        model="convnet",
        epochs=10,
        buffer=100,
        lr=0.1,
        needs=("sklearn",),
    ),
)


def entry(name: str) -> Entry:
    for known in SCENARIOS:
        if known.name == name:
            return known
    raise unknown("scenario", name, [known.name for known in SCENARIOS])


def load(name: str) -> Scenario:
    return entry(name).load()


__all__ = ["SCENARIOS", "Entry", "Images", "Scenario", "entry", "equal_tasks", "load"]
