"""``gcr update``: teach a classifier new classes, or make one; refuse what would cost the old classes too much.

Nothing is written before the end, and then at once: whatever happens, the state is the old one or the new one.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gcr.classifier import saved
from gcr.classifier.examples import Form, Progress, first_form, read_examples
from gcr.classifier.held_out import (
    ClassAccuracy,
    Split,
    Verdict,
    balanced_rows,
    compare,
    counts,
    joined,
    judge,
    mean,
    split,
)
from gcr.classifier.saved import Classifier
from gcr.classifier.sources import find_labelled
from gcr.learner.learner import Learner
from gcr.learner.state_folder import StateFolder
from gcr.report.cells import bytes_text
from gcr.settings import BadInput, Settings, setting

MEMORY, LEAST_MEMORY = 500, 20  # examples
BATCH = 32
STEPS, EPOCHS = 300, (10, 100)  # of an update: about so many steps, in no fewer and no more epochs
BYTES_OF_WEIGHT = 12  # with the optimizer's two averages
MOST = 2**63
FEW = 5  # examples of a class to replay: fewer hardly keep it
NAMED = 5  # classes in a message


@dataclass(frozen=True)
class UpdateSettings(Settings):
    memory: int = setting(0, "examples kept in all, to replay and held out; 0: as before, 500 at first", low=0)
    epochs: int = setting(0, "passes over the new examples; 0: by their number", low=0)
    limit: float = setting(5.0, "points of accuracy that old classes may lose", low=0.0, high=100.0)
    holdout: float = setting(0.2, "share of the new examples and of memory that is held out", low=0.05, high=0.5)
    seed: int = setting(0, "of the network's first weights, the split and the order of examples", low=0)

    def of(self, classifier: Classifier | None) -> Self:
        """With the memory that the classifier has, where none is asked for."""
        memory = self.memory or (classifier.memory if classifier else MEMORY)
        if memory < LEAST_MEMORY:
            raise BadInput(f"memory must be >= {LEAST_MEMORY} examples, got {memory}")
        return replace(self, memory=memory)

    def with_epochs(self, n_examples: int) -> Self:
        """Few examples need more passes for as many steps."""
        by_number = -(-STEPS * BATCH // n_examples)
        return self if self.epochs else replace(self, epochs=min(max(by_number, EPOCHS[0]), EPOCHS[1]))

    @property
    def n_held_out(self) -> int:
        return round(self.holdout * self.memory)

    @property
    def n_replayed(self) -> int:
        return self.memory - self.n_held_out


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
class Outcome:
    version: int  # the current one; 0: there is none
    classes: list[ClassAccuracy]
    verdict: Verdict
    remedies: tuple[str, ...] = ()  # for a refused update


@dataclass(frozen=True)
class _Batch:
    """New examples, read and split."""

    examples: Tensor
    labels: list[str]
    parts: Split

    def train(self) -> tuple[Tensor, list[str]]:
        """By class: the classifier learns their names in this order."""
        return self._of(sorted(self.parts.train, key=lambda row: (_as_people_sort(self.labels[row]), row)))

    def held_out(self) -> tuple[Tensor, list[str]]:
        return self._of(self.parts.held_out)

    def _of(self, rows: Sequence[int]) -> tuple[Tensor, list[str]]:
        return self.examples[rows], [self.labels[row] for row in rows]


def update(
    folder: StateFolder,
    new: New,
    settings: UpdateSettings,
    device: str = "cpu",
    say: Callable[[str], None] = print,
    progress: Progress = lambda what, done, total: None,
) -> Outcome:
    """Call it with ``folder.lock()`` held."""
    began = time.monotonic()
    folder.check_writable()
    classifier = saved.load(folder, device) if folder.versions() else None
    settings = settings.of(classifier)
    old = classifier.classes if classifier else []
    known = classifier.form.known_columns if classifier else None
    source = find_labelled(new.path, new.label, new.path_column, known)
    form = classifier.form if classifier else first_form(source, new.size, progress)
    net_name = _check_given(new, form, classifier)
    read = read_examples(source, form, new.skip_bad, progress)
    labels = [source.labels[row] for row in read.rows]
    added = _check_classes(labels, source.labels, old)
    remembered = classifier.held_out if classifier else None
    batch = _Batch(read.examples, labels, split(read.examples, labels, settings.holdout, settings.seed, remembered))
    _check_trained(batch, added)
    settings = settings.with_epochs(len(batch.parts.train))
    for note in (*read.notes, *_remarks(batch, old, added, settings)):
        say(note)
    if classifier is None:
        classifier = _new_classifier(folder, form, net_name, len(added), settings, device, new.mirror)
    else:
        classifier.memory = settings.memory
        classifier.resize(settings.n_replayed)
    nbytes = _memory_bytes(classifier, batch, added, settings)
    _check_space(classifier, nbytes)
    say(
        f"training {net_name} on {len(batch.parts.train)} examples ({form.in_words}) for {settings.epochs} epochs; "
        f"memory: at most {settings.n_replayed} to replay and {settings.n_held_out} held out, {bytes_text(nbytes)}"
    )
    held_out, truth = _all_held_out(classifier, batch)
    with saved.fitting_threads(net_name):
        before = _predicted(classifier.learner, held_out) if old else None
        classifier.learner.fit(*batch.train(), epochs=settings.epochs, batch=BATCH)
        accuracies = compare(truth, before, _predicted(classifier.learner, held_out), old, added)
    verdict = judge(accuracies, settings.limit)
    if verdict.refused:
        return Outcome(folder.versions()[0], accuracies, verdict, _remedies(accuracies, settings))
    rows = balanced_rows(truth, settings.n_held_out, settings.seed)
    classifier.held_out, classifier.held_out_labels = held_out[rows], [truth[row] for row in rows]
    seconds = time.monotonic() - began
    classifier.history.append(_entry(new, batch, added, accuracies, verdict, settings, seconds))
    return Outcome(classifier.write(), accuracies, verdict)


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
    return classifier.net_name


def _check_classes(labels: Sequence[str], listed: Sequence[str], old: Sequence[str]) -> list[str]:
    """The new classes, in the order of their names."""
    if unread := set(listed) - set(labels):
        raise BadInput(f'class "{min(unread)}" has no picture that can be read; replace them or remove the class')
    there = sorted(set(labels), key=_as_people_sort)
    if not old and len(there) < 2:
        raise BadInput(f'a classifier must begin with at least 2 classes, got "{there[0]}" alone; add another')
    return [name for name in there if name not in old]


def _check_trained(batch: _Batch, added: Sequence[str]) -> None:
    trained = {batch.labels[row] for row in batch.parts.train}
    if bare := [name for name in added if name not in trained]:
        raise BadInput(f'all examples of "{bare[0]}" are copies of held-out ones; give others')
    if not trained:
        raise BadInput("all new examples are copies of held-out ones, so there is nothing to learn; give others")


def _as_people_sort(name: str) -> list[tuple[int, str]]:
    """
    >>> sorted(["10", "2", "b"], key=_as_people_sort)
    ['2', '10', 'b']
    """
    return [(int(part), "") if part.isdecimal() else (MOST, part) for part in re.split(r"(\d+)", name) if part]


def _remarks(batch: _Batch, old: Sequence[str], added: Sequence[str], settings: UpdateSettings) -> list[str]:
    remarks = []
    if batch.parts.copies:
        remarks.append(f"left out {batch.parts.copies} examples that are copies of held-out ones")
    alike = {name.casefold(): name for name in old}
    remarks += [
        f'class "{name}" is new; there is a class "{alike[name.casefold()]}" that differs in capitals only'
        for name in added
        if name.casefold() in alike
    ]
    measured = counts(batch.held_out()[1])
    if bare := [name for name in added if name not in measured]:
        remarks.append(f"too few examples to hold out, so accuracy is unknown: {', '.join(bare[:NAMED])}")
    each = settings.n_replayed // max(1, len(old) + len(added))
    if each < FEW:
        remarks.append(f"memory keeps {each} examples of each class to replay; give a larger --memory to forget less")
    return remarks


def _new_classifier(
    folder: StateFolder, form: Form, net_name: str, n_classes: int, settings: UpdateSettings, device: str, mirror: bool
) -> Classifier:
    net = saved.new_net(net_name, form, n_classes, settings.seed)
    augment = "auto" if mirror else "shift"
    learner = Learner(net, settings.n_replayed, device=device, seed=settings.seed, augment=augment)
    empty = torch.empty(0, *form.shape, dtype=torch.uint8 if form.kind == "pictures" else torch.float32)
    return Classifier(folder, form, net_name, learner, settings.memory, empty, [], [])


def _memory_bytes(classifier: Classifier, batch: _Batch, added: Sequence[str], settings: UpdateSettings) -> int:
    """What memory will take, known before training."""
    nbytes = classifier.learner.memory_bytes(batch.examples[:2]) + settings.n_held_out * batch.examples[0].nbytes
    grown = 4 * len(added) * settings.n_replayed if classifier.history else 0  # logits of the new classes
    return nbytes + grown


def _check_space(classifier: Classifier, memory_bytes: int) -> None:
    """Better before training than after it."""
    weights = sum(parameter.numel() for parameter in classifier.learner.net.parameters())
    needed = BYTES_OF_WEIGHT * weights + memory_bytes
    free = shutil.disk_usage(classifier.folder.path).free
    if free < needed:
        raise BadInput(
            f"{classifier.folder.path} needs {bytes_text(needed)} for the new version, and its disk has "
            f"{bytes_text(free)} left; make room, or choose another folder"
        )


def _all_held_out(classifier: Classifier, batch: _Batch) -> tuple[Tensor, list[str]]:
    examples, labels = batch.held_out()
    return joined(classifier.held_out, examples), [*classifier.held_out_labels, *labels]


def _predicted(learner: Learner, examples: Tensor) -> list[str]:
    return [str(label) for label in learner.predict(examples)] if len(examples) else []


def _remedies(classes: Sequence[ClassAccuracy], settings: UpdateSettings) -> tuple[str, ...]:
    worst = sorted((one for one in classes if one.points_lost > 0), key=lambda one: -one.points_lost)
    named = " and ".join(f'"{one.name}"' for one in worst[:2])
    accepted = next(limit for limit in range(101) if not judge(classes, limit).refused)
    return (
        f"add examples of {named} to the new ones",
        f"train longer: --epochs {2 * settings.epochs}",
        f"accept the loss: --limit {accepted}",
        f"begin again with a larger memory, which keeps more of each class: --memory {2 * settings.memory}",
    )


def _entry(
    new: New,
    batch: _Batch,
    added: Sequence[str],
    classes: Sequence[ClassAccuracy],
    verdict: Verdict,
    settings: UpdateSettings,
    seconds: float,
) -> dict[str, Any]:
    """One line of the history."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "source": new.path.resolve().name,
        "new_classes": list(added),
        "examples": dict(counts(batch.labels)),
        "held_out": {one.name: one.n for one in classes},
        "accuracy_before": {one.name: one.before for one in classes if one.before is not None},
        "accuracy": {one.name: one.after for one in classes if one.after is not None},
        "old_before": verdict.before,
        "old_after": verdict.after,
        "mean": mean(one.after for one in classes),
        "epochs": settings.epochs,
        "memory": settings.memory,
        "limit": settings.limit,
        "seconds": round(seconds, 2),
    }
