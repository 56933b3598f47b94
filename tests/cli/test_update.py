"""`gcr update`, `predict`, `inspect` and `forget` on small tables of features: outcomes, refusals, bad input, kills."""

import csv
import errno
import json
import os
import re
import shutil
import signal
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import HANG_SECONDS, hold
from PIL import Image

from gcr.classifier import saved
from gcr.classifier.examples import read_examples
from gcr.classifier.predict import load_classifier
from gcr.classifier.sources import find_unlabelled
from gcr.cli import update as commands
from gcr.cli.main import run_cli
from gcr.learner import state_folder
from gcr.learner.state_folder import StateFolder
from gcr.settings import BadInput

CENTRES = {"ant": (0, 0), "bee": (4, 0), "cow": (0, 4), "dog": (4, 4)}


def write_rows(path, names, n=40, seed=0, centres=CENTRES):
    """Clouds of points, one a class; far apart, so that a few epochs learn them."""
    rng = np.random.default_rng(seed)
    rows = [(name, *(np.array(centres[name]) + 0.3 * rng.standard_normal(2))) for name in names for _ in range(n)]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("label", "x", "y"), *rows])
    return path


@pytest.fixture
def gcr(tmp_path, monkeypatch, capsys):
    """A command's exit code, output and errors, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = run_cli([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A folder with a classifier of ants and bees, and the table that it learned."""
    folder = tmp_path_factory.mktemp("trained")
    write_rows(folder / "first.csv", ["ant", "bee"])
    with chdir(folder):
        assert run_cli(["update", "state", "first.csv", "--memory", "100", "--epochs", "8"]) == 0
    return folder


@pytest.fixture
def state(trained_once, gcr, tmp_path):
    """The classifier, in the test's own folder."""
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "state"


def content(state):
    """All that a reader of the state can see."""
    return {str(file.relative_to(state)): file.read_bytes() for file in sorted(state.rglob("*")) if file.is_file()}


def test_a_second_update_adds_classes_and_keeps_the_old(gcr, state):
    write_rows(Path("second.csv"), ["cow", "dog"], seed=1)
    Path("first.csv").unlink()
    code, out, said = gcr("update", "state", "second.csv", "--epochs", "8")
    assert code == 0, said
    assert re.search(r"memory: at most 80 to replay and 20 held out, [\d.]+ kB", said)
    assert re.search(r"ant +│ +100\.0 │ +100\.0 │ +8 ", out)
    assert re.search(r"cow +│ +new │ +100\.0 │ +8 ", out)
    assert re.search(r"old, mean +│ +100\.0 │ +100\.0 ", out)
    assert "state: version 2, 4 classes" in out
    classifier = saved.load(StateFolder(state))
    assert classifier.classes == ["ant", "bee", "cow", "dog"]
    assert len(classifier.held_out) == 20
    assert len(classifier.memory_labels()) == 80
    assert [entry["new_classes"] for entry in classifier.history] == [["ant", "bee"], ["cow", "dog"]]
    assert classifier.history[1]["examples"] == {"cow": 40, "dog": 40}
    assert classifier.history[1]["accuracy_before"] == {"ant": 1.0, "bee": 1.0}


def test_predictions_of_rows(gcr, state):
    Path("ask.csv").write_text("id,y,x\nfirst,0.1,0\nsecond,0,4.2\n")
    assert gcr("predict", "state", "ask.csv", "--out", "deep/predictions.csv")[0] == 0
    rows = list(csv.DictReader(Path("deep/predictions.csv").read_text().splitlines()))
    assert [(row["file"], row["row"], row["class"]) for row in rows] == [
        ("ask.csv", "1", "ant"),
        ("ask.csv", "2", "bee"),
    ]
    assert all(0.5 < float(row["probability"]) <= 1 for row in rows)
    code, out, _ = gcr("predict", "state", "ask.csv")
    assert (code, out) == (0, Path("deep/predictions.csv").read_text())


def test_rows_are_counted_where_names_of_files_have_several_lines(gcr, state):
    Path("ask\nme.csv").write_text("x,y\n0,0\n0,1\n")
    assert "predictions.csv, 2 rows" in gcr("predict", "state", "ask\nme.csv", "--out", "predictions.csv")[1]


