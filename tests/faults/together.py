"""Several processes on one folder: every run is trained once, whoever is killed; two updates of one state."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from children import Child, in_child
from file_layer import KILL, Layer
from tally import Tally
from victims import command, make_cache, make_state, names, run_facts, state_facts

SEEDS = 12


def train_all() -> int:
    """As commands do that share a folder: what another process trains is waited for."""
    import os

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
    """``processes`` at a time, until ``kills`` of them were killed; then those that are there end by themselves."""
    draw, tally = random.Random(f"{seed} together"), Tally()
    base, clean, work = (folder / name for name in ("base", "clean", "work"))
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    shutil.copytree(base, clean)
    shutil.copytree(base, work)
    log = folder / "events"
    assert in_child(_layered(Layer(clean, log=log), train_all), clean).code == 0
    total, killed, errors = int(log.read_bytes()), 0, 0

    def begin() -> Child:
        mortal = killed + len(mortals) < kills
        layer = Layer(work, KILL, draw.randrange(total // processes)) if mortal else Layer(work)
        child = Child(_layered(layer, train_all), work)
        if mortal:
            mortals.add(child.pid)
        return child

    mortals: set[int] = set()
    running = [begin() for _ in range(processes)]
    while running:
        child = running.pop(0)
        ended = child.wait()
        mortals.discard(child.pid)
        if ended.killed:
            killed += 1
            running.append(begin())
        else:
            errors += ended.code != 0 or ended.traceback
    found = ["tracebacks"] * (errors > 0)
    if in_child(train_all, work).code != 0 or run_facts(work) != run_facts(clean):
        found.append("wrong")
    if names(work) != names(clean):
        found.append("left")
    for _ in range(max(killed - 1, 0)):
        tally.count("")
    tally.count(f"{processes} processes on one folder, {killed} killed", *found)
    return tally


def two_updates(folder: Path, pairs: int) -> Tally:
    """At once: as many versions as commands that said so, each whole."""
    tally = Tally()
    base = folder / "base"
    base.mkdir(parents=True)
    assert in_child(make_state, base).code == 0
    for number in range(pairs):
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        wait = " --wait" if number % 2 else ""

        def update(wait: str = wait) -> int:
            return command(f"update state second.csv --epochs 1 --limit 100{wait}")

        ended = [child.wait() for child in [Child(update, work) for _ in range(2)]]
        made = sum(one.code == 0 for one in ended)
        found = ["tracebacks"] * any(one.traceback for one in ended)
        refused = all(one.code in (0, 2) and (one.code == 0 or "being changed by process" in one.err) for one in ended)
        if not made or not refused or (wait and made < 2) or not _has_version(work, 1 + made):
            found.append("wrong")
        left = {f"version-{number:04d}" for number in (made, 1 + made)}
        if {path.name for path in (work / "state").iterdir()} != left:
            found.append("left")
        tally.count(f"two updates at once{wait}", *found)
    return tally


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
