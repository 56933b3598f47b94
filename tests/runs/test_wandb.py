"""Weights & Biases, offline: every number once, whatever happens to the run or to the tracker."""

import json

import pytest
from conftest import HANG_SECONDS

from gcr.experiments.experiment import compose
from gcr.runs.engine import run_all
from gcr.runs.folder import TRIALS, RunFolder
from gcr.runs.job import Event, Execution, Job
from gcr.runs.tracking import reporter, tracked, wandb_runs
from gcr.settings import BadInput
from gcr.training import Epoch

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(reporter, "CLOSE_SECONDS", HANG_SECONDS)  # a busy machine reports late
    monkeypatch.setattr(wandb_runs, "INIT_SECONDS", HANG_SECONDS)
    monkeypatch.chdir(tmp_path)  # where it would leave things that were not asked for
    wandb.teardown()  # it reads its variables once in a process
    yield
    wandb.teardown()


def make_job(out):
    experiment = compose("seq-digits", "er", overrides={"epochs": 1, "model": "mlp"})
    job = Job(experiment, RunFolder.of(out, experiment))
    job.folder.begin(job.experiment)
    return job


def epoch(number):
    return Epoch(
        0, number, steps=10 * (number + 1), total_steps=30, loss=1.0 / (number + 1), accuracy=50.0, seconds=0.1
    )


def send(job, how, *events):
    remarks = []
    with tracked([job], lambda event: remarks.append(event.remark), how) as listen:
        for event in events:
            if event.epoch is not None:
                job.folder.add_epoch(event.epoch)
            listen(event)
    return [remark for remark in remarks if remark]


def records(folder):
    """Of all files that ``wandb sync`` would read, in the order in which they were begun."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # its process has then written everything
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        store = DataStore()
        store.open_for_scan(str(file))
        while (raw := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(raw)
            found.append(record)
    return found


def history(found, name):
    lines = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]
    return [(line[wandb_runs.STEPS], line[name]) for line in lines if name in line]


def runs(found):
    return [record.run for record in found if record.HasField("run")]


def test_a_run_that_is_stopped_and_continued(tmp_path):
    job, how = make_job(tmp_path / "runs"), Execution(track="wandb")
    assert send(job, how, Event(0, epoch=epoch(0)), Event(0, epoch=epoch(1)), Event(0, stopped=True)) == []
    job.folder.cut_metrics(1)  # the second epoch is after the checkpoint
    accuracy = {"accuracy": 91.0, "forgetting": None, "matrix": [[91.0]]}
    job.folder.finish({"class_il": accuracy, "task_il": accuracy, "steps": 30, "seconds": 3.0}, None)
    send(job, how, Event(0, epoch=epoch(1)), Event(0, epoch=epoch(2)), Event(0, accuracy=91.0))
    found = records(tmp_path / "runs")
    assert history(found, "training/loss") == [(10, 1.0), (20, 0.5), (30, pytest.approx(1 / 3))]
    assert history(found, "class_il/accuracy") == [(30, 91.0)]
    assert [record.exit.exit_code for record in found if record.HasField("exit")] == [1, 0]
    remembered = json.loads((job.folder.path / wandb_runs.REMEMBERED).read_text())
    assert {run.run_id for run in runs(found)} == {remembered["id"]}
    assert {(run.project, run.display_name) for run in runs(found)} == {("seq-digits", "seq-digits-er-k100/seed-0")}
    config = {item.key: json.loads(item.value_json) for item in runs(found)[0].config.update}
    assert {name: config[name] for name in job.experiment.settings} == json.loads(
        json.dumps(dict(job.experiment.settings))
    )
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]

    send(job, how, Event(0, accuracy=91.0))  # reported again: all of it is there already
    assert history(records(tmp_path / "runs"), "class_il/accuracy") == [(30, 91.0)]
    send(job, Execution(track="wandb", fresh=True), Event(0, epoch=epoch(0)), Event(0, error="it diverged"))
    assert len({run.run_id for run in runs(records(tmp_path / "runs"))}) == 2


def test_trials_are_next_to_the_runs_with_a_tag(tmp_path):
    for out in (tmp_path, tmp_path / TRIALS):
        send(make_job(out), Execution(track="wandb"), Event(0, epoch=epoch(0)))
    assert not (tmp_path / TRIALS / "wandb").exists()
    assert sorted(list(run.tags) for run in runs(records(tmp_path))) == [[], [wandb_runs.TRIAL]]


def test_a_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(wandb_runs, "INIT_SECONDS", 1.0)
    job = make_job(tmp_path)
    remarks = []
    ending = run_all([job], lambda event: remarks.append(event.remark), Execution("cpu", track="wandb"))
    assert ending.failed == 0
    assert job.folder.finished
    (remark,) = filter(None, remarks)
    assert remark.startswith("not tracked by wandb any more (CommError: ")


def test_without_a_key_it_says_so_before_training(monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(BadInput, match="needs an API key; run wandb login, or set WANDB_MODE=offline"):
        run_all([], lambda event: None, Execution("cpu", track="wandb"))


def test_a_damaged_memory_of_the_run_is_a_new_run(tmp_path):
    job = make_job(tmp_path)
    (job.folder.path / wandb_runs.REMEMBERED).write_text("{")
    assert send(job, Execution(track="wandb"), Event(0, epoch=epoch(0)), Event(0, stopped=True)) == []
    assert history(records(tmp_path), "training/loss") == [(10, 1.0)]