class Frame:
    """What counts of a DataFrame: ``len`` is that of its rows, ``in`` asks for a column."""

    def __init__(self, columns):
        self.columns, self.series = list(columns), columns

    def __contains__(self, name):
        return name in self.columns

    def __getitem__(self, name):
        return np.array(self.series[name])


def test_a_classifier_of_features_in_python(gcr, state):
    Path("ask.csv").write_text("y,x\n0.1,0\n0,4.2\n3,1\n")
    asked = [row.split(",") for row in gcr("predict", "state", "ask.csv")[1].splitlines()[1:]]
    classifier = load_classifier("state")
    assert (classifier.classes, classifier.columns) == (["ant", "bee"], ("x", "y"))
    columns = {"y": [0.1, 0.0, 3.0], "more": [1, 2, 3], "x": [0.0, 4.2, 1.0]}
    for given in (columns, Frame(columns), [[0.0, 0.1], [4.2, 0.0], [1.0, 3.0]]):
        assert classifier.predict(given) == [label for *_, label, _ in asked]
        best = classifier.predict_proba(given).max(1)
        assert [f"{share:.4f}" for share in best] == [share for *_, share in asked]
    for given, message in (
        ({"x": [1.0]}, "must have the 2 columns of the classifier, it lacks 'y'"),
        ([[1.0]], r"must be \[n, 2\], a column for each feature, got \[1, 1\]"),
        ("ask.csv", "must be numbers"),
        ([[1.0, float("nan")]], "must be finite"),
    ):
        with pytest.raises(BadInput, match=message):
            classifier.predict(given)


