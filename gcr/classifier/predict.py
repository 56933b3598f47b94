"""``gcr predict`` and ``gcr.load_classifier``: the class of every picture or row, with its probability."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcr.classifier import saved
from gcr.classifier.examples import Progress, as_form, read_examples
from gcr.classifier.saved import Classifier, fitting_threads
from gcr.classifier.sources import FeatureRows, PictureFiles, Source, find_unlabelled
from gcr.files import write_whole
from gcr.learner.learner import Learner
from gcr.learner.state_folder import StateFolder
from gcr.settings import BadInput

BLOCK = 1024  # pictures in memory at once


class LoadedClassifier:
    """A classifier that ``gcr update`` made. Several threads may call it.

    Pictures are given alone or in a list: paths, bytes of files, or pictures that Pillow has opened. Features are a
    DataFrame, a dict of columns, or [n, columns] numbers in the order of ``columns``; they are as in the files.
    """

    def __init__(self, classifier: Classifier) -> None:
        self._form = classifier.form
        self.learner: Learner = classifier.learner  # whose predictor() is the network
        self.classes: list[str] = classifier.classes
        self.columns: tuple[str, ...] = classifier.form.names  # of features

    def predict(self, x: Any) -> list[str]:
        """The class of each."""
        return [self.classes[best] for best in self.predict_proba(x).argmax(1)]

    def predict_proba(self, x: Any) -> np.ndarray:
        """[n, classes], in the order of ``classes``."""
        return np.asarray(self.learner.predict_proba(as_form(x, self._form)))


def load_classifier(path: str | Path, device: str = "cpu", version: int | None = None) -> LoadedClassifier:
    """What ``gcr update`` wrote to the folder ``path``: its newest version, or one by its number."""
    return LoadedClassifier(saved.load(StateFolder(path), device, version))


def predict(
    classifier: Classifier,
    files: Sequence[Path],
    path_column: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = print,
    progress: Progress = lambda what, done, total: None,
) -> str:
    """CSV: file, class, probability; of tables the row too, from 1."""
    sources = find_unlabelled(files, classifier.form.known_columns, path_column)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with_rows = classifier.form.kind == "features"
    writer.writerow(["file", *(["row"] if with_rows else []), "class", "probability"])
    for source in merged(sources):
        for name, row, label, probability in _predicted(classifier, source, skip_bad, say, progress):
            writer.writerow([name, *([row] if with_rows else []), label, f"{probability:.4f}"])
    return text.getvalue()


def write_predictions(text: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror}); choose another --out") from None


def merged(sources: Sequence[Source]) -> list[Source]:
    """Pictures given one by one are read together, and what is wrong with them is said at once."""
    together: list[Source] = []
    for source in sources:
        if together and isinstance(source, PictureFiles) and isinstance(together[-1], PictureFiles):
            together[-1] = PictureFiles([*together[-1].files, *source.files], [])
        else:
            together.append(source)
    return together


def _predicted(
    classifier: Classifier, source: Source, skip_bad: bool, say: Callable[[str], None], progress: Progress
) -> Iterator[tuple[str, int, str, float]]:
    read = read_examples(source, classifier.form, skip_bad, progress)
    for note in read.notes:
        say(note)
    names = classifier.classes
    for start in range(0, len(read.rows), BLOCK):
        with fitting_threads(classifier.net_name):
            shares = np.asarray(classifier.learner.predict_proba(read.examples[start : start + BLOCK]))
        best = shares.argmax(axis=1)
        for place, choice in enumerate(best.tolist()):
            row = read.rows[start + place]
            name = source.file if isinstance(source, FeatureRows) else source.files[row]
            yield str(name), row + 1, names[choice], float(shares[place, choice])
        progress("predicting", min(start + BLOCK, len(read.rows)), len(read.rows))
