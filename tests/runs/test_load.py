"""A loaded run predicts as the run did when it was evaluated; runs in packed files."""

import gzip
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import gcr
from gcr import scenarios
from gcr.experiments.experiment import compose
from gcr.files import read_tensors, tensor_bytes
from gcr.methods import METHODS
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job
from gcr.runs.load import load_run
from gcr.runs.model_file import read_model
from gcr.runs.packed import BadFile, packed_bytes, read_packed, split_path
from gcr.settings import BadInput

QUICK = {"gdumb": {"fitting_epochs": 2}}  # its default is hundreds


def trained(out, method, how=None, selector=None, **overrides):
    """A run of one short epoch per task; its folder."""
    given = {"epochs": 1, "batch": 64} | QUICK.get(method, {}) | overrides
    if method not in ("finetune", "joint"):
        given = {"buffer": 20} | given
    experiment = compose("seq-digits", method, selector=selector, overrides=given)
    folder, events = RunFolder.of(out, experiment), []
    run_job(0, Job(experiment, folder), how or Execution("cpu"), events.append)
    assert events[-1].error is None, events[-1].error
    return folder.path


def class_il(run, scenario):
    """The mean over tasks of the accuracy on each, in percent."""
    images, labels = scenario.test.pixels, scenario.test.labels
    right = run.predict(images) == labels
    tasks = [torch.isin(labels, torch.tensor(task)) for task in scenario.tasks]
    accuracies = [100 * right[task].double().sum() / task.sum() for task in tasks]
    return float(sum(accuracies) / len(accuracies))


@pytest.fixture(scope="module")
def digits():
    return scenarios.load("seq-digits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), "er", model="mlp")


@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_the_loaded_network_has_the_accuracy_of_the_result(tmp_path, digits, method):
    run = load_run(trained(tmp_path, method))
    assert class_il(run, digits) == pytest.approx(run.result["class_il"]["accuracy"], abs=1e-9)
    assert run.experiment.method.name == method
    assert (run.memory is None) == (run.experiment.memory is None)


def test_features_are_those_of_the_network_that_predicts(tmp_path, digits):
    run = load_run(trained(tmp_path, "gcr+", model="mlp"))
    images, before = digits.test.pixels[:20], {name: t.clone() for name, t in run.net.state_dict().items()}
    head = [run.extras[f"ema.head.{name}"] for name in ("weight", "bias")]
    features = run.features(images)
    torch.testing.assert_close(torch.nn.functional.linear(features, *head), run.scores(images))
    assert all(torch.equal(t, before[name]) for name, t in run.net.state_dict().items())


@pytest.mark.parametrize(
    "overrides",
    [{"statistics": "memory"}, {"online": True, "epochs": 1, "batch": 10}],
    ids=["statistics", "online"],
)
def test_batch_statistics_are_those_that_were_evaluated(tmp_path, digits, overrides):
    run = load_run(trained(tmp_path, "er", **overrides))
    assert class_il(run, digits) == pytest.approx(run.result["class_il"]["accuracy"], abs=1e-9)


def test_only_what_prediction_needs_is_kept(tmp_path):
    assert set(load_run(trained(tmp_path, "icarl", model="mlp")).extras) == {"means", "has_mean"}
    assert all(name.startswith("stable.") for name in load_run(trained(tmp_path, "cls-er", model="mlp")).extras)
    assert all(name.startswith("ema.") for name in load_run(trained(tmp_path, "gcr+", model="mlp")).extras)
    assert load_run(trained(tmp_path, "gdumb", model="mlp")).extras == {}


def test_images_as_bytes_floats_and_arrays(folder, digits):
    run, images = gcr.load_run(str(folder)), digits.test.pixels[:40]
    scores = run.scores(images)
    assert scores.shape == (40, 10)
    assert torch.equal(run.predict(images), scores.argmax(1))
    assert torch.equal(run.scores(images.numpy()), scores)
    for floats in (images.float() / 255, images.numpy() / np.float32(255), images.double() / 255):
        torch.testing.assert_close(run.scores(floats), scores)
    assert run.features(images).shape == (40, run.net.head.in_features)
    torch.testing.assert_close(run.net.head(run.features(images)), scores)
    assert len(run.class_names) == 10
    assert run.memory.images.shape == (20, 1, 8, 8)
    assert len(run.memory) == len(run.memory.labels) == 20


def test_many_images_are_taken_in_parts(folder, digits):
    run = load_run(folder)
    images = digits.test.pixels.repeat(4, 1, 1, 1)[:1201]
    torch.testing.assert_close(run.scores(images)[1000:], run.scores(images[1000:]))


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (torch.zeros(3, 3, 8, 8), r"images must have shape \[n, 1, 8, 8\], got \[3, 3, 8, 8\]"),
        (torch.zeros(1, 8, 8), r"got \[1, 8, 8\]; one image is images\[None\]"),
        (np.zeros((2, 8, 8, 1), np.uint8), "puts channels first"),
        (torch.zeros(0, 1, 8, 8), "must have shape"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), "images must be uint8, or float in .0, 1., got torch.int64"),
        (torch.full((2, 1, 8, 8), 200.0), r"float images must be in \[0, 1\], got 200..200; convert bytes to uint8"),
        (torch.full((2, 1, 8, 8), torch.nan), "images must be finite"),
    ],
)
def test_images_that_would_be_misread_are_refused(folder, images, why):
    with pytest.raises(BadInput, match=why):
        load_run(folder).predict(images)


