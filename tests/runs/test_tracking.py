"""TensorBoard, MLflow and Weights & Biases: every number once, whatever happens to the run or to the tracker."""

import importlib.util
import json
import threading

import pytest
from conftest import HANG_SECONDS

from gcr.experiments.experiment import compose
from gcr.runs import trackers, tracking
from gcr.runs.engine import run_all
from gcr.runs.folder import TRIALS, RunFolder
from gcr.runs.job import Event, Execution, Job
from gcr.runs.tracking import tracked
from gcr.settings import BadInput
from gcr.training import Epoch


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine reports late."""
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", HANG_SECONDS)


def make_job(out, epochs=1):
    experiment = compose("seq-digits", "er", overrides={"epochs": epochs, "model": "mlp"})
    return Job(experiment, RunFolder.of(out, experiment))


def epoch(number):
    return Epoch(
        0, number, steps=10 * (number + 1), total_steps=30, loss=1.0 / (number + 1), accuracy=50.0, seconds=0.1
    )


def send(job, how, *events):
    """What a command says, and then it ends. Metrics are written as a run does."""
    remarks = []
    with tracked([job], lambda event: remarks.append(event.remark), how) as listen:
        for event in events:
            if event.epoch is not None:
                job.folder.add_epoch(event.epoch)
            listen(event)
    return [remark for remark in remarks if remark]


def stopped_and_continued(job, how):
    """Stopped after two epochs, of which the second is after the checkpoint; then trained to the end."""
    job.folder.begin(job.experiment)
    send(job, how, Event(0, epoch=epoch(0)), Event(0, epoch=epoch(1)), Event(0, stopped=True))
    job.folder.cut_metrics(1)
    accuracy = {"accuracy": 91.0, "forgetting": None, "matrix": [[91.0]]}
    job.folder.finish({"class_il": accuracy, "task_il": accuracy, "steps": 30, "seconds": 3.0}, None)
    send(job, how, Event(0, epoch=epoch(1)), Event(0, epoch=epoch(2)), Event(0, accuracy=91.0))


def scalars(job):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(job.folder.path / "tensorboard"))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_event_files_have_what_metrics_have(tmp_path):
    pytest.importorskip("tensorboard")
    job = make_job(tmp_path)
    assert run_all([job], lambda event: None, Execution("cpu", track="tensorboard")).failed == 0
    lines = [json.loads(line) for line in (job.folder.path / "metrics.jsonl").read_text().splitlines()]
    reported = scalars(job)
    for name in ("loss", "accuracy", "seconds"):
        assert reported[f"training/{name}"] == [(line["steps"], pytest.approx(line[name])) for line in lines]
    result = job.folder.result()
    for protocol in ("class_il", "task_il"):
        assert reported[f"{protocol}/forgetting"] == [(result["steps"], pytest.approx(result[protocol]["forgetting"]))]


def test_event_files_of_a_continued_run(tmp_path):
    pytest.importorskip("tensorboard")
    job = make_job(tmp_path)
    stopped_and_continued(job, Execution(track="tensorboard"))
    reported = scalars(job)
    assert [step for step, _ in reported["training/loss"]] == [10, 20, 30]
    assert reported["class_il/accuracy"] == [(30, 91.0)]
    assert len(list((job.folder.path / "tensorboard").iterdir())) == 1


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)  # where it would leave things that were not asked for
    for name, value in trackers.MLFLOW_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    from mlflow.tracking import MlflowClient

    return MlflowClient


def test_mlflow_runs(mlflow, tmp_path):
    job = make_job(tmp_path / "runs")
    stopped_and_continued(job, Execution(track="mlflow"))
    client = mlflow(f"sqlite:///{tmp_path}/runs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("seq-digits").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "seq-digits-er-k100/seed-0"
    assert run.data.params == {name: str(value) for name, value in job.experiment.settings.items()}
    history = client.get_metric_history(run.info.run_id, "training/loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 1.0), (20, 0.5), (30, 1 / 3)]
    assert run.data.metrics["class_il/accuracy"] == 91.0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]

    send(job, Execution(track="mlflow"), Event(0, accuracy=91.0))  # reported again, all of it is there already
    assert len(client.get_metric_history(run.info.run_id, "class_il/accuracy")) == 1
    send(job, Execution(track="mlflow", fresh=True), Event(0, epoch=epoch(0)), Event(0, error="it diverged"))
    newest, _ = client.search_runs([run.info.experiment_id])
    assert newest.info.status == "FAILED"


def test_trials_are_in_the_same_mlflow_store_with_a_tag(mlflow, tmp_path):
    for out in (tmp_path, tmp_path / TRIALS):
        job = make_job(out)
        job.folder.begin(job.experiment)
        send(job, Execution(track="mlflow"), Event(0, epoch=epoch(0)))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("mlflow.db")] == ["mlflow.db"]
    client = mlflow(f"sqlite:///{tmp_path}/mlflow.db")
    scenario = client.get_experiment_by_name("seq-digits").experiment_id
    tags = [run.data.tags.get(trackers.MLFLOW_TRIAL) for run in client.search_runs([scenario])]
    assert sorted(tags, key=str) == [None, "true"]


def test_an_mlflow_store_that_does_not_answer(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    job = make_job(tmp_path)
    remarks = []
    ending = run_all([job], lambda event: remarks.append(event.remark), Execution("cpu", track="mlflow"))
    assert ending.failed == 0
    assert job.folder.finished
    (remark,) = filter(None, remarks)
    assert remark.startswith("not tracked by mlflow any more (")


def test_what_a_tracker_raises_is_said_once_and_others_go_on(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")

    class Broken:
        name, needs = "broken", ()

        def __init__(self, fresh):
            pass

        def open(self, job):
            raise OSError("no space left on device")

    monkeypatch.setattr(tracking, "TRACKERS", (*tracking.TRACKERS, Broken))
    job = make_job(tmp_path)
    job.folder.begin(job.experiment)
    reported = send(job, Execution(track="broken,tensorboard"), *(Event(0, epoch=epoch(n)) for n in range(3)))
    assert len(reported) == 1
    assert "no space left on device" in reported[0]
    assert len(scalars(job)["training/loss"]) == 3


def test_training_does_not_wait_for_a_tracker(tmp_path, monkeypatch):
    release = threading.Event()

    class Slow:
        name, needs = "slow", ()

        def __init__(self, fresh):
            pass

        def open(self, job):
            release.wait(HANG_SECONDS)
            raise RuntimeError

    monkeypatch.setattr(tracking, "TRACKERS", (Slow,))
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.1)
    job = make_job(tmp_path)
    job.folder.begin(job.experiment)
    reported = send(job, Execution(track="slow"), *(Event(0, epoch=epoch(n)) for n in range(3)))
    release.set()
    assert reported == ["slow did not take all in 0.1 seconds; the rest is left out"]


def test_a_run_that_never_began_is_nobodys(tmp_path):
    """Another command may be training it."""
    pytest.importorskip("tensorboard")
    job = make_job(tmp_path)
    send(job, Execution(track="tensorboard"), Event(0, error="seed-0 is being trained by process 7"))
    assert not (job.folder.path / "tensorboard").exists()


@pytest.mark.parametrize(
    ("name", "missing"), [("tensorboard", "tensorboard"), ("mlflow", "alembic"), ("wandb", "wandb")]
)
def test_a_library_that_is_missing(name, missing, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == missing else find(module))
    with pytest.raises(BadInput, match=rf"needs .*{missing}.*pip install 'gradient-coreset-replay\[{name}\]'"):
        run_all([], lambda event: None, Execution("cpu", track=name))


def test_an_unknown_tracker():
    with pytest.raises(BadInput, match=r'unknown tracker "tensorbord" .did you mean "tensorboard"'):
        run_all([], lambda event: None, Execution("cpu", track="tensorbord"))


# --- Weights & Biases, offline: every number once, whatever happens to the run or to the tracker


@pytest.fixture
def offline(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(trackers, "WANDB_INIT_SECONDS", HANG_SECONDS)  # a busy machine reports late
    monkeypatch.chdir(tmp_path)  # where it would leave things that were not asked for
    wandb.teardown()  # it reads its variables once in a process
    yield
    wandb.teardown()


def begun_job(out):
    job = make_job(out)
    job.folder.begin(job.experiment)
    return job


def records(folder):
    """Of all files that ``wandb sync`` would read, in the order in which they were begun."""
    import wandb
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
    return [(line[trackers.WANDB_STEPS], line[name]) for line in lines if name in line]


def runs(found):
    return [record.run for record in found if record.HasField("run")]


@pytest.mark.usefixtures("offline")
def test_a_run_that_is_stopped_and_continued(tmp_path):
    job, how = begun_job(tmp_path / "runs"), Execution(track="wandb")
    assert send(job, how, Event(0, epoch=epoch(0)), Event(0, epoch=epoch(1)), Event(0, stopped=True)) == []
    job.folder.cut_metrics(1)  # the second epoch is after the checkpoint
    accuracy = {"accuracy": 91.0, "forgetting": None, "matrix": [[91.0]]}
    job.folder.finish({"class_il": accuracy, "task_il": accuracy, "steps": 30, "seconds": 3.0}, None)
    send(job, how, Event(0, epoch=epoch(1)), Event(0, epoch=epoch(2)), Event(0, accuracy=91.0))
    found = records(tmp_path / "runs")
    assert history(found, "training/loss") == [(10, 1.0), (20, 0.5), (30, pytest.approx(1 / 3))]
    assert history(found, "class_il/accuracy") == [(30, 91.0)]
    assert [record.exit.exit_code for record in found if record.HasField("exit")] == [1, 0]
    remembered = json.loads((job.folder.path / trackers.WANDB_FILE).read_text())
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


@pytest.mark.usefixtures("offline")
def test_trials_are_next_to_the_runs_with_a_tag(tmp_path):
    for out in (tmp_path, tmp_path / TRIALS):
        send(begun_job(out), Execution(track="wandb"), Event(0, epoch=epoch(0)))
    assert not (tmp_path / TRIALS / "wandb").exists()
    assert sorted(list(run.tags) for run in runs(records(tmp_path))) == [[], [trackers.WANDB_TRIAL]]


@pytest.mark.usefixtures("offline")
def test_a_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(trackers, "WANDB_INIT_SECONDS", 1.0)
    job = begun_job(tmp_path)
    remarks = []
    ending = run_all([job], lambda event: remarks.append(event.remark), Execution("cpu", track="wandb"))
    assert ending.failed == 0
    assert job.folder.finished
    (remark,) = filter(None, remarks)
    assert remark.startswith("not tracked by wandb any more (CommError: ")


@pytest.mark.usefixtures("offline")
def test_without_a_key_it_says_so_before_training(monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(BadInput, match="needs an API key; run wandb login, or set WANDB_MODE=offline"):
        run_all([], lambda event: None, Execution("cpu", track="wandb"))


@pytest.mark.usefixtures("offline")
def test_a_damaged_memory_of_the_run_is_a_new_run(tmp_path):
    job = begun_job(tmp_path)
    (job.folder.path / trackers.WANDB_FILE).write_text("{")
    assert send(job, Execution(track="wandb"), Event(0, epoch=epoch(0)), Event(0, stopped=True)) == []
    assert history(records(tmp_path), "training/loss") == [(10, 1.0)]