def test_a_classifier_of_pictures_in_python(gcr):
    rng = np.random.default_rng(0)
    for name, shade in (("ant", 0), ("bee", 128)):
        Path("new", name).mkdir(parents=True)
        for number in range(6):
            pixels = (shade + rng.integers(0, 100, (12, 20, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(f"new/{name}/{number}.png")
    assert gcr("update", "state", "new", "--size", "8", "--epochs", "4")[0] == 0
    files = sorted(Path("new").rglob("*.png"))
    asked = [row.split(",") for row in gcr("predict", "state", *files)[1].splitlines()[1:]]
    classifier = load_classifier("state")
    shares = classifier.predict_proba(files)
    assert [[label, f"{share:.4f}"] for label, share in zip(classifier.predict(files), shares.max(1), strict=True)] == [
        row[1:] for row in asked
    ]
    for given in ([file.read_bytes() for file in files], [Image.open(file) for file in files], [*map(str, files)]):
        np.testing.assert_array_equal(classifier.predict_proba(given), shares)
    assert classifier.predict(files[0]) == classifier.predict(files)[:1]
    assert classifier.learner.predictor()(torch.rand(2, 3, 8, 8)).shape == (2, 2)
    for given, message in (
        ([], "at least one picture"),
        (b"nothing", "picture 0 cannot be read as a picture"),
        ("none.png", "none.png cannot be read as a picture"),
        (np.zeros((8, 8, 3)), "paths, bytes or Pillow images, got ndarray"),
    ):
        with pytest.raises(BadInput, match=message):
            classifier.predict(given)


def test_a_page_of_features(gcr, state):
    assert gcr("inspect", "state", "--page", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert "2 classes after 1 update, version 1" in page
    assert "The examples are features" in page


def test_an_update_that_costs_an_old_class_is_refused(gcr, state):
    """What is new lies where the ants are."""
    before = content(state)
    write_rows(Path("second.csv"), ["emu"], n=200, seed=1, centres={"emu": CENTRES["ant"]})
    words = ("update", "state", "second.csv", "--epochs", "8", "--memory", "40")
    code, _, said = gcr(*words)
    assert code == 1
    assert re.search(
        r'refused: the old classes lost [\d.]+ points on average, "ant" lost [\d.]+ points; the limit is 5', said
    )
    assert "state is unchanged, at version 1" in said
    assert '- add examples of "ant" to the new ones' in said
    accepted = re.search(r"- accept the loss: --limit (\d+)", said)[1]
    assert "- train longer: --epochs 16" in said
    assert content(state) == before
    assert gcr(*words, "--limit", int(accepted) - 1)[0] == 1
    assert gcr(*words, "--limit", accepted)[0] == 0
    assert StateFolder(state).versions() == [2, 1]


def test_rollback(gcr, state):
    before = content(state)
    write_rows(Path("second.csv"), ["cow"], seed=1)
    assert gcr("update", "state", "second.csv", "--epochs", "1", "--limit", "100")[0] == 0
    code, out, _ = gcr("update", "state", "--rollback")
    assert (code, out) == (0, "state is at version 1 again\n")
    assert content(state) == before
    code, _, said = gcr("update", "state", "--rollback")
    assert (code, said) == (2, "error: state cannot be rolled back: its only version is 1\n")


def test_examples_of_old_classes_only(gcr, state):
    write_rows(Path("more.csv"), ["ant"], n=20, seed=2)
    code, out, _ = gcr("update", "state", "more.csv", "--epochs", "2")
    assert code == 0
    assert "2 classes" in out


@pytest.mark.parametrize("memory", [40, 200])
def test_another_size_of_memory(gcr, state, memory):
    write_rows(Path("second.csv"), ["cow"], seed=1)
    code, _, said = gcr("update", "state", "second.csv", "--epochs", "8", "--memory", str(memory))
    assert code == 0, said
    classifier = saved.load(StateFolder(state))
    assert classifier.learner.memory.capacity == 0.8 * memory
    known = {"ant": 32, "bee": 32, "cow": 32} if memory == 200 else {"ant": 11, "bee": 11, "cow": 10}
    counts = classifier.learner.memory.counts()
    assert counts.keys() == known.keys()
    assert sorted(counts.values()) == sorted(known.values())
    assert classifier.history[1]["memory"] == memory
    assert gcr("update", "state", "second.csv", "--epochs", "1")[0] == 0  # goes on with that size
    assert saved.load(StateFolder(state)).memory == memory


def test_pictures_that_are_mirrored_stay_so(gcr):
    """The first update fixes it, as size and network."""
    for name, shade in (("ant", 0), ("bee", 200)):
        folder = Path(f"new/{name}")
        folder.mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (shade, 8 * number, 0)).save(folder / f"{number}.png")
    assert gcr("update", "state", "new", "--epochs", "1")[0] == 0
    code, _, said = gcr("update", "state", "new", "--epochs", "1", "--no-mirror")
    assert code != 0
    assert "this classifier mirrors pictures" in " ".join(said.split())


def test_rows_that_are_equal_to_those_of_an_old_class_leave_it_in_memory(gcr):
    """Columns of few values: all classes have the same rows."""
    for number, names in enumerate((["ant", "bee"], ["cow"]), 1):
        with open(f"{number}.csv", "w", newline="") as file:
            rows = [(name, n % 4, n % 3, n // 6) for name in names for n in range(60)]
            csv.writer(file).writerows([("label", "x", "y", "z"), *rows])
        code, _, said = gcr("update", "state", f"{number}.csv", "--epochs", "1", "--limit", "100", "--memory", "100")
        assert code == 0, said
    counts = saved.load(StateFolder("state")).learner.memory.counts()
    assert min(counts["ant"], counts["bee"]) >= 20


def test_the_same_examples_again_are_not_trained_on_where_held_out(gcr, state):
    _, _, said = gcr("update", "state", "first.csv", "--epochs", "1")
    assert re.search(r"left out \d+ examples that are copies of held-out ones", said)


def test_examples_that_come_again_are_in_memory_once(gcr):
    write_rows(Path("first.csv"), ["ant", "bee"])
    for _ in range(3):
        gcr("update", "state", "first.csv", "--memory", "100", "--epochs", "2")
    examples = saved.load(StateFolder(Path("state"))).learner.memory.examples
    assert len(set(values_of(examples))) == len(examples) == 64
    assert len(StateFolder(Path("state")).versions()) > 1  # nothing was forgotten


def values_of(examples):
    return {tuple(row.flatten().tolist()) for row in examples}


def test_what_was_trained_on_is_never_held_out(gcr):
    """Half of a table, then the whole of it."""
    lines = write_rows(Path("whole.csv"), ["ant", "bee"], n=60).read_text().splitlines(keepends=True)
    Path("half.csv").write_text("".join([lines[0], *lines[1::2]]))
    for table in ("half.csv", "whole.csv"):
        assert gcr("update", "state", table, "--memory", "200", "--epochs", "4")[0] == 0
        classifier = saved.load(StateFolder("state"))
        held_out = values_of(classifier.held_out)
        assert not held_out & values_of(classifier.learner.memory.examples)
    assert len(held_out) == 12 + 12  # a fifth of each half


def test_pictures_that_were_trained_on_are_never_held_out(gcr):
    rng = np.random.default_rng(0)
    for n in (10, 20):
        for name, shade in (("ant", 0), ("bee", 128)):
            Path("new", name).mkdir(parents=True, exist_ok=True)
            for number in range(n - 10, n):
                pixels = (shade + rng.integers(0, 100, (8, 8))).astype(np.uint8)
                Image.fromarray(pixels).save(f"new/{name}/{number}.png")
        assert gcr("update", "state", "new", "--epochs", "1", "--limit", "100")[0] == 0
    classifier = saved.load(StateFolder("state"))
    assert len(classifier.held_out) == 4 + 4
    assert not values_of(classifier.held_out) & values_of(classifier.learner.memory.examples)


def test_a_picture_alone_is_refused_before_training(gcr):
    for folder, name, shades in (("many", "ant", (0, 20, 40)), ("many", "bee", (90, 110)), ("two", "ant", (60, 70))):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
        for shade in shades:
            Image.fromarray(np.full((8, 8), shade, np.uint8)).save(f"{folder}/{name}/{shade}.png")
    assert gcr("update", "state", "many", "--epochs", "1")[0] == 0
    code, out, err = gcr("update", "state", "two")
    assert code == 2
    assert "two leaves one example to train on, which has no batch statistics; give three or more" in err
    assert "training" not in out


def test_nothing_but_copies_of_held_out_examples(gcr, state):
    classifier = saved.load(StateFolder(state))
    row = np.array(classifier.form.mean) + np.array(classifier.form.std) * classifier.held_out[0].numpy()
    line = next(
        line
        for line in Path("first.csv").read_text().splitlines()[1:]
        if np.allclose(np.array(line.split(",")[1:], dtype=float), row, atol=1e-5)
    )
    Path("copy.csv").write_text(f"label,x,y\n{line}\n")
    assert "error: all new examples are copies of held-out ones" in gcr("update", "state", "copy.csv")[2]
    Path("copy.csv").write_text(f"label,x,y\nnew{line}\n")
    assert re.search(r'error: all examples of "new\w+" are copies', gcr("update", "state", "copy.csv")[2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["update", "state"], "NEW is missing: a folder with a folder per class"),
        (["update", "state", "first.csv", "--rollback"], "--rollback and NEW exclude each other"),
        (["update", "state", "absent"], "absent does not exist; give a folder"),
        (["update", "state", "first.csv", "--net", "resnet18"], "net is mlp in this classifier, got resnet18"),
        (["update", "state", "first.csv", "--size", "16"], "this classifier takes 2 features, got --size 16"),
        (["update", "state", "first.csv", "--memory", "3"], "memory must be >= 20 examples, got 3"),
        (["update", "state", "pictures"], "examples must be features, as in the first update of this classifier"),
        (["update", "pictures", "first.csv"], 'pictures must be a new folder or a state, got a folder with "ant"'),
        (["update", "first.csv", "first.csv"], "a state must be a folder, got the file first.csv"),
        (["update", "fresh", "one.csv"], 'a classifier must begin with at least 2 classes, got "ant" alone'),
        (["update", "fresh", "first.csv", "--net", "vit"], 'net must be one of convnet, resnet18, mlp, got "vit"'),
        (["update", "absent", "--rollback"], "absent does not exist; make one with: gcr update absent NEW"),
        (["predict", "absent", "first.csv"], "absent does not exist"),
        (["predict", "state", "absent.csv"], "absent.csv does not exist"),
        (["predict", "state", "pictures"], "examples must be features"),
        (["predict", "state", "first.csv", "--out", "first.csv/x"], "cannot write first.csv/x"),
        (["inspect", "pictures"], "pictures is not a state"),
        (["inspect", "state", "--page", "first.csv/x"], "cannot write first.csv/x"),
    ],
)
def test_bad_input(gcr, state, words, message):
    Path("pictures/ant").mkdir(parents=True)
    Image.new("L", (8, 8)).save("pictures/ant/1.png")
    write_rows(Path("one.csv"), ["ant"])
    before = content(state)
    code, _, said = gcr(*words)
    assert code == 2
    assert f"error: {message}" in said
    assert content(state) == before
    assert not Path("fresh").exists()


def test_pictures_that_cannot_be_read(gcr, tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "new" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), 10 * number + 120 * (name == "bee")).save(f"new/{name}/{number}.png")
    Path("new/ant/3.png").write_bytes(Path("new/ant/4.png").read_bytes()[:40])
    words = ("update", "state", "new", "--epochs", "1")
    code, _, said = gcr(*words)
    assert code == 2
    assert "error: 1 of 20 pictures cannot be read: new/ant/3.png (" in said
    assert not Path("state").exists()
    code, _, said = gcr(*words, "--skip-bad")
    assert code == 0
    assert "left out: 1 of 20 pictures cannot be read: new/ant/3.png (" in said
    assert gcr("predict", "state", "new")[0] == 2
    code, out, _ = gcr("predict", "state", "new", "new/bee/1.png", "--skip-bad")
    assert code == 0
    assert len(out.splitlines()) == 1 + 19 + 1
    for number in range(10):
        Path(f"new/ant/{number}.png").write_bytes(b"")
    code, _, said = gcr(*words, "--skip-bad")
    assert (code, said.splitlines()[-1]) == (
        2,
        'error: class "ant" has no picture that can be read; replace them or remove the class',
    )


def test_a_state_of_a_newer_gcr(gcr, state, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(state_folder, "FORMAT", 2)
        folder = StateFolder(state)
        folder.write(*_read_any(state))
    for words in (["update", "state", "first.csv"], ["predict", "state", "first.csv"], ["inspect", "state"]):
        code, _, said = gcr(*words)
        assert code == 2
        assert "is of format 2, made by a later gcr; this gcr (" in said
        assert "go back to version 1 with: gcr update state --rollback" in said
    assert gcr("update", "state", "--rollback")[0] == 0


def _read_any(state):
    return {"learner": {}}, {}


def test_a_damaged_state(gcr, state):
    before = content(state)
    write_rows(Path("second.csv"), ["cow"], seed=1)
    assert gcr("update", "state", "second.csv", "--epochs", "1", "--limit", "100")[0] == 0
    file = state / "version-0002/tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for words in (["update", "state", "second.csv"], ["predict", "state", "first.csv"], ["inspect", "state"]):
        code, _, said = gcr(*words)
        assert code == 2
        assert "tensors.safetensors is damaged (its checksum is wrong); go back to version 1 with:" in said
        assert "gcr update state --rollback" in said
    assert gcr("update", "state", "--rollback")[0] == 0
    assert content(state) == before


def test_a_network_whose_weights_do_not_fit(gcr, state):
    folder = StateFolder(state)
    about, tensors = folder.read()
    about["classifier"]["form"]["shape"] = [3]
    folder.write(about, tensors)
    for words in (["update", "state", "first.csv"], ["predict", "state", "first.csv"], ["inspect", "state"]):
        code, _, said = gcr(*words)
        assert code == 2
        assert "error: state cannot be read by this gcr (form.names, form.mean and form.std must have 3 values" in said


def test_a_state_that_lacks_something(gcr, state):
    folder = StateFolder(state)
    about, tensors = folder.read()
    del about["classifier"]["form"]
    folder.write(about, tensors)
    code, _, said = gcr("inspect", "state")
    assert code == 2
    assert "error: state cannot be read by this gcr (KeyError: 'form')" in said


def test_names_of_classes_may_look_like_markup(gcr):
    centres = {"[bold]<b>": (0, 0), "a,b\n": (4, 4)}
    write_rows(Path("first.csv"), centres, centres=centres)
    code, out, said = gcr("update", "state", "first.csv", "--epochs", "8")
    assert code == 0, said
    assert "[bold]<b>" in out
    assert gcr("inspect", "state", "--page", "page.html")[0] == 0
    assert "[bold]&lt;b&gt;" in Path("page.html").read_text()
    rows = list(csv.DictReader(gcr("predict", "state", "first.csv")[1].splitlines()))
    assert {row["class"] for row in rows} == {"[bold]<b>", "a,b"}


def test_names_of_classes_are_text_to_the_terminal(gcr):
    centres = {"bee\x1b[31m": (0, 0), "ant\x9b2J": (4, 4)}
    write_rows(Path("first.csv"), centres, centres=centres)
    for words in (("update", "state", "first.csv", "--epochs", "8"), ("predict", "state", "first.csv")):
        code, out, said = gcr(*words)
        assert code == 0, said
        assert r"bee\x1b[31m" in out
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + said)


def test_a_learners_state_is_not_a_classifier(gcr, tmp_path):
    StateFolder(tmp_path / "state").write({"learner": {}}, {})
    code, _, said = gcr("predict", "state", "state")
    assert code == 2
    assert "holds no classifier: learner.save wrote it, not gcr update" in said


def test_a_full_disk(gcr, state, monkeypatch):
    before = content(state)
    write_rows(Path("second.csv"), ["cow"], seed=1)

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_folder.os, "fsync", full)
    code, _, said = gcr("update", "state", "second.csv", "--epochs", "1", "--limit", "100")
    assert code == 2
    assert "cannot write to state (No space left on device); what was saved there before is unchanged" in said
    assert content(state) == before


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["predict", "state", "first.csv", "--out", "predictions.csv"], "predictions.csv"),
        (["inspect", "state"], "state/inspect.html"),
    ],
)
def test_a_full_disk_leaves_no_part_of_a_file(gcr, state, monkeypatch, words, written):
    before = content(Path())

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, said = gcr(*words)
    assert code == 2
    assert f"error: cannot write {written} (No space left on device)" in said
    assert content(Path()) == before


