"""Runs on a Ray cluster: as here, to the number, whatever happens to its nodes; and who may use one."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import HANG_SECONDS, wait_until
from ray_nodes import LOOPBACK, SLOW_CLOCK, cluster, open_ports

from gcr.cli.main import run_cli
from gcr.experiments.experiment import compose
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.ray import cluster as ray_cluster
from gcr.runs.ray import engine as ray_engine
from gcr.runs.ray.cluster import WITHOUT_TOKEN, Request, check, find_head, joined, require_token
from gcr.settings import BadInput

pytest.importorskip("ray")

MEASURED = {"seconds", "finished", "peak_bytes", "digest", "files"}
exec(SLOW_CLOCK)  # of clusters that this process begins


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine answers late."""
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", HANG_SECONDS)


def make_jobs(out, n=2, epochs=1, scenario="seq-digits"):
    overrides = {"epochs": epochs, "model": "mlp", "buffer": 50}
    experiments = [compose(scenario, "er", seed=seed, overrides=overrides) for seed in range(n)]
    return [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]


def numbers(job):
    result = job.folder.result()
    lines = [json.loads(line) for line in (job.folder.path / "metrics.jsonl").read_text().splitlines()]
    printed = [{key: each[key] for key in each.keys() - MEASURED} for each in [result, *lines]]
    files = sorted(path.name for path in job.folder.path.iterdir())
    return printed, (job.folder.path / "memory.safetensors").read_bytes(), files


def same_as_here(jobs, out):
    here = [replace(job, folder=RunFolder.of(out, job.experiment)) for job in jobs]
    assert run_all(here, lambda event: None, Execution("cpu", processes=1)).failed == 0
    for ours, theirs in zip(jobs, here, strict=True):
        assert numbers(ours) == numbers(theirs)


@pytest.mark.slow
def test_ray_of_our_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # somebody's cluster, which was not asked for
    jobs, ports = make_jobs(tmp_path / "there"), set()
    run = run_all(jobs, lambda event: ports.update(open_ports()), Execution("cpu", engine="ray", processes=2))
    assert run.failed == 0
    assert len(ports) > 2 or not Path("/proc/net/tcp").exists()
    assert {address for address, _ in ports}.issubset(LOOPBACK)  # nobody elsewhere can reach it
    same_as_here(jobs, tmp_path / "here")


