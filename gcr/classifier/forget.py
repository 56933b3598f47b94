"""``gcr forget``: erase what a classifier remembers of some pictures or rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gcr.classifier import saved
from gcr.classifier.examples import Progress, read_examples
from gcr.classifier.predict import merged
from gcr.classifier.saved import Classifier
from gcr.classifier.sources import find_unlabelled
from gcr.learner.state_folder import StateFolder
from gcr.memory.examples import digests
from gcr.settings import BadInput


class Forgotten(NamedTuple):
    version: int  # the current one
    given: int  # examples
    replayed: int  # of memory, erased
    held_out: int
    written: bool  # whether any version had copies
    bare: tuple[str, ...]  # classes without an example to replay from now on


def forget(
    folder: StateFolder,
    files: Sequence[Path],
    path_column: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = print,
    progress: Progress = lambda what, done, total: None,
) -> Forgotten:
    """Erase copies of these examples. If any version has some, the one that is written is then the only one. What
    else may show or hold them goes in any case: the page of ``gcr inspect`` in the folder, and parts of versions that
    killed processes left. Call it with ``folder.lock()`` held."""
    folder.check_writable()
    classifier = saved.load(folder)
    learner, asked, given = classifier.learner, set[bytes](), 0
    for source in merged(find_unlabelled(files, classifier.form.known_columns, path_column)):
        read = read_examples(source, classifier.form, skip_bad, progress)
        for note in read.notes:
            say(note)
        asked.update(digests(read.examples))
        given += len(read.rows)
    _drop_page(folder, say)
    folder.sweep()
    replayed, held_out = _copies(classifier, asked)
    newest, *others = folder.versions()
    if not replayed and not held_out and not any(_has_copies(folder, version, asked) for version in others):
        return Forgotten(newest, given, 0, 0, False, ())
    before = learner.memory.counts()
    learner.forget(replayed)
    learner.forgot = True  # other examples than those to replay count too
    stays = sorted(set(range(len(classifier.held_out))).difference(held_out))
    classifier.held_out = classifier.held_out[stays]
    classifier.held_out_labels = [classifier.held_out_labels[row] for row in stays]
    after = learner.memory.counts()
    bare = tuple(str(name) for name, n in before.items() if n and not after[name])
    return Forgotten(classifier.write(), given, len(replayed), len(held_out), True, bare)


def _drop_page(folder: StateFolder, say: Callable[[str], None]) -> None:
    page = folder.path / saved.PAGE
    try:
        page.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"cannot remove {page} ({error.strerror}), which may show examples; remove it first") from None
    say(f"removed {page}, which may show these examples; remove pages that were written elsewhere")


def _copies(classifier: Classifier, asked: set[bytes]) -> tuple[list[int], list[int]]:
    """Rows of memory, and of what is held out, that are among those ``asked`` for."""
    both = (classifier.learner.memory.examples, classifier.held_out)
    to_replay, held_out = ([row for row, one in enumerate(digests(of)) if one in asked] for of in both)
    return to_replay, held_out


def _has_copies(folder: StateFolder, version: int, asked: set[bytes]) -> bool:
    """Of an earlier version. One that cannot be read may have some."""
    try:
        return any(_copies(saved.load(folder, version=version), asked))
    except BadInput:
        return True
