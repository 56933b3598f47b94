"""``make busy``: the quick tests while 8 processes take all the processor time they can get.

Writes ``busy`` (``benchmarks/measured.py``). Nothing may fail: no test depends on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import measured  # noqa: E402

SPINNING = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", default="8", help="test processes")
    given, more = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing spins on after its end
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(SPINNING)]
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "not gpu and not slow", "-n", given.workers]
    last, shown = "", 0
    try:
        with subprocess.Popen(
            [*command, "--dist", "worksteal", *more], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as tests:
            assert tests.stdout is not None
            for line in tests.stdout:
                share = re.search(r"\[ *(\d+)%\] (PASSED|SKIPPED)", line)
                if share and int(share[1]) >= shown + 5:
                    shown = int(share[1])
                    print(f"{shown}%", flush=True)
                elif not share and not line.startswith(("tests/", "gcr/")):  # what failed is named at once
                    print(line, end="", flush=True)
                last = line if " in " in line and ("passed" in line or "failed" in line) else last
        load = os.getloadavg()[1]
    finally:
        for process in spinning:
            process.kill()
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    about = {"spinning": SPINNING, "processors": os.cpu_count(), "test_processes": int(given.workers)}
    seconds = re.search(r" in ([\d.]+)s", last)
    found = about | counts | {"seconds": float(seconds[1]) if seconds else None, "load_of_5_minutes": round(load, 1)}
    if not more:  # the whole of them
        measured.write("busy", found)
    print(json.dumps(found))
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
