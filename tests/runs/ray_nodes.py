"""A Ray cluster on this machine, with nodes begun by ``ray start`` as on several, for tests. To be imported before Ray,
which reads its environment once: the clusters of tests have a key of their own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from conftest import HANG_SECONDS, wait_until

# Ray gives its processes a minute to start and ten seconds to answer; a busy machine may need more.
os.environ |= {
    "RAY_gcs_server_port_wait_time_s": str(HANG_SECONDS),
    "RAY_gcs_server_request_timeout_seconds": str(HANG_SECONDS),
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(HANG_SECONDS),
    "RAY_worker_register_timeout_seconds": str(HANG_SECONDS),
    "RAY_agent_register_timeout_ms": str(1000 * HANG_SECONDS),
    "RAY_health_check_timeout_ms": str(1000 * HANG_SECONDS),
}
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "RAY_AUTH_MODE" not in os.environ:
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# Ray gives a node 30 seconds to register, by a constant in its code: its clock is slowed down. By another constant, the
# raylet of a node ends where other processes of the node are slow to start: then nobody waits any longer.
SLOW_CLOCK = f"""
import os, time, types
from pathlib import Path
import ray._private.node as node

def raylet_ended():
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == "raylet" and rest.split()[:2] == ["Z", str(os.getpid())]:
            return True
    return False

def monotonic(late=[0]):
    late[0] += 60 * raylet_ended()
    return late[0] + time.monotonic() / ({HANG_SECONDS} / 30)

slow = types.SimpleNamespace(**vars(time))
slow.monotonic = monotonic
node.time = slow
"""
START = f"{SLOW_CLOCK}\nfrom ray.scripts.scripts import main\nmain()"


class Node:
    """Begun, and begun again where it ends before it has registered."""

    def __init__(self, env, files, *options):
        command = [sys.executable, "-c", START, "start", "--block", "--num-cpus=1", *options]
        with tempfile.NamedTemporaryFile(dir=files) as printed:
            out = Path(printed.name)
            while True:
                self.process = subprocess.Popen(
                    command, env=os.environ | env, stdout=printed, stderr=subprocess.DEVNULL, start_new_session=True
                )
                wait_until(lambda: self.ended or b"Ray runtime started" in out.read_bytes(), "a node of the cluster")
                if not self.ended:
                    break
                self.kill()

    @property
    def ended(self):
        return self.process.poll() is not None

    def kill(self):
        """As when the power goes: every process of the node at once."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def descendants(pid):
    below = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        below.setdefault(parent, []).append(int(stat.parent.name))
    found = list(below.get(pid, []))
    for child in found:
        found += below.get(child, [])
    return found


@contextmanager
def cluster(*environments):
    """Its address, and its nodes, each with one CPU and an environment of its own. The first is the head."""
    files = tempfile.mkdtemp(prefix="gcr-ray-", dir="/tmp")  # a short path: there are sockets below it
    port = free_port()
    own = {"TMPDIR": files}  # scratch folders of workers that are killed go with the rest
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={files}"]
    begun = []
    try:
        for number, each in enumerate(environments, 1):  # one by one: they share ports and a folder
            begun.append(Node(each | own, files, *(head if number == 1 else [f"--address=127.0.0.1:{port}"])))
        yield f"127.0.0.1:{port}", begun
    finally:
        for node in begun:
            node.kill()
        shutil.rmtree(files, ignore_errors=True)


LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def open_ports():
    """(address, port) of TCP sockets on which this process and those below it accept connections, as the kernel writes
    them; empty where there is no /proc."""
    owned = set()
    for process in (os.getpid(), *descendants(os.getpid())):
        for entry in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):  # closed, or its process has ended
                owned.add(os.readlink(entry))
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {tuple(row[1].split(":")) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in owned}
