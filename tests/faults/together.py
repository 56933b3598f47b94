"""Several processes on one folder: every run is trained once, whoever is killed; two updates at once; 10,000 runs."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from children import KILL, Child, Layer, Tally, in_child
from conftest import ROOT, wait_until
from victims import check_mapped, command, make_cache, make_state, names, run_facts, state_facts

SEEDS = 12


def train_all() -> int:
    """As commands do that share a folder: what another process trains is waited for."""
    from gcr.experiments.experiment import compose
    from gcr.runs.folder import RunFolder
    from gcr.runs.job import Execution, Job
    from gcr.runs.shared_folder import train_together

    os.environ["GCR_DATA"] = str(Path.cwd() / "cache")
    given = {"epochs": 1, "model": "mlp", "buffer": 10, "tasks": 3, "batch": 4}
    experiments = [compose("letters", "er", seed=seed, overrides=given) for seed in range(SEEDS)]
    jobs = [Job(experiment, RunFolder.of(Path("runs"), experiment)) for experiment in experiments]
    ending = train_together(jobs, lambda event: print(event.error or ""), Execution("cpu", processes=1))
    return int(ending.failed > 0)


def processes_on_one_folder(folder: Path, processes: int, kills: int, seed: int) -> Tally:
    """``processes`` at a time, round after round, until ``kills`` of them were killed.

    Counted are kills, each with what was on the disk then and with what its round came to: the same bits as of one
    process alone, every result written once, nothing left behind.
    """
    draw, tally = random.Random(f"{seed} together"), Tally()
    base, clean, work = (folder / name for name in ("base", "clean", "work"))
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    shutil.copytree(base, clean)
    log = folder / "events"
    assert in_child(_layered(Layer(clean, log=log), train_all), clean).code == 0
    events = len(log.read_text().splitlines())
    while tally.tried < kills:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        written = folder / "written"
        written.unlink(missing_ok=True)
        killed, found = _one_round(work, processes, kills - tally.tried, events, draw, written)
        if in_child(train_all, work).code != 0 or run_facts(work) != run_facts(clean):
            found.append("wrong")
        if names(work) != names(clean):
            found.append("left")
        once = sorted(f"seed-{seed}" for seed in range(SEEDS))
        if sorted(written.read_text().splitlines()) != once:
            found.append("wrong")
        assert killed, "no process was killed"
        for seen in killed:
            tally.count(f"{processes} processes, {len(killed)} killed", *dict.fromkeys(seen + found))
        tally.add(Tally(measured={"rounds": 1}))
    return tally


def _one_round(
    work: Path, processes: int, kills: int, events: int, draw: random.Random, written: Path
) -> tuple[list[list[str]], list[str]]:
    """Who is killed is followed by another, as long as there is work. For each kill what was lost, and what failed."""
    mortals: set[int] = set()
    killed: list[list[str]] = []
    failed: list[str] = []

    def begin() -> Child:
        mortal = len(killed) + len(mortals) < kills
        layer = Layer(work, KILL, draw.randrange(events // processes)) if mortal else Layer(work)
        child = Child(_layered(layer, partial(_train_and_note, written)), work)
        if mortal:
            mortals.add(child.pid)
        return child

    running = [begin() for _ in range(processes)]
    while running:
        wait_until(lambda: any(child.ended() for child in running), "the end of a process")
        child = next(child for child in running if child.ended())
        running.remove(child)
        mortals.discard(child.pid)
        ended = child.wait()
        if ended.killed:
            killed.append(_lost(work))
            running.append(begin())
        elif ended.code != 0 or ended.traceback:
            failed.append("tracebacks" if ended.traceback else "lost")
    return killed, failed


def _lost(work: Path) -> list[str]:
    """While the others go on: what is there is whole."""
    for file in work.glob("runs/*/*/[!.]*"):
        try:
            check_mapped(file.name, file.read_bytes())
        except FileNotFoundError:  # a checkpoint, meanwhile replaced by a newer one
            continue
        except Exception:
            return ["lost"]
    return []


def _train_and_note(written: Path) -> int:
    """Each result that is written is a line of the file."""
    replace = os.replace

    def noted(source: str | Path, to: str | Path) -> None:
        replace(source, to)
        if Path(to).name == "result.json":
            with open(written, "a") as file:
                file.write(f"{Path(to).parent.name}\n")

    os.replace = noted  # type: ignore[assignment]
    return train_all()


def two_updates(folder: Path, pairs: int) -> Tally:
    """The second begins while the first holds the state: it is refused, or with ``--wait`` says so and waits. As many
    versions as commands that said so, each whole."""
    tally = Tally()
    base, work = folder / "base", folder / "work"
    base.mkdir(parents=True)
    assert in_child(make_state, base).code == 0
    for number in range(pairs):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        wait, moment = " --wait" * (number % 2), ("read", "write")[number // 2 % 2]
        update = partial(command, f"update state second.csv --epochs 1 --limit 100{wait}")
        held, seen = folder / f"held-{number}", folder / f"seen-{number}"
        first = Child(partial(_held_up, moment, held, seen, update), work)
        wait_until(held.exists, "an update that holds the state")
        second = Child(update, work)
        wait_until(lambda second=second: second.ended() or b"waiting for process" in _errors(second), "what it says")
        overlapped = bool(wait) != second.ended()
        seen.touch()
        ended = [first.wait(), second.wait()]
        found = ["tracebacks"] * any(one.traceback for one in ended)
        refused = ended[1].code == (0 if wait else 2) and (bool(wait) or "being changed by process" in ended[1].err)
        made = 2 if wait else 1
        if not overlapped or ended[0].code or not refused or not _has_version(work, 1 + made):
            found.append("wrong")
        left = {f"version-{number:04d}" for number in (made, 1 + made)}
        if {path.name for path in (work / "state").iterdir()} != left:
            found.append("left")
        tally.count(f"two updates at once{wait}, the first held up in its {moment}: {ended[1].err[-200:]}", *found)
    return tally


def _held_up(moment: str, held: Path, seen: Path, work: Callable[[], int]) -> int:
    """``work`` that stops for the other at its first reading or writing of the state."""
    from gcr.learner.state_folder import StateFolder

    plain = getattr(StateFolder, moment)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not held.exists():
            held.touch()
            wait_until(seen.exists, "the other update")
        return plain(*args, **kwargs)

    setattr(StateFolder, moment, call)
    return work()


def _errors(child: Child) -> bytes:
    """What it has said so far."""
    return os.pread(child.outputs[1].fileno(), 100_000, 0)


def _has_version(folder: Path, number: int) -> bool:
    try:
        state_facts(folder, number)
    except Exception:
        return False
    return True


def _layered(layer: Layer, work: Callable[[], int]) -> Callable[[], int]:
    def layered() -> int:
        layer.install(steps=True)
        return work()

    return layered


# --- 10,000 finished runs: processor seconds and memory of the table and the page; what a browser makes of the page

SEEDS_OF_EACH = 5
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
        for i in range(runs // SEEDS_OF_EACH):
            method = METHODS[i % len(METHODS)]
            buffer = BUFFERS[i // len(METHODS) % len(BUFFERS)]
            rate = RATES[i // (len(METHODS) * len(BUFFERS)) % len(RATES)]
            yield i, compose("seq-digits", method, overrides={"buffer": buffer, "lr": rate, "epochs": 5})

    made = 0
    for i, experiment in experiments():
        for seed in range(SEEDS_OF_EACH):
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