def test_a_network_of_float_images_takes_them_as_they_are(folder):
    run = replace(load_run(folder), pixels="float32")
    assert run.predict(torch.full((2, 1, 8, 8), 200.0)).shape == (2,)
    with pytest.raises(BadInput, match="must be float, as those it was trained on"):
        run.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def test_a_run_without_its_network(tmp_path):
    path = trained(tmp_path, "er", Execution("cpu", model=False), model="mlp")
    assert not (path / "model.safetensors").exists()
    with pytest.raises(BadInput, match=r"seed-0 has no model.safetensors; train it again without --no-model"):
        load_run(path)


def test_folders_that_are_no_runs(folder, tmp_path):
    with pytest.raises(BadInput, match=r"is not a finished run; give one of its runs, as .*seed-0"):
        load_run(folder.parent)
    with pytest.raises(BadInput, match="give a folder that has a result"):
        load_run(tmp_path / "none")


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "seed-0")


def test_a_damaged_model_file_is_named(copied):
    file = copied / "model.safetensors"
    content = file.read_bytes()
    flipped = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    for bad in (b"", b"no tensors", content[:-10], flipped):
        file.write_bytes(bad)
        with pytest.raises(BadInput, match=r"model.safetensors cannot be read") as error:
            load_run(copied)
        assert "\n" not in str(error.value)


def test_a_file_of_something_else(copied):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, copied / "model.safetensors")
    with pytest.raises(BadInput, match="its header does not say what it is"):
        load_run(copied)


def test_a_network_of_another_shape(copied):
    saved = read_model(copied / "model.safetensors")
    other = replace(saved, about=dict(saved.about) | {"image_shape": [1, 9, 9]})
    (copied / "model.safetensors").write_bytes(other.to_bytes())
    with pytest.raises(BadInput, match="does not fit this gcr"):
        load_run(copied)


