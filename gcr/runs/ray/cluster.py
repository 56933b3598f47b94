"""The Ray cluster that runs are trained on: one that ``ray start`` began, found by its address, or one of our own on
this machine for as long as the command runs.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from gcr.runs.job import Execution
from gcr.settings import BadInput

ANSWER_SECONDS = 4.0  # for a connection, and again for an answer
JOIN_SECONDS = 30.0  # for joining a cluster whose head has answered; Ray needs one, on a busy machine ten
START_ATTEMPTS = 3  # of a cluster of our own: Ray gives its processes few seconds, too few on a busy machine
EXTRA = "pip install 'gradient-coreset-replay[ray]'"
# The beginning of every HTTP/2 connection, which Ray's head speaks: the client's greeting with an empty frame of
# settings; the server answers with a frame of settings, whose fourth byte is 4.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME = 4
# Joining at an address, in a process of its own. The first step detects other servers and a wrong token.
HEAD_ANSWERED, JOINED = "the head has answered", "joined"
ATTEMPT = f"""
import sys, ray
from ray._raylet import GcsClient
print("ready", flush=True)
GcsClient(address=sys.argv[1])
print("{HEAD_ANSWERED}", flush=True)
ray.init(address=sys.argv[1], log_to_driver=False)
print("{JOINED}", flush=True)
"""
WITHOUT_TOKEN = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1])
"""
OPEN = ", or allow open clusters with RAY_AUTH_MODE=disabled"


@dataclass(frozen=True)
class Request:
    """What one task asks of a node."""

    cpus: int
    gpus: float = 0.0

    def fits(self, resources: dict[str, float]) -> int:
        """How many such tasks a node with these resources takes at a time."""
        by_cpu = int(resources.get("CPU", 0) // self.cpus)
        return min(by_cpu, int(resources.get("GPU", 0) / self.gpus + 1e-9)) if self.gpus else by_cpu

    @property
    def words(self) -> str:
        return f"{self.cpus} CPU{'s' * (self.cpus > 1)}" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def check(how: Execution) -> None:
    """Refuse what cannot work, before anything is started."""
    if how.device not in ("auto", "cpu", "cuda"):
        raise BadInput(f'device must be auto, cpu or cuda with --engine ray, which picks the GPU, got "{how.device}"')
    if how.gpus <= 0 or (how.gpus > 1 and how.gpus % 1):
        raise BadInput(f"gpus must be above 0, and whole above 1: several GPUs share a run, got {how.gpus:g}")
    if how.gpus > 1 and how.pack > 1:
        raise BadInput(f"a pack is trained on one GPU, got --gpus {how.gpus:g} and --pack {how.pack}; leave one out")
    require_token(how.address)
    try:
        import ray  # noqa: F401
    except ImportError:
        raise BadInput(f"--engine ray needs Ray, which is not installed; get it with: {EXTRA}") from None
    if how.address is not None:
        find_head(how.address)
        try_to_join(how.address)
        if os.environ.get("RAY_AUTH_MODE") != "disabled":
            refuse_open(how.address)


def require_token(address: str | None) -> None:
    """Before Ray is imported, which reads its environment once. A cluster of our own gets a token that nobody sees;
    RAY_AUTH_MODE=disabled asks for none."""
    if "RAY_AUTH_MODE" in os.environ or "ray" in sys.modules:
        return
    known = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif not any(name in os.environ for name in known) and not os.path.exists(os.path.expanduser("~/.ray/auth_token")):
        raise BadInput(
            f"the Ray cluster at {address} must have a token, and this command knows none; set RAY_AUTH_TOKEN to that "
            f"of every ray start{OPEN}"
        )
    os.environ["RAY_AUTH_MODE"] = "token"


@cache
def refuse_open(address: str) -> None:
    """An error if the cluster takes commands without a token. Those who reach its port can run code on its nodes."""
    command = [sys.executable, "-P", "-c", WITHOUT_TOKEN, address]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    try:
        quiet = subprocess.DEVNULL
        asked = subprocess.run(command, env=environment, stdout=quiet, stderr=quiet, timeout=JOIN_SECONDS)
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"whether the Ray cluster at {address} asks for a token was not seen within {JOIN_SECONDS:g} seconds; try "
            f"again{OPEN}"
        ) from None
    if asked.returncode == 0:
        raise BadInput(
            f"the Ray cluster at {address} is open: it runs code for all who reach its port; begin every ray start "
            f"with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN{OPEN}"
        )


