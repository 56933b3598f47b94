"""The Ray engine's decisions, with a stand-in for Ray that trains in this process and fails on request."""

import pickle
import tempfile
import threading
from contextlib import ExitStack

import pytest
import ray_nodes  # noqa: F401
from conftest import HANG_SECONDS

from gcr.experiments.experiment import compose
from gcr.files import this_process
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.signals import Stop
from gcr.settings import BadInput
from gcr.training.checkpoint import Checkpoints

exceptions = pytest.importorskip("ray.exceptions")

from gcr.runs.ray import node as ray_node  # noqa: E402
from gcr.runs.ray.cluster import Cluster  # noqa: E402
from gcr.runs.ray.engine import RETRIES, Dispatch  # noqa: E402

ON_CPU = Execution("cpu", engine="ray")


class Ray:
    """``behave(task, number of the try)`` gives what a task sends; an exception among it is raised."""

    def __init__(self, behave, resources=({"CPU": 1},)):
        self.behave, self.resources, self.tasks, self.selectors = behave, resources, [], []

    def nodes(self):
        return [{"NodeID": f"n{i}", "Alive": True, "Resources": r} for i, r in enumerate(self.resources)]

    def remote(self, function):
        return Function(self)

    def wait(self, running, num_returns, timeout):
        return running[:1], running[1:]

    def get(self, arrived):
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def cancel(self, messages, force):
        pass


class Function:
    def __init__(self, ray):
        self.ray = ray

    def options(self, **options):
        self.ray.selectors.append(options.get("label_selector"))
        return self

    def remote(self, wanted, packed):
        self.ray.tasks.append(pickle.loads(packed))
        return iter(self.ray.behave(self.ray.tasks[-1], len(self.ray.tasks)))