def write_made_set(root):
    """A data set of one's own in the cache at ``root``."""
    from PIL import Image

    from gcr.data.importing import import_set

    for part in ("train", "test"):
        for label in range(2):
            folder = root / "pictures" / part / f"class-{label}"
            folder.mkdir(parents=True)
            for i in range(8):
                pixels = np.random.default_rng(i).integers(0, 120, (8, 8, 3)) + 120 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    import_set("made", [root / "pictures"])


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Cache folders with and without the data set "made"; the first is ours."""
    full, empty = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GCR_DATA", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(full))
        write_made_set(full)
        yield full, empty


@pytest.fixture(scope="module")
def nodes(caches):
    """Two nodes of one CPU: the head, which has the data, and one without it."""
    full, empty = ({"XDG_CACHE_HOME": str(folder)} for folder in caches)
    with cluster(full, empty) as up:
        yield up


@pytest.mark.slow  # as all that begin a real cluster; tests/runs/test_ray_dispatch.py has a node that is left out
def test_a_node_without_the_data_is_left_out(nodes, tmp_path):
    address, _ = nodes
    jobs, remarks = make_jobs(tmp_path, 3, scenario="made"), []
    how = Execution("cpu", engine="ray", address=address)
    assert run_all(jobs, lambda event: remarks.append(event.remark or ""), how).failed == 0
    assert all(job.folder.finished for job in jobs)
    (printed,) = filter(None, remarks)
    assert "is left out: " in printed
    assert "gcr data import" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens", [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "9" * 64}, {"RAY_AUTH_MODE": "disabled"}]
)
def test_a_command_with_another_token(tokens, nodes, tmp_path):
    address, _ = nodes
    command = [sys.executable, "-m", "gcr", "run", "seq-digits", "--out", str(tmp_path / "runs")]
    ended = subprocess.run(
        [*command, "--engine", "ray", "--address", address],
        env=os.environ | tokens,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ended.returncode == 2
    (line,) = (ended.stdout + ended.stderr).strip().splitlines()  # and nothing of Ray's own
    assert f"the Ray cluster at {address} does not accept this command's token; set RAY_AUTH_MODE=token" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_node_that_dies_in_the_middle(nodes, tmp_path, monkeypatch):
    """Every result is there, each epoch was reported once, and the numbers are those of this machine."""
    monkeypatch.setattr(ray_engine, "SEND_SECONDS", 0.5)
    address, begun = nodes
    jobs, events, killed = make_jobs(tmp_path / "there", 3, epochs=25), [], []

    def listen(event):
        events.append(event)
        if not killed and sum(job.folder.saved for job in jobs) == 2:  # each node trains one
            begun[1].kill()
            killed.append(begun[1])

    ending = run_all(jobs, listen, Execution("cpu", engine="ray", address=address))
    assert (ending.failed, ending.signal) == (0, 0)
    assert killed
    lost = [event.job for event in events if "lost with the worker or node" in (event.remark or "")]
    assert len(lost) == 1
    printed = [(event.job, event.epoch.steps) for event in events if event.epoch is not None]
    assert len(printed) == len(set(printed)) == 3 * 5 * 25
    same_as_here([jobs[lost[0]]], tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_cluster_of_our_own(number, code, tmp_path):
    """And the same runs can be finished without Ray."""
    jobs = make_jobs(tmp_path / "there", epochs=40)
    options = ["--method", "er", "--model", "mlp", "--buffer", "50", "--epochs", "40", "--seeds", "0,1"]
    command = [sys.executable, "-m", "gcr", "run", "seq-digits", *options, "--out", str(tmp_path / "there")]
    process = subprocess.Popen([*command, "--engine", "ray"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: all((job.folder.path / ".lock").exists() for job in jobs), "both runs began", process)
    os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == code, printed
    assert "2 of 2 runs are unfinished" in printed
    assert subprocess.run(command, capture_output=True, timeout=HANG_SECONDS).returncode == 0
    same_as_here(jobs, tmp_path / "here")


def test_nothing_listens_at_the_address(monkeypatch):
    monkeypatch.setattr(ray_cluster, "try_to_join", None)  # Ray is not asked
    with pytest.raises(BadInput, match=r"no Ray cluster at 127.0.0.1:1 .*ray start --head"):
        run_all([], lambda event: None, Execution(engine="ray", address="127.0.0.1:1"))


@pytest.mark.parametrize("more", [["--engine", "ray", "--address", "127.0.0.1:1"], ["--track", "wandb"]])
def test_nothing_is_made_for_an_engine_or_tracker_that_is_not_there(more, tmp_path, capsys):
    assert run_cli(["run", "seq-digits", "--out", str(tmp_path / "runs"), *more]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err or "wandb" in more
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("answer", "message"), [(b"SSH-2.0-OpenSSH", "is not the head"), (None, "no answer")])
def test_something_else_listens_at_the_address(answer, message, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", HANG_SECONDS if answer else 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            if answer:
                connection.sendall(answer)
            with suppress(OSError):
                while connection.recv(100):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(BadInput, match=message):
            find_head(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.fixture
def http2_server():
    """The address of something that answers a greeting as Ray's head does, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection):
            connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            with suppress(OSError):
                while connection.recv(4096):
                    pass

        def accept():
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_speaks_http2_and_is_not_ray(http2_server, capfd, monkeypatch):
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 2.0)
    with pytest.raises(BadInput, match=r"is not the head of a Ray cluster; start one with: ray start --head"):
        check(Execution(engine="ray", address=http2_server))
    assert capfd.readouterr() == ("", "")


