"""``gcr update``: teach a classifier new classes, or make one; refuse what would cost the old classes too much.

Nothing is written before the end, and then at once: whatever happens, the state is the old one or the new one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from gcr.classifier import saved
from gcr.classifier.batch import Batch, New, read_batch
from gcr.classifier.examples import Progress
from gcr.classifier.held_out import (
    ClassAccuracy,
    Verdict,
    balanced_rows,
    compare,
    counts,
    joined,
    judge,
    mean,
)
from gcr.classifier.saved import Classifier
from gcr.learner.learner import Learner
from gcr.learner.state_folder import StateFolder
from gcr.memory.examples import digests
from gcr.report.cells import bytes_text
from gcr.settings import BadInput, Settings, setting

__all__ = ["New", "Outcome", "UpdateSettings", "update"]

MEMORY, LEAST_MEMORY = 500, 20  # examples
BATCH = 32
STEPS, EPOCHS = 300, (10, 100)  # of an update: about so many steps, in no fewer and no more epochs
BYTES_OF_WEIGHT = 12  # with the optimizer's two averages
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
class Outcome:
    version: int  # the current one; 0: there is none
    classes: list[ClassAccuracy]
    verdict: Verdict
    remedies: tuple[str, ...] = ()  # for a refused update


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
    batch = read_batch(new, classifier, settings.holdout, settings.seed, progress)
    if len(batch.parts.train) == 1 and batch.net_name != "mlp":
        raise BadInput(f"{new.path} leaves one example to train on, which has no batch statistics; give three or more")
    settings = settings.with_epochs(len(batch.parts.train))
    for note in (*batch.notes, *_remarks(batch, classifier, settings)):
        say(note)
    if classifier is None:
        classifier = _new_classifier(folder, batch, settings, device, new.mirror)
    else:
        classifier.memory = settings.memory
        classifier.learner.resize(settings.n_replayed)
    nbytes = _memory_bytes(classifier, batch, settings)
    _check_space(classifier, nbytes)
    say(
        f"training {batch.net_name} on {len(batch.parts.train)} examples ({batch.form.in_words}) for {settings.epochs} "
        f"epochs; memory: at most {settings.n_replayed} to replay and {settings.n_held_out} held out, "
        f"{bytes_text(nbytes)}"
    )
    accuracies = _teach(classifier, batch, old, settings)
    verdict = judge(accuracies, settings.limit)
    if verdict.refused:
        return Outcome(folder.versions()[0], accuracies, verdict, _remedies(accuracies, settings))
    _keep_held_out(classifier, batch, settings)
    classifier.history.append(_entry(new, batch, accuracies, verdict, settings, time.monotonic() - began))
    return Outcome(classifier.write(), accuracies, verdict)


def _teach(classifier: Classifier, batch: Batch, old: Sequence[str], settings: UpdateSettings) -> list[ClassAccuracy]:
    """Accuracy on what is held out, from before and after it."""
    held_out, truth = _all_held_out(classifier, batch)
    examples, labels = batch.train()
    with saved.fitting_threads(batch.net_name):
        before = _predicted(classifier.learner, held_out) if old else None
        if old:
            pictures = classifier.form.kind == "pictures"  # rows of features may be equal and of several classes
            classifier.learner.drop_copies(examples, None if pictures else labels)
        classifier.learner.fit(examples, labels, epochs=settings.epochs, batch=BATCH)
        return compare(truth, before, _predicted(classifier.learner, held_out), old, batch.added)


def _keep_held_out(classifier: Classifier, batch: Batch, settings: UpdateSettings) -> None:
    held_out, truth = _all_held_out(classifier, batch)
    rows = balanced_rows(truth, settings.n_held_out, digests(held_out))
    classifier.held_out, classifier.held_out_labels = held_out[rows], [truth[row] for row in rows]


def _remarks(batch: Batch, classifier: Classifier | None, settings: UpdateSettings) -> list[str]:
    remarks, old = [], classifier.classes if classifier else []
    if batch.parts.copies:
        remarks.append(f"left out {batch.parts.copies} examples that are copies of held-out ones")
    alike = {name.casefold(): name for name in old}
    remarks += [
        f'class "{name}" is new; there is a class "{alike[name.casefold()]}" that differs in capitals only'
        for name in batch.added
        if name.casefold() in alike
    ]
    measured = counts(batch.held_out()[1])
    if bare := [name for name in batch.added if name not in measured]:
        remarks.append(f"too few examples to hold out, so accuracy is unknown: {', '.join(bare[:NAMED])}")
    known = {*classifier.memory_labels(), *classifier.held_out_labels, *batch.labels} if classifier else set()
    if unknown := [name for name in old if name not in known]:
        remarks.append(f"nothing is left of {', '.join(unknown[:NAMED])} to replay or to measure: add some, or lose it")
    each = settings.n_replayed // max(1, len(old) + len(batch.added))
    if each < FEW:
        one = f"{each} example{'s' * (each != 1)}"
        remarks.append(f"memory keeps {one} of each class to replay; give a larger --memory to forget less")
    return remarks


def _new_classifier(
    folder: StateFolder, batch: Batch, settings: UpdateSettings, device: str, mirror: bool
) -> Classifier:
    net = saved.new_net(batch.net_name, batch.form, len(batch.added), settings.seed)
    augment = "auto" if mirror else "shift"
    learner = Learner(net, settings.n_replayed, device=device, seed=settings.seed, augment=augment)
    return Classifier(folder, batch.form, batch.net_name, learner, settings.memory, batch.examples[:0], [], [])


def _memory_bytes(classifier: Classifier, batch: Batch, settings: UpdateSettings) -> int:
    """What memory will take, known before training."""
    nbytes = classifier.learner.memory_bytes(batch.examples[:2]) + settings.n_held_out * batch.examples[0].nbytes
    grown = 4 * len(batch.added) * settings.n_replayed if classifier.history else 0  # logits of the new classes
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


def _all_held_out(classifier: Classifier, batch: Batch) -> tuple[Tensor, list[str]]:
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
    batch: Batch,
    classes: Sequence[ClassAccuracy],
    verdict: Verdict,
    settings: UpdateSettings,
    seconds: float,
) -> dict[str, Any]:
    """One line of the history."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "source": new.path.resolve().name,
        "new_classes": list(batch.added),
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