def test_too_little_space_is_said_before_training(gcr, state, monkeypatch):
    from gcr.classifier import update

    monkeypatch.setattr(update.shutil, "disk_usage", lambda path: SimpleNamespace(free=5000))
    monkeypatch.setattr(update.Learner, "fit", lambda *_, **__: pytest.fail("it trained"))
    code, _, said = gcr("update", "state", "first.csv")
    assert code == 2
    assert re.search(r"error: state needs [\d.]+ kB for the new version, and its disk has 5 kB left; make room", said)


def test_two_updates_at_once(gcr, state, monkeypatch):
    """The second is refused; or, with --wait, goes on when the first has ended."""
    holder, pipe = hold(StateFolder(state).lock)
    for words in (["first.csv"], ["--rollback"]):
        code, _, said = gcr("update", "state", *words)
        assert code == 2
        assert f"state is being changed by process {holder.pid}; try again when it has ended, or give --wait" in said
    assert gcr("predict", "state", "first.csv")[0] == 0
    heard = []

    def hear(line):
        heard.append(line)
        if line.startswith("waiting"):
            pipe.send("go on")
            holder.join(HANG_SECONDS)

    monkeypatch.setattr(commands, "_say", hear)
    assert gcr("update", "state", "first.csv", "--epochs", "1", "--wait")[0] == 0
    assert heard[0] == f"waiting for process {holder.pid}, which is changing state"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["reading", "training"])
