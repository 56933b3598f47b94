"""10,000 finished runs: processor seconds and memory of the table and the page; what a browser makes of the page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conftest import ROOT, wait_until

SEEDS = 5
METHODS = ("er", "der++", "gcr", "er-ace", "gss", "mir", "icarl", "gem")
BUFFERS = (20, 50, 100, 200, 500)
RATES = tuple(round(0.01 * (1 + i), 2) for i in range(50))


@dataclass(frozen=True)
class Cost:
    seconds: float  # of a processor
    mebibytes: float
    code: int
    out: str


def make_many(out: Path, runs: int) -> int:
    """Finished runs of made numbers: methods, sizes of memory, learning rates, seeds. How many."""
    from gcr.experiments.experiment import Experiment, compose
    from gcr.files import digest_of, json_bytes
    from gcr.runs.folder import RunFolder

    def experiments() -> Iterator[tuple[int, Experiment]]:
        for i in range(runs // SEEDS):
            method = METHODS[i % len(METHODS)]
            buffer = BUFFERS[i // len(METHODS) % len(BUFFERS)]
            rate = RATES[i // (len(METHODS) * len(BUFFERS)) % len(RATES)]
            yield i, compose("seq-digits", method, overrides={"buffer": buffer, "lr": rate, "epochs": 5})

    made = 0
    for i, experiment in experiments():
        for seed in range(SEEDS):
            one = replace(experiment, seed=seed)
            folder = RunFolder.of(out, one, f"{experiment.run_name}-{i}")
            folder.path.mkdir(parents=True)
            value = 50 + (31 * i + 7 * seed) % 400 / 10
            protocol = {"matrix": [[value] * 5] * 5, "accuracy": value, "forgetting": 10.0, "anytime": value}
            result = {
                "class_il": protocol,
                "task_il": protocol,
                "selections": [],
                "experiment": digest_of(one.to_dict()),
                "seconds": 2.0,
                "finished": "2026-01-01T00:00:00+00:00",
                "steps": 9,
                "memory_bytes": 9_000,
                "peak_bytes": 300_000_000,
                "versions": {"gcr": "1", "torch": "2"},
                "device": "cpu",
            }
            (folder.path / "experiment.json").write_bytes(json_bytes(one.to_dict()))
            epochs = ({"stage": stage, "epoch": 0, "steps": 2 * stage, "loss": 0.5} for stage in range(5))
            (folder.path / "metrics.jsonl").write_bytes(b"".join(json_bytes(each, indent=None) for each in epochs))
            (folder.path / "result.json").write_bytes(json_bytes({"files": folder.named_files()} | result))
            made += 1
    return made


# The kernel counts the memory of the process that began it with that of a child: it says itself what it had.
GCR = """
import atexit, pathlib, re, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: sys.stderr.write("\\n" + re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]))
runpy.run_module("gcr", run_name="__main__")
"""


def cost_of(words: str, folder: Path) -> Cost:
    command = [sys.executable, "-c", GCR, *words.split()]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        with subprocess.Popen(command, cwd=folder, env=env, stdout=printed, stderr=said) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0), printed.seek(0)
        kibibytes, out = int(said.read().split()[-1]), printed.read().decode()
    return Cost(round(used.ru_utime + used.ru_stime, 1), round(kibibytes / 1024, 1), process.returncode, out)


def usable_page(page: Path, profile: Path) -> dict[str, Any]:
    """In Chromium: rows drawn at first, rows drawn after scrolling to the last, rows in all, and problems."""
    from chromium import Browser

    drawn = "[...document.querySelectorAll('table.results tbody tr')].filter(row => row.offsetParent).length"
    rows = "document.querySelectorAll('table.results tbody tr').length"
    to_end = "document.querySelector('table.results').parentElement.scrollIntoView({block: 'end'})"
    with Browser(profile) as browser:
        browser.look()
        browser.open(page.as_uri())
        found = {"first": browser.do(drawn), "rows": browser.do(rows)}
        wait_until(lambda: (browser.do(to_end), browser.do(drawn) == found["rows"])[1], "the last row")
        return found | {"last": browser.do(drawn), "problems": browser.problems()}
