"""Who may use a Ray cluster: those who have its token, and of a cluster of our own nobody but this machine."""

import os
import subprocess
import sys

import pytest
from conftest import HANG_SECONDS
from ray_nodes import cluster

from gcr.runs.job import Execution
from gcr.runs.ray import cluster as ray_cluster
from gcr.runs.ray.cluster import WITHOUT_TOKEN, check, joined, require_token
from gcr.settings import BadInput

pytest.importorskip("ray")


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