def test_killed_while_it_works(gcr, state, moment):
    """kill -9: the state is as before, and the next update is not kept out."""
    before = content(state)
    write_rows(Path("second.csv"), ["cow"], seed=1)
    child = os.fork()
    if child == 0:
        from gcr.classifier import batch, update

        module, name = {"reading": (batch, "read_examples"), "training": (update, "_predicted")}[moment]
        setattr(module, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        run_cli(["update", "state", "second.csv", "--epochs", "1"])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert {name: data for name, data in content(state).items() if name != ".lock"} == before
    assert gcr("update", "state", "second.csv", "--epochs", "1", "--limit", "100")[0] == 0


def test_the_history_is_readable(state):
    values = json.loads((state / "version-0001/learner.json").read_text())
    (entry,) = values["about"]["classifier"]["history"]
    assert entry["source"] == "first.csv"
    assert entry["accuracy"] == {"ant": 1.0, "bee": 1.0}


def test_forgotten_rows_are_in_no_version(gcr, state):
    before = saved.load(StateFolder(state))
    rows = Path("first.csv").read_text().splitlines()
    Path("some.csv").write_text("\n".join([rows[0], *rows[1:11]]) + "\n")  # ten ants
    held = [len(before.learner.memory), len(before.held_out)]
    code, out, said = gcr("forget", "state", "some.csv")
    assert code == 0, said
    pattern = r"version 2, erased (\d+) examples to replay and (\d+) held out, of 10 given"
    gone = [int(n) for n in re.search(pattern, " ".join(out.split())).groups()]
    assert sum(gone) == 10  # memory has room for all
    after = saved.load(StateFolder(state))
    assert [len(after.learner.memory) + gone[0], len(after.held_out) + gone[1]] == held
    assert StateFolder(state).versions() == [2]
    erased, left = (
        set(map(tuple, torch.cat([one.learner.memory.examples, one.held_out]).tolist())) for one in (before, after)
    )
    assert len(erased - left) == 10
    assert left < erased
    assert gcr("forget", "state", "some.csv")[1].startswith("state remembers none of these 10 examples")
    write_rows(Path("second.csv"), ["cow"], seed=1)
    assert gcr("update", "state", "second.csv", "--epochs", "4")[0] == 0


@pytest.mark.parametrize("row", [1, -1], ids=["remembered", "of no version"])
def test_the_page_goes_with_what_is_forgotten(gcr, state, row):
    """It shows memory as it was; and what it shows may have left all versions since."""
    assert gcr("inspect", "state")[0] == 0
    shutil.copytree(state / "version-0001", state / ".version-0002.1.part")  # of an update that was killed
    header, *_ = rows = [*Path("first.csv").read_text().splitlines(), "ant,99,99"]
    Path("some.csv").write_text(f"{header}\n{rows[row]}\n")
    code, _, said = gcr("forget", "state", "some.csv")
    assert code == 0
    assert "removed state/inspect.html" in said
    assert [entry.name for entry in state.iterdir()] == [f"version-{StateFolder(state).versions()[0]:04d}"]
    assert gcr("forget", "state", "some.csv")[2] == ""


def test_a_class_of_which_nothing_is_left_is_named(gcr, state):
    rows = Path("first.csv").read_text().splitlines()
    Path("ants.csv").write_text("\n".join([rows[0], *(row for row in rows if row.startswith("ant"))]) + "\n")
    code, _, said = gcr("forget", "state", "ants.csv")
    assert code == 0
    assert "no example left to replay of ant" in said
    assert saved.load(StateFolder(state)).learner.memory.counts()["bee"] > 0
    _, _, said = gcr("update", "state", write_rows(Path("second.csv"), ["cow"], seed=1), "--epochs", "4")
    assert "nothing is left of ant to replay or to measure" in said


def test_copies_in_an_earlier_version_alone_are_erased(gcr, state):
    """Memory has let them go since."""
    write_rows(Path("second.csv"), ["cow", "dog"], seed=1)
    assert gcr("update", "state", "second.csv", "--epochs", "4", "--memory", "20")[0] == 0
    folder = StateFolder(state)
    now, before = (saved.load(folder, version=version).learner.memory.examples.tolist() for version in (2, 1))
    form = saved.load(folder).form
    (source,) = find_unlabelled([Path("first.csv")], form.known_columns, None)
    examples = read_examples(source, form, False, lambda *_: None).examples.tolist()
    row = next(row for row, one in enumerate(examples) if one in before and one not in now)
    header, *rows = Path("first.csv").read_text().splitlines()
    Path("some.csv").write_text(f"{header}\n{rows[row]}\n")
    code, out, _ = gcr("forget", "state", "some.csv")
    assert code == 0
    assert "version 3, erased 0 examples to replay and 0 held out, of 1 given" in " ".join(out.split())
    assert folder.versions() == [3]
    assert gcr("predict", "state", "second.csv")[0] == 0


def test_an_earlier_version_that_cannot_be_removed_is_said(gcr, state, monkeypatch):
    rows = Path("first.csv").read_text().splitlines()
    Path("some.csv").write_text("\n".join(rows[:11]) + "\n")

    def refuse(self, number):
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "_drop", refuse)
        code, _, said = gcr("forget", "state", "some.csv")
    assert code == 2
    assert "Permission denied" in " ".join(said.split())
    assert StateFolder(state).versions() == [2, 1]
    assert gcr("forget", "state", "some.csv")[0] == 0
    assert StateFolder(state).versions() == [3]
