"""The reason for `gcr update`: three updates with folders of digits, each deleted afterwards, keep the first classes;
plain fine-tuning with the same network and epochs loses them."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from gcr.cli.main import run_cli
from gcr.learner.learner import Learner
from gcr.methods import Finetune
from gcr.models import build

STEPS = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
EPOCHS, LIMIT = 10, 5.0


@pytest.fixture(scope="module")
def digits():
    """Pictures as uint8 and classes, in two parts: to learn from, and a fifth that no command ever sees."""
    data = load_digits()
    pixels, classes = (data.images * 15).astype(np.uint8), data.target
    unseen = np.arange(len(classes)) % 5 == 0
    return (pixels[~unseen], classes[~unseen]), (pixels[unseen], classes[unseen])


def write_pictures(folder, pixels, classes, wanted):
    for name in wanted:
        (folder / str(name)).mkdir(parents=True)
        for number, picture in enumerate(pixels[classes == name]):
            Image.fromarray(picture).save(folder / str(name) / f"{number}.png")


@pytest.fixture(scope="module")
def taught(digits, tmp_path_factory):
    """The state after three updates, and accuracy on unseen pictures of the first classes after each."""
    home = tmp_path_factory.mktemp("taught")
    (pixels, classes), unseen = digits
    write_pictures(home / "unseen", *unseen, range(10))
    accuracies = []
    for number, names in enumerate(STEPS, 1):
        new = home / f"new-{number}"
        write_pictures(new, pixels, classes, names)
        words = ["update", home / "state", new, "--epochs", EPOCHS, "--limit", LIMIT, "--memory", 250]
        assert run_cli([str(word) for word in words]) == 0
        shutil.rmtree(new)
        accuracies.append(first_classes(home))
    return home, accuracies


def first_classes(home):
    words = ["predict", home / "state", home / "unseen", "--out", home / "predictions.csv"]
    assert run_cli([str(word) for word in words]) == 0
    rows = list(csv.DictReader((home / "predictions.csv").read_text().splitlines()))
    assert len(rows) == 360
    truth = [int(Path(row["file"]).parent.name) for row in rows]
    right = [row["class"] == str(name) for row, name in zip(rows, truth, strict=True) if name in STEPS[0]]
    return 100 * sum(right) / len(right)


def test_the_first_classes_are_kept_within_the_limit(taught):
    _, accuracies = taught
    assert accuracies[0] > 97
    assert accuracies[0] - accuracies[2] <= LIMIT, accuracies


def test_fine_tuning_loses_them(digits, taught):
    (pixels, classes), (unseen, truth) = digits
    learner = Learner(build("convnet", (1, 8, 8), 2, seed=0), memory=1, method=Finetune(), seed=0)
    for names in STEPS:
        rows = np.isin(classes, names)
        learner.fit(pixels[rows][:, None], [str(name) for name in classes[rows]], epochs=EPOCHS)
    first = np.isin(truth, STEPS[0])
    assert 100 * learner.score(unseen[first][:, None], [str(name) for name in truth[first]]) < 30


def test_the_page_shows_classes_history_and_memory(taught):
    home, _ = taught
    assert run_cli(["inspect", str(home / "state")]) == 0
    page = (home / "state/inspect.html").read_text()
    assert "10 classes after 3 updates, version 3" in page
    assert len(re.findall(r"<img src=\"data:image/png;base64,", page)) == 200
    assert len(re.findall(r"<polyline ", page)) == 4  # all classes, and those of each update
    for number in (1, 2, 3):
        assert f"{number}: new-{number}" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)  # nothing is loaded
