"""How long runs will take: measured once, kept, and never more than was allowed."""

import pytest
import torch
from conftest import HANG_SECONDS
from made_runs import finish

from gcr.experiments.experiment import compose
from gcr.files import read_json
from gcr.runs import estimate
from gcr.runs.estimate import Estimator, shape_and_examples
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.scenarios import load
from gcr.training import Run

CPU = torch.device("cpu")


def estimator_in(folder):
    return Estimator(folder / "estimate.json", Execution("cpu"), CPU)


def some(*methods, **overrides):
    return [compose("seq-digits", method, overrides={"model": "mlp"} | overrides) for method in methods]


def test_kinds_are_measured_once_and_kept(tmp_path):
    experiments = some("er", "gcr", "gem", "icarl", "gss")
    estimator = estimator_in(tmp_path)
    estimator.measure(experiments, HANG_SECONDS)
    assert len(estimator.steps) == 5
    assert all(seconds > 0 for seconds in estimator.steps.values())
    assert read_json(tmp_path / "estimate.json") == estimator.steps
    again = estimator_in(tmp_path)
    again.measure(experiments, HANG_SECONDS)
    assert again.steps == estimator.steps
    assert {each.source for each in again.estimates(experiments)} == {"measured steps"}


def test_an_estimate_is_steps_times_seconds(tmp_path):
    (experiment,) = some("er", epochs=4)
    estimator = estimator_in(tmp_path)
    estimator.steps[estimator.kind(experiment)] = 0.5
    assert estimator.estimate(experiment).seconds == pytest.approx(0.5 * 4 * 1442 / 32, rel=0.01)


def test_time_is_bounded_and_the_rest_by_arithmetic(tmp_path):
    experiments = some("er", "gcr")
    estimator = estimator_in(tmp_path)
    estimator.measure(experiments, 1e-9)
    assert len(estimator.steps) == 0 or len(estimator.steps) == 1
    estimator.steps = {estimator.kind(experiments[0]): 0.01}
    known, guessed = estimator.estimates(experiments)
    assert (known.source, guessed.source) == ("measured steps", "arithmetic")
    assert guessed.seconds > known.seconds  # it replays more
    other = some("er", model="convnet")
    assert estimator.estimates(other) == [None]
    assert estimator.weights(other)[0] > 0


def test_finished_runs_say_it_better(tmp_path):
    (experiment,) = some("er")
    job = Job(experiment, RunFolder.of(tmp_path, experiment))
    finish(job)  # 2 seconds for 100 steps
    estimator = estimator_in(tmp_path)
    estimator.steps[estimator.kind(experiment)] = 5.0
    estimator.learn([job])
    (found,) = estimator.estimates([experiment])
    assert found.source == "finished runs"
    assert found.seconds == pytest.approx(0.02 * 10 * 1442 / 32, rel=0.01)


def test_a_file_that_is_not_ours_is_measured_anew(tmp_path):
    (tmp_path / "estimate.json").write_text('{"er": "soon"}')
    assert estimator_in(tmp_path).steps == {}


def test_shapes_are_known_without_the_data(cache):
    assert shape_and_examples("seq-cifar10") == ((3, 32, 32), 50_000)
    assert shape_and_examples("seq-tinyimagenet") == ((3, 64, 64), 100_000)
    digits = load("seq-digits").train
    assert shape_and_examples("seq-digits") == (tuple(digits.pixels.shape[1:]), len(digits.labels))


def test_the_images_of_an_estimate_are_made_up(cache, tmp_path, monkeypatch):
    """A ResNet on CIFAR's shape without CIFAR, in a small batch."""
    experiment = compose("seq-cifar10", "er")
    batches = []

    def note_batch(**given):
        batches.append(given["training"].batch)
        return Run(**given)

    monkeypatch.setattr(estimate, "Run", note_batch)
    assert estimator_in(tmp_path)._seconds_of_a_step(experiment) > 0
    assert batches == [estimate.SMALL_BATCH]
