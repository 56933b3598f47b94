"""``gcr forget``: erase what a classifier remembers of some pictures or rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gcr.classifier import saved
from gcr.classifier.examples import Progress, read_examples
from gcr.classifier.held_out import digests
from gcr.classifier.predict import merged
from gcr.classifier.sources import find_unlabelled
from gcr.learner.state_folder import StateFolder


class Forgotten(NamedTuple):
    version: int  # the current one
    given: int  # examples
    replayed: int  # of memory, erased
    held_out: int
    bare: tuple[str, ...]  # classes without an example to replay from now on


def forget(
    folder: StateFolder,
    files: Sequence[Path],
    path_column: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = print,
    progress: Progress = lambda what, done, total: None,
) -> Forgotten:
    """Erase copies of these examples. The version that is written is then the only one. Call it with ``folder.lock()``
    held."""
    folder.check_writable()
    classifier = saved.load(folder)
    learner, asked, given = classifier.learner, set[bytes](), 0
    for source in merged(find_unlabelled(files, classifier.form.known_columns, path_column)):
        read = read_examples(source, classifier.form, skip_bad, progress)
        for note in read.notes:
            say(note)
        asked.update(digests(read.examples))
        given += len(read.rows)
    replayed = [row for row, digest in enumerate(digests(learner.memory.examples)) if digest in asked]
    stays = [row for row, digest in enumerate(digests(classifier.held_out)) if digest not in asked]
    held_out = len(classifier.held_out) - len(stays)
    if not replayed and not held_out:
        return Forgotten(folder.versions()[0], given, 0, 0, ())
    before = learner.memory.counts()
    learner.forget(replayed)
    learner.forgot = True  # held-out examples count too
    classifier.held_out = classifier.held_out[stays]
    classifier.held_out_labels = [classifier.held_out_labels[row] for row in stays]
    after = learner.memory.counts()
    bare = tuple(str(name) for name, n in before.items() if n and not after[name])
    return Forgotten(classifier.write(), given, len(replayed), held_out, bare)