def put_about(copied, **changed):
    saved = read_model(copied / "model.safetensors")
    (copied / "model.safetensors").write_bytes(replace(saved, about=dict(saved.about) | changed).to_bytes())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"views": {"mean": [-1.0], "std": [0.0]}}, r"views.std must be finite numbers > 0, got \[0.0\]"),
        ({"views": {"mean": -1, "std": [1.0]}}, "views.mean must be finite numbers, got -1"),
        ({"views": {"mean": [0.5], "std": [1.0], "pad": "x"}}, "views.pad must be a whole number >= 0, got 'x'"),
        ({"views": {"mean": [0.5] * 3, "std": [1.0] * 3}}, "views.mean must have 1 numbers"),
        ({"views": []}, "views must have mean and std"),
        ({"image_shape": [1, 8]}, "image_shape must be channels, height and width"),
        ({"image_shape": [1, 10**5, 10**5]}, "is .100, 64. there"),
        ({"class_names": []}, "class_names must be a list of text"),
        ({"pixels": "int8"}, "pixels must be uint8 or float32, got 'int8'"),
        ({"model": 7}, "model must be text, got 7"),
    ],
)
def test_a_whole_model_file_with_odd_values(copied, changed, why):
    put_about(copied, **changed)
    with pytest.raises(BadInput, match=why) as error:
        load_run(copied)
    assert f"{copied / 'model.safetensors'} does not fit this gcr (" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["image", "label", "logits", "weight", "task"])
def test_a_memory_without_a_column_or_with_another(copied, name):
    file = copied / "memory.safetensors"
    _, columns = read_tensors(file)
    for changed in ({}, {name: columns[name][:3]}, {name: columns[name].to(torch.float64)}):
        file.write_bytes(tensor_bytes({key: column for key, column in columns.items() if key != name} | changed))
        with pytest.raises(BadInput, match=r"is missing or of another shape|image or label is missing") as error:
            load_run(copied)
        assert str(error.value).startswith(f"{file} does not fit the run (")
    file.write_bytes(tensor_bytes(columns | {"label": columns["label"] + 99}))
    with pytest.raises(BadInput, match=r"label must be 0 to 9\); move it away"):
        load_run(copied)


def test_files_of_another_run_are_not_taken(copied, tmp_path):
    other = trained(tmp_path / "other", "er", model="mlp", lr=0.2)
    for name in ("model.safetensors", "memory.safetensors", "result.json"):
        whole = (copied / name).read_bytes()
        (copied / name).write_bytes((other / name).read_bytes())
        with pytest.raises(BadInput, match=r"not the file that result\.json names|is of another run"):
            load_run(copied)
        (copied / name).write_bytes(whole)
    load_run(copied)


def test_tensors_that_a_method_predicts_with_are_checked(tmp_path):
    path = trained(tmp_path, "icarl", model="mlp")
    saved = read_model(path / "model.safetensors")
    (path / "model.safetensors").write_bytes(replace(saved, extras={"means": saved.extras["means"][:3]}).to_bytes())
    with pytest.raises(BadInput, match=r"extra.means is \(3, 100\) there, \(10, 100\) here"):
        load_run(path)


def test_a_network_travels_between_machines(folder, tmp_path):
    home = RunFolder(tmp_path / "home/seed-0")
    home.begin(RunFolder(folder).experiment())
    home.receive(RunFolder(folder).contents(finished=True))
    assert torch.equal(load_run(home.path).net.head.weight, load_run(folder).net.head.weight)


# --- Packed files: what is written is read, and what is not such a file is refused by name

HEADER = {"format": "gcr-runs", "version": 1}
LINE = {"path": "er/seed-0", "experiment": {"seed": 0}, "result": {"steps": 9}}


