"""How long a command takes to begin: ``gcr --help``, ``gcr methods``, and ``gcr run seq-digits`` to its first step.

    python benchmarks/start_up.py

Each is begun five times in a process of its own; the median counts. Writes ``start-up`` (``benchmarks/measured.py``).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measured

ROOT = Path(__file__).resolve().parents[1]
TIMES = 5
LIMITS = {"gcr --help": 0.4, "gcr methods": 0.4, "gcr run seq-digits to the first step": 4.0}
FIRST_STEP = """
import os, sys
import gcr.training.step_runner as runner
from gcr.cli.main import run_cli

def first(*given, step=runner.train_step):
    step(*given)
    os._exit(0)

runner.train_step = first
sys.exit(run_cli(sys.argv[1:]) or 1)
"""


def seconds_of(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    load, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as runs:
        run = ["run", "seq-digits", "--method", "gcr", "--processes", "1", "--out"]
        commands = [[sys.executable, "-m", "gcr", "--help"], [sys.executable, "-m", "gcr", "methods"]]
        commands.append([sys.executable, "-c", FIRST_STEP, *run])
        for (what, limit), command in zip(LIMITS.items(), commands, strict=True):
            more = ([f"{runs}/{i}"] if command[-1] == "--out" else [] for i in range(TIMES))
            took = [round(seconds_of([*command, *words]), 3) for words in more]
            rows.append({"what": what, "seconds": statistics.median(took), "all": took, "limit": limit})
            print(f"{what}: {rows[-1]['seconds']:.2f} s (limit {limit:g})", flush=True)
    device = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    measured.write("start-up", {"device": device, "load": load, "rows": rows})
    print(f"written: start-up, in {measured.FILE}")


if __name__ == "__main__":
    main()
