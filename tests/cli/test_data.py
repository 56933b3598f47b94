"""`gcr data`, from pictures to a trained run."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import made_data as made
import pytest
from conftest import HANG_SECONDS

from gcr.cli.main import run_cli
from gcr.data import find
from gcr.data.source import Part, Source
from gcr.data.writing import write_set


@pytest.fixture
def gcr(cache, tmp_path, monkeypatch, capsys):
    """In this process: a new one takes seconds to import torch."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = run_cli([str(argument) for argument in arguments])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@pytest.fixture
def gcr_alone(cache, tmp_path):
    """As a user calls it: in a process of its own, which also shows what is logged."""

    def call(*arguments):
        command = [sys.executable, "-m", "gcr", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return call


@pytest.mark.slow
def test_own_pictures_from_import_to_a_run(gcr_alone, cache, tmp_path):
    gcr = gcr_alone
    made.write_folder(tmp_path / "photos", made.pictures(parts=("",), n=10))
    done = gcr("data", "import", "birds", "photos", "--size", "8")
    assert done.code == 0, done.err
    assert done.err.splitlines() == [
        "birds: reading photos as image-folder",
        "birds: there is no test folder: 6 of 30 pictures are held out for testing, 20% of each class, drawn with "
        "seed 0",
    ]
    assert "birds: 3 classes, 24 training and 6 test images of 3 x 8 x 8" in done.out
    assert "train with: gcr run birds" in done.out

    listed = gcr("data", "list").out
    assert "24 + 6 images" in listed
    assert "no; gcr data get cifar10, or gcr data import cifar10 PATH" in listed
    assert "your own: 24 + 6 images, 3 classes in 3 tasks" in gcr("scenarios").out

    done = gcr(
        *("run", "birds", "--set", "tasks=3", "--set", "class_order=1", "--model", "mlp"),
        *("--epochs", "1", "--buffer", "12", "--out", "runs"),
    )
    assert done.code == 0, done.err
    folder = tmp_path / "runs/birds-gcr-k12/seed-0"
    stream = json.loads((folder / "experiment.json").read_text())["stream"]
    assert (stream["tasks"], stream["class_order"], stream["validation"]) == (3, 1, 0.0)
    assert len(json.loads((folder / "result.json").read_text())["class_il"]["matrix"]) == 3

    done = gcr("data", "check", "--json", "facts.json")
    assert done.code == 0, done.err
    assert "birds: whole; 3 classes, train 24 (8 a class), test 6 (2 a class), mean" in done.out
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["birds"]["train"]["per_class"] == [8, 8, 8]

    (cache / "birds/test-labels.npy").write_bytes(b"")
    done = gcr("data", "check", "birds")
    assert done.code == 1
    assert f"{cache / 'birds/test-labels.npy'} is damaged" in done.err
    assert "gcr data import birds PATH" in done.err
    assert done.out == ""
    done = gcr("run", "birds", "--seeds", "0-2", "--out", "more")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.err.startswith(f"error: {cache / 'birds/test-labels.npy'} is damaged (0 bytes instead of ")
    assert not (tmp_path / "more").exists()

    (cache / "birds/about.json").write_text("{")
    done = gcr("scenarios")
    assert done.code == 0
    assert "seq-digits" in done.out
    assert "birds" not in done.out
    assert done.err.startswith(f"birds is left out: {cache / 'birds/about.json'} is damaged (")
    assert done.err.endswith("create it again with: gcr data import birds PATH\n")
    assert len(done.err.splitlines()) == 1


def test_a_damaged_official_set_is_told_once_before_anything_is_made(gcr, cache, tmp_path):
    shape = (3, 32, 32)
    train, test = made.examples(5, 10, shape), made.examples(2, 10, shape)
    names = find("cifar10").class_names
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCR_DATA", str(cache))
        write_set("cifar10", "made", Source(Part.of(*train), Part.of(*test), shape, names))
    os.truncate(cache / "cifar10/test-labels.npy", 100)
    done = gcr("run", "seq-cifar10", "--seeds", "0-2", "--out", "runs")
    assert done.code == 2
    assert done.err == (
        f"error: {cache / 'cifar10/test-labels.npy'} is damaged (100 bytes instead of 288); "
        "create it again with: gcr data get cifar10, or gcr data import cifar10 PATH\n"
    )
    assert not (tmp_path / "runs").exists()


def test_a_run_without_its_data_says_how_to_get_it(gcr, cache, tmp_path):
    done = gcr("run", "seq-cifar10", "--out", "runs")
    assert done.code == 2
    assert done.err == (
        f"error: the data set cifar10 is not in {cache}; get it with: gcr data get cifar10, "
        "or gcr data import cifar10 PATH\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check",), "there is no data set in"),
        (("check", "birds"), "the data set birds is not in"),
        (("check", "cifr10"), 'the data set cifr10 (did you mean "cifar10"?) is not in'),
        (("check", "cifar10"), "get it with: gcr data get cifar10, or gcr data import cifar10 PATH"),
        (("check", "../birds"), "a data set's name must be"),
        (("import", "birds", "nowhere"), "nowhere does not exist"),
        (("import", "mnist", ".", "--no-mirror"), "whether mnist is mirrored is part of its scenario"),
        (("get", "imagenet1k"), "cannot be downloaded without an account"),
        (
            ("get", "mnist", "--mirror", "http://127.0.0.1:9"),
            "http://127.0.0.1:9/train-images-idx3-ubyte.gz: cannot be",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(gcr, arguments, message):
    done = gcr("data", *arguments)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert message in done.err.splitlines()[-1]