def write(file, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_bytes(gzip.compress("\n".join(texts).encode()))
    return file


def test_what_is_written_is_read(tmp_path):
    values = {"experiment": {"seed": 0}, "result": {"steps": 9}}
    content = packed_bytes([("b/seed-0", values), ("a-b/seed-0", values), ("a/seed-0", values | {"metrics": [{}]})])
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    runs, bad = read_packed(tmp_path / "x.jsonl.gz")
    assert [run.name for run in runs] == ["a/seed-0", "a-b/seed-0", "b/seed-0"]  # as folders are sorted
    assert not bad
    assert runs[0].path == tmp_path / "x.jsonl.gz/a/seed-0"
    assert [len(run.metrics()) for run in runs] == [1, 0, 0]
    assert runs[0].result() == {"steps": 9}
    assert runs[0].experiment_values() == {"seed": 0}
    assert runs[0].memory() is None


def test_equal_runs_give_equal_bytes():
    runs = [("b/seed-0", {"experiment": {}}), ("a/seed-0", {"experiment": {}})]
    assert packed_bytes(runs) == packed_bytes(runs[::-1])
    assert packed_bytes(runs)[4:8] == bytes(4)  # no time in the header


def test_paths_lead_into_the_file(tmp_path):
    file = write(tmp_path / "x.jsonl.gz", HEADER, LINE)
    assert split_path(file) == (file, "")
    assert split_path(file / "er/seed-0") == (file, "er/seed-0")
    assert split_path(tmp_path / "y.jsonl.gz/er") is None
    assert split_path(tmp_path) is None
    (tmp_path / "folder.jsonl.gz").mkdir()
    assert split_path(tmp_path / "folder.jsonl.gz/er") is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "levels deep"),
        ([1], "must be a JSON object, got list"),
        ({"experiment": {}}, "path must be like run-name/seed-0, got None"),
        (LINE | {"path": "seed-0"}, "path must be like run-name/seed-0"),
        (LINE | {"path": "/etc/seed-0"}, "path must be like"),
        (LINE | {"path": "er/../seed-0"}, "path must be like"),
        (LINE | {"experiment": 3}, "experiment of er/seed-0 must be a JSON object"),
        ({"path": "er/seed-0", "experiment": {}}, "result of er/seed-0 must be a JSON object"),
        (LINE | {"metrics": {}}, "metrics of er/seed-0 must be a JSON array"),
    ],
)
def test_a_bad_line_is_named_and_the_others_stand(tmp_path, line, why):
    runs, (bad,) = read_packed(write(tmp_path / "x.jsonl.gz", HEADER, line, LINE, ""))
    assert [run.name for run in runs] == ["er/seed-0"]
    assert bad.number == 2
    assert why in bad.why


def test_a_run_that_is_there_twice(tmp_path):
    runs, (bad,) = read_packed(write(tmp_path / "x.jsonl.gz", HEADER, LINE, LINE))
    assert len(runs) == 1
    assert bad.why == "path er/seed-0 is there twice"


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps(HEADER).encode() + b"\n\xff\xfe\n"))
    runs, bad = read_packed(tmp_path / "x.jsonl.gz")
    assert (len(runs), len(bad)) == (0, 1)


WHOLE = gzip.compress((json.dumps(HEADER) + "\n" + json.dumps(LINE) + "\n").encode())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (WHOLE[:-12], "damaged, cut short, or not packed by gzip"),
        (WHOLE[:20] + bytes([WHOLE[20] ^ 255]) + WHOLE[21:], "cannot be read"),
        (b"no gzip at all", "damaged, cut short, or not packed by gzip"),
        (b"", "no packed runs"),
        (gzip.compress(b""), "no packed runs"),
        (gzip.compress(json.dumps(LINE).encode()), "no packed runs"),
        (gzip.compress(json.dumps(HEADER | {"diverged": {"../x": "NaN"}}).encode()), "must be reasons by path"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 2}'), "format version 2, this gcr knows version 1"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 1}' + b"\n" * 20_000), "too many lines that are no runs"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 1}\n' + b"x" * 2**26), "bytes, or 33554432 in a line"),
    ],
    ids=[
        "cut",
        "flipped",
        "not gzip",
        "nothing",
        "empty",
        "no header",
        "diverged",
        "newer",
        "blank lines",
        "a long line",
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, why):
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    with pytest.raises(BadFile, match=why) as error:
        read_packed(tmp_path / "x.jsonl.gz")
    assert str(error.value).startswith(str(tmp_path / "x.jsonl.gz"))
    assert "\n" not in str(error.value)


def test_losses_of_a_memory_come_back(tmp_path):
    run = load_run(trained(tmp_path, "er", selector="balanced-reservoir", model="mlp", evict="loss"))
    assert bool((run.memory.columns["loss"][: len(run.memory)] > 0).any())