def test_a_machine_that_is_not_a_node(http2_server, monkeypatch):
    """Ray's head answers, and then Ray looks for a node on this machine for a long time."""
    code = f"import time; print('\\n{ray_cluster.HEAD_ANSWERED}', flush=True); time.sleep({HANG_SECONDS})"
    monkeypatch.setattr(ray_cluster, "ATTEMPT", code)
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 1.0)
    with pytest.raises(BadInput, match=r"cannot join .*; make this machine one of its nodes with: ray start --address"):
        check(Execution(engine="ray", address=http2_server))


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'gradient-coreset-replay\[ray\]'"):
        run_all([], lambda event: None, Execution(engine="ray"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Execution(engine="dask"), 'unknown engine "dask"'),
        (Execution(address="10.0.0.1:6379"), "add --engine ray"),
        (Execution(gpus=4), "gpus are given by Ray, got 4 with the local engine; add --engine ray, or start"),
        (Execution(engine="ray", address="somewhere"), "address must be HOST:PORT"),
        (Execution(engine="ray", device="cuda:1"), "which picks the GPU"),
        (Execution(engine="ray", gpus=0), "gpus must be above 0"),
        (Execution(engine="ray", gpus=1.5), "gpus must be above 0, and whole above 1"),
        (Execution(engine="ray", gpus=2, pack=4), "a pack is trained on one GPU, got --gpus 2 and --pack 4"),
    ],
)
def test_bad_input(how, message):
    with pytest.raises(BadInput, match=message):
        run_all([], lambda event: None, how)


def test_tasks_that_fit_on_a_node():
    assert Request(2).fits({"CPU": 5}) == 2
    assert Request(1, 0.2).fits({"CPU": 8, "GPU": 1}) == 5
    assert Request(1, 0.2).fits({"CPU": 3, "GPU": 1}) == 3
    assert Request(1, 1).fits({"CPU": 8}) == 0


# --- Who may use a Ray cluster: those who have its token, and of a cluster of our own nobody but this machine


@pytest.fixture
def without_ray(monkeypatch, tmp_path):
    """As in a command that has not imported Ray yet, of a user who knows no token."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_a_cluster_of_our_own_gets_a_token(without_ray):
    require_token(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_cluster_elsewhere_needs_one(without_ray, monkeypatch, tmp_path):
    with pytest.raises(BadInput, match=r"cluster at h:1 must have a token.*set RAY_AUTH_TOKEN.*RAY_AUTH_MODE=disabled"):
        require_token("h:1")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("1")
    require_token("h:1")
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN" not in os.environ  # it is in the file
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    require_token("h:1")
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


@pytest.mark.parametrize("is_open", [True, False])
def test_an_open_cluster_is_refused(monkeypatch, is_open):
    for name in ("find_head", "try_to_join"):
        monkeypatch.setattr(ray_cluster, name, lambda address: None)
    monkeypatch.setattr(ray_cluster, "WITHOUT_TOKEN", f"raise SystemExit({0 if is_open else 1})")
    ray_cluster.refuse_open.cache_clear()
    how = Execution("cpu", engine="ray", address="127.0.0.1:1")
    if is_open:
        with pytest.raises(BadInput, match=r"is open: it runs code for all who reach its port; .*RAY_AUTH_MODE=token"):
            check(how)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    check(how)


@pytest.mark.slow
def test_a_cluster_of_our_own_asks_for_the_token():
    with joined(Execution("cpu", engine="ray", processes=1)) as own:
        address = own.ray.get_runtime_context().gcs_address
        assert address.startswith("127.0.0.1:")
        assert not answers_without_token(address)


@pytest.mark.slow
def test_a_cluster_that_was_begun_without_a_token_is_open():
    """What ``WITHOUT_TOKEN`` finds out, on a real one."""
    for mode in ("disabled", "token"):
        with cluster({"RAY_AUTH_MODE": mode}) as (address, _):
            assert answers_without_token(address) is (mode == "disabled")


def answers_without_token(address):
    command = [sys.executable, "-c", WITHOUT_TOKEN, address]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert asked.returncode == 0 or "AuthenticationError" in asked.stderr
    return asked.returncode == 0
