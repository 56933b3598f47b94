"""A worker, a node and the head of a Ray cluster killed while runs are trained there: nothing is lost, and the numbers
are those of this machine. ``python ray_kills.py FOLDER`` prints the tally as JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "runs")]

from children import Tally  # noqa: E402
from conftest import HANG_SECONDS, ROOT, wait_until  # noqa: E402
from ray_nodes import Node, cluster, descendants  # noqa: E402  # before Ray
from victims import run_facts  # noqa: E402

WORDS = "run seq-digits --method er --model mlp --buffer 50 --epochs 20 --seeds 0,1 --out runs"


def kill_worker(nodes: list[Node]) -> None:
    for node in nodes:
        for pid in descendants(node.process.pid):
            with suppress(OSError):  # it has ended since
                if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return
    raise AssertionError("no worker of Ray was found, so none was killed")


def kill_node(nodes: list[Node]) -> None:
    nodes[1].kill()


def kill_head(nodes: list[Node]) -> None:
    nodes[0].kill()


def attack(kill: Callable[[list[Node]], None], folder: Path, clean: Any) -> list[str]:
    """Kill when both runs are under way; the same command without Ray ends what is left."""
    folder.mkdir()
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with cluster({}, {}) as (address, nodes):
        command = [sys.executable, "-m", "gcr", *WORDS.split(), "--engine", "ray", "--address", address]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        locks = [folder / f"runs/seq-digits-er-k50/seed-{seed}/.lock" for seed in (0, 1)]
        wait_until(lambda: all(lock.exists() for lock in locks), "both runs began", process)
        kill(nodes)
        out, err = process.communicate(timeout=HANG_SECONDS)
    text = (out + err).decode(errors="replace")
    found = ["tracebacks"] * ("Traceback (most recent call last)" in text)
    if process.returncode not in (0, 1):
        found.append("silent")
    again = subprocess.run([sys.executable, "-m", "gcr", *WORDS.split()], cwd=folder, env=env, capture_output=True)
    if again.returncode != 0 or run_facts(folder) != clean:
        found.append("wrong")
    if any(path.name.startswith((".", "checkpoint")) for path in folder.rglob("*")):
        found.append("left")
    if found:
        print(process.returncode, text[-1500:], file=sys.stderr)
    return found


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # a head that is gone stays so
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    whole = folder / "whole"
    whole.mkdir()
    subprocess.run([sys.executable, "-m", "gcr", *WORDS.split()], cwd=whole, env=env, check=True, capture_output=True)
    clean, tally = run_facts(whole), Tally()
    for kill in (kill_worker, kill_node, kill_head):
        found = attack(kill, folder / kill.__name__, clean)
        tally.count(kill.__name__.replace("_", " "), *found)
        shutil.rmtree(folder / kill.__name__)
    print(json.dumps(asdict(tally)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