def find_head(address: str) -> None:
    """An error within ten seconds unless something that can be Ray's head answers there. Ray itself would try for more
    than a minute and then end the process."""
    match = re.fullmatch(r"([\w.-]+):(\d{1,5})", address)
    if match is None:
        raise BadInput(f'address must be HOST:PORT, as ray start --head prints it, got "{address}"')
    try:
        with socket.create_connection((match[1], int(match[2])), timeout=ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return  # it would not answer a greeting in the clear
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else str(error)
        raise BadInput(f"no Ray cluster at {address} ({why}); {start_one(address)}") from None
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise not_a_head(address)


@cache  # once for a command; what raises is not remembered
def try_to_join(address: str) -> None:
    """An error within half a minute if the cluster cannot be joined from here. Tried in a process that can be ended:
    Ray itself would try for minutes, and write to the terminal meanwhile."""
    command = [sys.executable, "-P", "-c", ATTEMPT, address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0) as attempt:
        try:
            assert attempt.stdout is not None
            attempt.stdout.readline()  # the clock starts when Ray is imported: that takes long on a busy machine
            outputs = attempt.communicate(timeout=JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            attempt.kill()
            outputs = attempt.communicate()
        except BaseException:  # Ctrl-C
            attempt.kill()
            raise
    printed, complaints = (output.decode(errors="replace") for output in outputs)
    if JOINED in printed.splitlines():
        return
    if re.search("AuthenticationError|InvalidAuthToken|authentication token", complaints, re.IGNORECASE):
        raise BadInput(
            f"the Ray cluster at {address} does not accept this command's token; set RAY_AUTH_MODE=token and the same "
            "RAY_AUTH_TOKEN for this command as for every ray start"
        )
    if HEAD_ANSWERED not in printed:
        raise not_a_head(address)
    raise cannot_join(address, (complaints.splitlines() or [f"nothing within {JOIN_SECONDS:g} seconds"])[-1])


def not_a_head(address: str) -> BadInput:
    return BadInput(f"what answers at {address} is not the head of a Ray cluster; {start_one(address)}")


def cannot_join(address: str, why: str) -> BadInput:
    return BadInput(
        f"cannot join the Ray cluster at {address} ({why}); make this machine one of its nodes with: "
        f"ray start --address={address}"
    )


def start_one(address: str) -> str:
    return (
        f"start one with: ray start --head --port={address.rpartition(':')[2]}, join it on this machine with: "
        f"ray start --address={address}, or leave out --address"
    )


@contextmanager
def joined(how: Execution) -> Iterator[Cluster]:
    """The cluster at ``how.address``, or one of our own on this machine, which ends with the block."""
    check(how)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own reports to nobody
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of its own defaults
    import ray

    for attempts_left in reversed(range(START_ATTEMPTS if how.address is None else 1)):
        try:
            _start(ray, how)
            break
        except Exception as error:
            with suppress(Exception):
                ray.shutdown()
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if how.address:
                raise cannot_join(how.address, why) from None
            if not attempts_left:
                raise BadInput(f"cannot start Ray on this machine ({why})") from None
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _start(ray: Any, how: Execution) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if how.address is not None:
        ray.init(address=how.address, **quiet)
        return
    cpus = (how.processes or os.cpu_count() or 1) * how.threads
    # Workers of equal rank with other programs: at Ray's 15 they stand still on a busy machine.
    own: dict[str, Any] = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    with on_loopback():
        ray.init(address="local", num_cpus=cpus, **own, **quiet)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Ray listens on 127.0.0.1 alone where it does not support clusters, and here as if it did not. Its own variable
    asks for all addresses."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in os.environ and before
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def own_answer_to_sigterm() -> Iterator[None]:
    """Ray puts its own in the place of ours, and leaves it there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Cluster:
    """What the engine asks of Ray."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.unfit: dict[str, str] = {}  # why, by a node's id

    def nodes(self) -> list[dict[str, float]]:
        """Resources of the living nodes that are fit."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in self.unfit]

    def has_gpus(self) -> bool:
        return any(resources.get("GPU", 0) > 0 for resources in self.nodes())

    def places(self, request: Request) -> int:
        """Tasks that the cluster takes at a time."""
        return sum(request.fits(resources) for resources in self.nodes())

    def options(self, request: Request) -> dict[str, Any]:
        """For a task. Its retries are the engine's: it begins again from the checkpoint that has come home."""
        avoid = f"!in({','.join(self.unfit)})"
        return {
            "num_cpus": request.cpus,
            "num_gpus": request.gpus,
            "max_retries": 0,
            "num_returns": "streaming",
            **({"label_selector": {"ray.io/node-id": avoid}} if self.unfit else {}),
        }
