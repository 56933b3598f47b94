"""The new examples of an update: read, checked, and split into those to train on and those to hold out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gcr.classifier.examples import Form, Progress, first_form, read_examples
from gcr.classifier.held_out import Split, split
from gcr.classifier.saved import Classifier
from gcr.classifier.sources import find_labelled
from gcr.settings import BadInput

BEHIND_NUMBERS = 2**63  # where words are sorted


@dataclass(frozen=True)
class New:
    """Where the new examples are, and how to read them."""

    path: Path
    label: str | None = None
    path_column: str | None = None
    net: str | None = None
    size: int | None = None
    skip_bad: bool = False
    mirror: bool = True


@dataclass(frozen=True)
class Batch:
    form: Form
    net_name: str
    examples: Tensor
    labels: list[str]
    added: list[str]  # classes that the classifier does not know yet
    parts: Split
    notes: tuple[str, ...]

    def train(self) -> tuple[Tensor, list[str]]:
        """By class: the classifier learns their names in this order."""
        return self._of(sorted(self.parts.train, key=lambda row: (_as_people_sort(self.labels[row]), row)))

    def held_out(self) -> tuple[Tensor, list[str]]:
        return self._of(self.parts.held_out)

    def _of(self, rows: Sequence[int]) -> tuple[Tensor, list[str]]:
        return self.examples[rows], [self.labels[row] for row in rows]


def read_batch(new: New, classifier: Classifier | None, holdout: float, seed: int, progress: Progress) -> Batch:
    """For the classifier that is there, or for the first one."""
    known = classifier.form.known_columns if classifier else None
    source = find_labelled(new.path, new.label, new.path_column, known)
    form = classifier.form if classifier else first_form(source, new.size, progress)
    net_name = _check_given(new, form, classifier)
    read = read_examples(source, form, new.skip_bad, progress)
    labels = [source.labels[row] for row in read.rows]
    added = _check_classes(labels, source.labels, classifier.classes if classifier else [])
    remembered = (classifier.held_out, classifier.learner.memory.examples) if classifier else (None, None)
    parts = split(read.examples, labels, holdout, seed, *remembered)
    _check_trained(labels, parts, added)
    return Batch(form, net_name, read.examples, labels, added, parts, read.notes)


def _check_given(new: New, form: Form, classifier: Classifier | None) -> str:
    """The network's name. What the first update fixed cannot change."""
    if classifier is None:
        name = new.net or form.default_net()
        form.check_net(name)
        return name
    if new.net not in (None, classifier.net_name):
        raise BadInput(
            f"net is {classifier.net_name} in this classifier, got {new.net}; leave --net out, or begin anew"
        )
    if new.size is not None and (form.kind != "pictures" or new.size != form.shape[-1]):
        raise BadInput(f"this classifier takes {form.in_words}, got --size {new.size}; leave --size out, or begin anew")
    if not new.mirror and form.kind == "pictures" and form.shape[0] == 3 and classifier.learner.augment == "auto":
        raise BadInput(
            "this classifier mirrors pictures, as the first update has fixed; leave --no-mirror out, or begin anew"
        )
    return classifier.net_name


def _check_classes(labels: Sequence[str], listed: Sequence[str], old: Sequence[str]) -> list[str]:
    """The new classes, in the order of their names."""
    if unread := set(listed) - set(labels):
        raise BadInput(f'class "{min(unread)}" has no picture that can be read; replace them or remove the class')
    there = sorted(set(labels), key=_as_people_sort)
    if not old and len(there) < 2:
        raise BadInput(f'a classifier must begin with at least 2 classes, got "{there[0]}" alone; add another')
    return [name for name in there if name not in old]


def _check_trained(labels: Sequence[str], parts: Split, added: Sequence[str]) -> None:
    trained = {labels[row] for row in parts.train}
    if bare := [name for name in added if name not in trained]:
        raise BadInput(f'all examples of "{bare[0]}" are copies of held-out ones; give others')
    if not trained:
        raise BadInput("all new examples are copies of held-out ones, so there is nothing to learn; give others")


def _as_people_sort(name: str) -> list[tuple[int, str]]:
    """
    >>> sorted(["10", "2", "b"], key=_as_people_sort)
    ['2', '10', 'b']
    """
    return [
        (int(part), "") if part.isdecimal() else (BEHIND_NUMBERS, part) for part in re.split(r"(\d+)", name) if part
    ]