def make_jobs(out, n=1, epochs=2):
    overrides = {"epochs": epochs, "model": "mlp", "buffer": 50}
    experiments = [compose("seq-digits", "er", seed=seed, overrides=overrides) for seed in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def dispatch(ray, jobs, how=ON_CPU):
    """All events, of jobs that went through the engine."""
    events = []
    with ExitStack() as locks:
        Dispatch(Cluster(ray), jobs, events.append, how, locks).run(Stop())
    return events


def trained(task, **changes):
    return ray_node.train(pickle.dumps(ray_node.Task(**(vars(task) | changes))))


def test_a_lost_task_goes_on_from_the_checkpoint_at_home(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_node, "PULSE_SECONDS", 0.02)
    read, save = RunFolder.contents, Checkpoints.save
    saves, twice, sent = [], threading.Event(), threading.Event()

    def save_and_wait(checkpoints, state):
        save(checkpoints, state)
        saves.append(state.steps)
        if len(saves) == 2:
            twice.set()
            assert sent.wait(HANG_SECONDS)

    def read_late(folder, finished, checkpoints=1):
        if tmp_path in folder.path.parents:  # at home
            return read(folder, finished, checkpoints)
        assert twice.wait(HANG_SECONDS)  # the checkpoint is newer than the messages sent so far
        files = read(folder, finished, checkpoints)
        sent.set()
        return files

    monkeypatch.setattr(Checkpoints, "save", save_and_wait)
    monkeypatch.setattr(RunFolder, "contents", read_late)

    def behave(task, attempt):
        messages = trained(task, send_seconds=0.0)
        for message in messages:
            yield message
            if attempt == 1 and any("checkpoint" in name for files in message.files.values() for name in files):
                messages.close()
                yield exceptions.WorkerCrashedError()

    ray = Ray(behave)
    (job,) = make_jobs(tmp_path, epochs=6)
    events = dispatch(ray, [job])
    assert len(ray.tasks) == 2
    assert not ray.tasks[0].jobs[0].files
    metrics, checkpoint = ray.tasks[1].jobs[0].files
    assert metrics == "metrics.jsonl"
    assert checkpoint.startswith("checkpoint-")
    assert [event.epoch.steps for event in events if event.epoch] == sorted({e.epoch.steps for e in events if e.epoch})
    assert len([event for event in events if event.epoch]) == 5 * 6
    assert events[-1].accuracy is not None
    assert job.folder.finished
    assert not job.folder.saved


def test_scratch_of_a_killed_worker_goes_when_another_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machine = this_process().split("-")[0]
    left, alive, foreign = (
        tmp_path / f".gcr.abc.{who}.part" for who in (f"{machine}-{2**31}", this_process(), f"{'0' * 8}-{2**31}")
    )
    for folder in (left, alive, foreign):
        (folder / "0").mkdir(parents=True)
    (job,) = make_jobs(tmp_path / "runs")
    dispatch(Ray(lambda task, attempt: trained(task)), [job])
    assert job.folder.finished
    assert sorted(path.name for path in tmp_path.glob(".gcr.*")) == sorted([alive.name, foreign.name])


def test_a_task_gets_both_checkpoints_for_one_may_be_damaged(tmp_path):
    (job,) = make_jobs(tmp_path)
    job.folder.begin(job.experiment)
    for steps in (3, 6):
        (job.folder.path / f"checkpoint-{steps:09d}.safetensors").write_bytes(b"damaged")
    ray = Ray(lambda task, attempt: trained(task))
    events = dispatch(ray, [job])
    assert [*ray.tasks[0].jobs[0].files] == ["checkpoint-000000003.safetensors", "checkpoint-000000006.safetensors"]
    remarks = [event.remark for event in events if event.remark]
    assert ["is not a complete checkpoint" in remark for remark in remarks] == [True, True, False]
    assert str(job.folder.path) in remarks[0]
    assert job.folder.finished


def test_a_job_that_is_lost_again_and_again_fails(tmp_path):
    ray = Ray(lambda task, attempt: iter([exceptions.WorkerCrashedError()]))
    jobs = make_jobs(tmp_path, 2)
    events = dispatch(ray, jobs)
    assert len(ray.tasks) == 2 * (1 + RETRIES)
    errors = [event for event in events if event.error]
    assert {event.job for event in errors} == {0, 1}
    assert all("lost 4 times" in event.error for event in errors)
    with jobs[0].folder.locked():
        pass


def test_an_error_in_a_task_is_not_tried_again(tmp_path):
    failure = exceptions.RayTaskError("train", "Traceback …", MemoryError("no more"))
    ray = Ray(lambda task, attempt: iter([failure]))
    (event,) = dispatch(ray, make_jobs(tmp_path))
    assert "MemoryError" in event.error
    assert len(ray.tasks) == 1


def test_an_unfit_node_is_avoided(tmp_path):
    def behave(task, attempt):
        return [("n0", "10.0.0.1", "torch is 2.0.0 there")] if attempt == 1 else trained(task)

    ray = Ray(behave, ({"CPU": 1}, {"CPU": 1}))
    events = dispatch(ray, make_jobs(tmp_path))
    assert ray.selectors == [None, {"ray.io/node-id": "!in(n0)"}]
    assert "node 10.0.0.1 is left out: torch is 2.0.0 there" in [event.remark for event in events]
    assert events[-1].accuracy is not None


def test_no_node_is_fit(tmp_path):
    ray = Ray(lambda task, attempt: [("n0", "10.0.0.1", "torch is 2.0.0 there")])
    with pytest.raises(BadInput, match=r"no node of the Ray cluster can train: node 10.0.0.1"):
        dispatch(ray, make_jobs(tmp_path))


def test_no_node_has_what_is_asked_for(tmp_path):
    with pytest.raises(BadInput, match=r"no node of the Ray cluster has 1 CPU and 0.5 GPU; .*--device cpu"):
        dispatch(Ray(None), make_jobs(tmp_path), Execution("cuda", engine="ray", gpus=0.5))


def test_packs_on_gpus(tmp_path):
    """Packs of the size that is asked for; else all jobs spread over the GPUs."""
    node = {"CPU": 8, "GPU": 1}
    lost = [exceptions.RayTaskError("train", "", ValueError("no GPU here"))]
    for pack, sizes in ((3, [3, 2]), (0, [3, 2]), (1, [1] * 5)):
        ray = Ray(lambda task, attempt: lost, (node, node))
        dispatch(ray, make_jobs(tmp_path, 5), Execution("cuda", engine="ray", pack=pack))
        assert [len(task.jobs) for task in ray.tasks] == sizes
    ray = Ray(lambda task, attempt: lost, ({"CPU": 8, "GPU": 2},))
    dispatch(ray, make_jobs(tmp_path, 3), Execution("cuda", engine="ray", gpus=2))  # each run on both
    assert [len(task.jobs) for task in ray.tasks] == [1] * 3


def test_a_folder_that_another_command_trains_is_respected(tmp_path):
    ray = Ray(lambda task, attempt: trained(task))
    jobs = make_jobs(tmp_path, 2)
    with jobs[0].folder.locked():
        events = dispatch(ray, jobs)
    (error,) = [event for event in events if event.error]
    assert error.job == 0
    assert "is being trained by process" in error.error
    assert jobs[1].folder.finished
    assert not jobs[0].folder.finished


def test_a_home_folder_that_cannot_be_written_fails_its_job(tmp_path):
    (job,) = make_jobs(tmp_path)

    def behave(task, attempt):
        messages = list(trained(task))
        (job.folder.path / "result.json").mkdir()
        return messages

    events = dispatch(Ray(behave), [job])
    assert events[-1].error.startswith(f"{job.folder.path / 'result.json'}: Is a directory; ")


def test_a_pack_of_several_jobs_sends_results_last(tmp_path):
    jobs = make_jobs(tmp_path, 2, epochs=1)
    sent = [ray_node.JobFiles(7 + i, job.experiment, "", str(job.folder.path), {}) for i, job in enumerate(jobs)]
    messages = list(trained(ray_node.Task(sent, Execution("cpu", engine="ray"), 60.0, None)))
    ends = [event.job for message in messages for event in message.events if event.accuracy is not None]
    assert ends == [7, 8]
    files = {number: list(files) for message in messages for number, files in message.files.items()}
    assert files == {key: ["metrics.jsonl", "memory.safetensors", "model.safetensors", "result.json"] for key in (7, 8)}


def test_messages_name_the_folder_at_home(tmp_path):
    (job,) = make_jobs(tmp_path)
    files = {"checkpoint-000000001.safetensors": b"damaged"}
    sent = ray_node.JobFiles(0, job.experiment, "", "runs/home", files)
    messages = list(trained(ray_node.Task([sent], Execution("cpu", engine="ray"), 60.0, None)))
    remarks = [event.remark for message in messages for event in message.events if event.remark]
    assert "no whole checkpoint in runs/home; starting from the beginning" in remarks
