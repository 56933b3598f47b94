"""Several processes on one folder: every run is trained once, whoever is killed; two updates of one state."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from children import Child, in_child
from conftest import wait_until
from digests import check_whole
from file_layer import KILL, Layer
from tally import Tally
from victims import command, make_cache, make_state, names, run_facts, state_facts

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
            check_whole(file.name, file.read_bytes())
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
